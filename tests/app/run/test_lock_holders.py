"""Who holds a data folder's lock: found by the lock itself, and signalled only if it is still the same process."""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest

from app.run import data_folder, lock_holders
from app.run.local_servers import LocalServers
from app.run.lock_holders import Processes
from tests.conftest import reachable_folder
from tests.service import children_of, copy_prepared, eventually

# Starts what its arguments say, prints its id, and waits.
STARTER = """if True:
    import fcntl, subprocess, sys, time
    lock = open(sys.argv[1], "a")
    fcntl.flock(lock, fcntl.LOCK_EX)
    print(subprocess.Popen(sys.argv[2:], pass_fds=[lock.fileno()]).pid, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[IO[str]]:
    with (tmp_path / "servers.lock").open("a") as opened:
        yield opened


@contextlib.contextmanager
def started_server(lock: IO[str]) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """A process that has the lock, and a "server" of its own that inherited it: that process, and the server's id."""
    program = Path(lock.name).with_name("postgres")
    shutil.copy("/bin/sleep", program)
    command = [sys.executable, "-c", STARTER, lock.name, str(program), "600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        server = int(starter.stdout.readline())
        try:
            eventually(lambda: "postgres" in {holder.program for holder in lock_holders.holders(lock.fileno())})
            yield starter, server
        finally:
            starter.kill()
            with contextlib.suppress(ProcessLookupError):
                os.kill(server, signal.SIGKILL)


def test_servers_are_orphans_once_nobody_else_holds_the_lock(lock: IO[str]) -> None:
    with started_server(lock) as (starter, server):
        assert {holder.pid for holder in lock_holders.holders(lock.fileno())} == {starter.pid, server}
        assert lock_holders.orphans(lock.fileno()) == []
        starter.kill()
        starter.wait()
        assert [holder.pid for holder in lock_holders.orphans(lock.fileno())] == [server]


def test_who_only_waits_for_the_lock_does_not_hold_it(lock: IO[str], tmp_path: Path) -> None:
    assert list(lock_holders.holders(lock.fileno())) == [], "this process has opened it"
    with (tmp_path / "servers.lock").open("a") as taken:
        fcntl.flock(taken, fcntl.LOCK_EX)
        assert [holder.pid for holder in lock_holders.holders(lock.fileno())] == [os.getpid()]


def test_a_process_that_took_the_id_of_an_ended_one_is_not_signalled(lock: IO[str]) -> None:
    with started_server(lock) as (starter, server):
        starter.kill()
        starter.wait()
        (found,) = lock_holders.orphans(lock.fileno())
        earlier = Processes([replace(found, started_at=found.started_at - 1)])
        assert earlier.poll() == 0
        earlier.send_signal(signal.SIGKILL)
        assert lock_holders.orphans(lock.fileno()) == [found], f"{server} was left alone"
        Processes([found]).send_signal(signal.SIGKILL)
        eventually(lambda: Processes([found]).poll() == 0)


def test_a_process_whose_status_nobody_has_read_has_ended() -> None:
    process = subprocess.Popen(["/bin/sleep", "600"])
    assert lock_holders.started_at(process.pid) is not None
    process.kill()
    eventually(lambda: lock_holders.started_at(process.pid) is None)
    process.wait()
    assert lock_holders.started_at(process.pid) is None


def test_a_root_that_sees_nobodys_open_files_finds_postgres_by_its_pid_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Docker: root without CAP_SYS_PTRACE, and servers of another user."""

    def refuse(process: Path, file: os.stat_result) -> bool:
        if int(process.name) == os.getpid():
            return holds(process, file)
        raise PermissionError

    holds = lock_holders._holds
    monkeypatch.setattr(lock_holders, "_holds", refuse)
    with reachable_folder() as folder, data_folder.lock_servers(copy_prepared(folder / "data"), "command") as lock:
        server = LocalServers(folder / "data", lock).postgres()
        process = server.start(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        (link,) = (folder / "data").glob("postgres-[0-9]*")
        pid_file, servers = link / "postmaster.pid", set[int]()

        def found() -> set[int]:
            return {one.pid for one in lock_holders.holders(lock.fileno()) if one.program == "postgres"}

        def is_complete() -> bool:
            nonlocal servers
            servers = {process.pid, *(child.pid for child in children_of(process.pid))}
            return len(servers) > 3 and found() == servers

        try:
            eventually(is_complete)
            wrote = pid_file.read_text()
            pid, data, wrote_at, *others = wrote.splitlines()
            for wrong in (
                [str(os.getpid()), data, wrote_at],
                [pid, str(folder), wrote_at],
                [pid, data, str(int(wrote_at) - 3600)],
                [pid],
                ["-"],
            ):
                pid_file.write_text("\n".join([*wrong, *others]))
                assert found() == set(), wrong
            pid_file.write_text(wrote)
            assert found() == servers
        finally:
            monkeypatch.undo()
            server.stop(process)
