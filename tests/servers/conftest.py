"""Servers for a file of tests: real programs of Debian's, in a folder of their own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import reachable_folder
from tests.servers.postgres import Postgres
from tests.servers.redis_cluster import RedisServer


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with reachable_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def postgres(folder: Path) -> Iterator[Postgres]:
    with Postgres(folder / "postgres") as server:
        yield server


@pytest.fixture(scope="module")
def redis(folder: Path) -> Iterator[RedisServer]:
    with RedisServer(folder / "redis") as server:
        yield server
