"""Commands, run as processes on the tests' own servers. (Tests of local servers and backups: tests/app/run.)"""

from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from app.run.data_folder import Addresses
from tests.analytics.conftest import page, sender
from tests.conftest import fresh_database
from tests.service import plaudit

__all__ = ["page", "sender"]

# Runs one command to its end.
Run = Callable[..., CompletedProcess[str]]


@pytest.fixture
def on_ours(addresses: Addresses, tmp_path: Path) -> Run:
    """Commands on the tests' own servers, which need not be started for each."""
    return commands_on(addresses, tmp_path)


@pytest.fixture
def on_ours_empty(servers: Addresses, tmp_path: Path) -> Iterator[Run]:
    """The same, with a database of the test's own: nothing of other tests waits to be projected there."""
    with fresh_database(servers) as fresh:
        yield commands_on(fresh, tmp_path)


def commands_on(addresses: Addresses, data_dir: Path) -> Run:
    env = env_of(addresses)
    return lambda *arguments: plaudit(*arguments, data_dir=data_dir, env=env)


def env_of(addresses: Addresses) -> dict[str, str]:
    """The environment by which commands find these servers."""
    env = {"DATABASE_URL": addresses.database_url, "REDIS_URL": addresses.redis_url}
    if addresses.service_database_url:
        env["PLAUDIT_SERVICE_DATABASE_URL"] = addresses.service_database_url
    return env
