"""Local servers for tests: started once in each pytest process, or for a folder."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.run import data_folder
from app.run.local_servers import LocalServers, started
from migrations.run import migrate
from tenants.engines import make_engine
from tests.conftest import reachable_folder

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the servers as somebody else")


RunningServers = tuple[LocalServers, dict[str, "subprocess.Popen[bytes]"]]


@contextlib.contextmanager
def servers_of(folder: Path) -> Iterator[RunningServers]:
    data = data_folder.prepare(folder)
    with data_folder.lock_servers(data, "up") as lock:
        servers = LocalServers(data, lock, durable=False)
        with started(servers, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as processes:
            data_folder.write_state(data, "up", servers.addresses)
            yield servers, processes


@pytest.fixture(scope="session")
def running_servers() -> Iterator[RunningServers]:
    """The servers of a new data folder, migrated."""
    with reachable_folder() as folder, servers_of(folder / "data") as running:
        migrate_as_owner(running[0])
        yield running


def migrate_as_owner(servers: LocalServers) -> None:
    engine = make_engine(servers.addresses.database_url, pool_size=1)
    migrate(engine, service_url=servers.addresses.service_database_url)
    engine.dispose()
