"""The processes that hold the lock of a data folder: whoever took it, and the servers that inherited it.

A server whose `plaudit up` or command was killed ends by itself (`launcher`), unless it hangs. Then it still holds the
lock, and whoever wants the folder next ends it. A process is signalled only after it was verified: its id and start
time, a server's program, and the lock of this very folder among its open files.

Linux says all that of the processes of one's own user, and root everything. Nothing is found elsewhere, or by a root
that may not trace others (CAP_SYS_PTRACE): the lock is waited for then.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SERVERS = frozenset({"postgres", "valkey-server", "initdb"})


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
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # another user's, or it has ended
            began = started_at(int(process.name))
            if began is not None and _holds(process, file):
                program = (process / "exe").readlink().name.removesuffix(" (deleted)")
                yield Holder(int(process.name), began, program)


def started_at(pid: int) -> int | None:
    """When it started, in the kernel's ticks: with its id this names one process for ever. None: it has ended."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if state in {b"Z", b"X"} else int(fields[18])


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
