"""The servers that come along: how they are started and stopped, and what they let their clients do."""

import subprocess
import time
from collections.abc import Iterator

import psutil
import psycopg
import pytest
from redis import Redis
from redis.exceptions import ResponseError

from app.run import data_folder, lock_holders
from app.run.local_servers import LocalServers
from tests.app.run.conftest import RunningServers, servers_of
from tests.conftest import reachable_folder
from tests.service import eventually


def test_valkey_takes_no_debug_command(running_servers: RunningServers) -> None:
    with (
        Redis.from_url(running_servers[0].addresses.redis_url) as redis,
        pytest.raises(ResponseError, match="not allowed"),
    ):
        redis.execute_command("DEBUG", "SLEEP", "0")


def test_no_other_process_is_given_the_superusers_password(running_servers: RunningServers) -> None:
    servers, _ = running_servers
    state = (servers.data_dir / "servers.json").read_text()
    assert servers.logins.superuser_password not in state
    assert servers.logins.owner_password in state


def test_what_an_interrupted_start_left_is_no_data_of_another_version() -> None:
    with reachable_folder() as path:
        folder = data_folder.prepare(path / "data")
        (folder / "postgres-18.new" / "data").mkdir(parents=True)
        with servers_of(folder) as (servers, _):
            assert servers.are_up()


@pytest.fixture
def own_servers() -> Iterator[RunningServers]:
    """Servers that a test may kill."""
    with reachable_folder() as folder, servers_of(folder / "data") as running:
        yield running


def kill_backend(servers: LocalServers) -> None:
    """After which PostgreSQL recovers from a crash; for some seconds, since it has much to read."""
    with psycopg.connect(servers.logins.superuser_url, autocommit=True) as server:
        server.execute("CREATE TABLE filling AS SELECT repeat('x', 1000) FROM generate_series(1, 300000)")
        psutil.Process(server.info.backend_pid).kill()


def begin_recovery(servers: LocalServers, postmaster: psutil.Process) -> None:
    kill_backend(servers)
    eventually(lambda: not postmaster.children(), every_s=0.001)


def test_a_postgresql_told_to_stop_as_its_recovery_begins_ends(own_servers: RunningServers) -> None:
    """Left to SIGINT alone it would wait for ever."""
    servers, processes = own_servers
    question = servers.postgres().question
    assert question is not None
    assert question.is_answered()
    process = processes["postgres"]
    begin_recovery(servers, psutil.Process(process.pid))
    children = psutil.Process(process.pid).children()
    began = time.monotonic()
    servers.postgres().stop(process, within_s=2)
    assert time.monotonic() - began < 30
    assert process.returncode is not None
    assert not [child for child in children if lock_holders.started_at(child.pid)]


def test_postgresql_starts_although_a_child_of_the_killed_one_stands_still(own_servers: RunningServers) -> None:
    servers, processes = own_servers
    with psycopg.connect(servers.logins.superuser_url) as server:
        child = psutil.Process(server.info.backend_pid)
        child.suspend()
        processes["postgres"].kill()
        processes["postgres"].wait()
        processes["postgres"] = servers.postgres().start(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        eventually(servers.are_up)
        assert processes["postgres"].poll() is None
        assert lock_holders.started_at(child.pid) is None
