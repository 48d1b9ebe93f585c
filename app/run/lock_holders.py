"""The processes that hold the lock of a data folder: whoever took it, and the servers that inherited it.

A server whose `plaudit up` or command was killed ends by itself (`launcher`), unless it hangs. Then it still holds the
lock, and whoever wants the folder next ends it. A process is signalled only after it was verified: its id and start
time, a server's program, and the lock of this very folder among its open files.

Linux says all that of the processes of one's own user, and root everything. A root that may not trace others
(CAP_SYS_PTRACE, which Docker withholds) cannot see the open files of the servers' user. Then PostgreSQL is found by its
`postmaster.pid`, its command line and its start time, with its children. (Valkey cannot survive its parent: its death
signal is SIGKILL.) Elsewhere nothing is found, and the lock is waited for.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SERVERS = frozenset({"postgres", "valkey-server", "initdb"})
# How long after its process began PostgreSQL may write when it started: the launcher runs first.
MAX_LAUNCH_S = 60.0


@dataclass(frozen=True)
class Holder:
    pid: int
    started_at: int
    program: str


@dataclass(frozen=True)
class Processes:
    """Several processes that are stopped as one."""

    holders: list[Holder]

    def poll(self) -> int | None:
        """None while one of them runs, as `subprocess.Popen` has it."""
        return None if any(_is_running(holder) for holder in self.holders) else 0

    def send_signal(self, number: int) -> None:
        for holder in self.holders:
            if _is_running(holder):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(holder.pid, number)


def orphans(lock: int) -> list[Holder]:
    """The servers that hold the lock, if nobody else holds it: those who started them are gone.

    Whoever takes the lock meanwhile, and starts servers, is found by the second look.
    """
    before = set(holders(lock))
    found = list(holders(lock))
    return [holder for holder in found if holder in before] if all(h.program in SERVERS for h in found) else []


def holders(lock: int) -> Iterator[Holder]:
    """The processes that hold the lock on this open file, by whatever file of their own."""
    file = os.fstat(lock)
    unreadable = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # another user's, or it has ended
            began = started_at(int(process.name))
            try:
                if began is not None and _holds(process, file):
                    program = (process / "exe").readlink().name.removesuffix(" (deleted)")
                    yield Holder(int(process.name), began, program)
            except PermissionError:
                unreadable.append(int(process.name))
    yield from _postgres_among(unreadable, Path(f"/proc/self/fd/{lock}").readlink().parent)


def _postgres_among(pids: Sequence[int], data_dir: Path) -> Iterator[Holder]:
    """The PostgreSQL of this data folder and its children, of processes whose open files cannot be seen."""
    postmasters = {pid for pid in map(_postmaster, data_dir.glob("postgres-*/postmaster.pid")) if pid in pids}
    for pid in pids if postmasters else ():
        with contextlib.suppress(OSError, ValueError):
            began, fields = started_at(pid), _stat(pid)
            if began is not None and (pid in postmasters or int(fields[1]) in postmasters):
                yield Holder(pid, began, "postgres")


def _postmaster(pid_file: Path) -> int | None:
    """The id in a `postmaster.pid`, if that process is the PostgreSQL of the file's folder."""
    data = os.path.realpath(pid_file.parent)
    try:
        pid, folder, wrote_at, *_ = pid_file.read_text().splitlines()
        program, *options = Path(f"/proc/{int(pid)}/cmdline").read_bytes().decode().split("\0")
        began_at = _boot_time() + int(_stat(int(pid))[19]) / os.sysconf("SC_CLK_TCK")
        folders = {os.path.realpath(folder), os.path.realpath(options[options.index("-D") + 1])}
        is_same = folders == {data} and -1 <= int(wrote_at) - began_at <= MAX_LAUNCH_S
    except (OSError, ValueError, IndexError):  # no such process, another program, a file that is being written
        return None
    return int(pid) if is_same and Path(program).name == "postgres" else None


def _boot_time() -> float:
    return time.clock_gettime(time.CLOCK_REALTIME) - time.clock_gettime(time.CLOCK_BOOTTIME)


def started_at(pid: int) -> int | None:
    """When it started, in the kernel's ticks: with its id this names one process for ever. None: it has ended."""
    try:
        state, *fields = _stat(pid)
    except OSError:
        return None
    return None if state in {b"Z", b"X"} else int(fields[18])


def _stat(pid: int) -> list[bytes]:
    """What the kernel says of a process, from its state on."""
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()


def _is_running(holder: Holder) -> bool:
    return started_at(holder.pid) == holder.started_at


def _holds(process: Path, file: os.stat_result) -> bool:
    """Whether one of its open files has the lock. Processes that wait for the lock have opened the file only."""
    for opened in os.scandir(process / "fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            is_lock = os.path.samestat(opened.stat(), file)
            if is_lock and b"FLOCK" in (process / "fdinfo" / opened.name).read_bytes():
                return True
    return False
