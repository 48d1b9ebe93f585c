"""The data folder (`.plaudit`): the lock on its local servers, their addresses, and its secrets.

One process at a time has the lock on `servers.lock`. The servers inherit it, so a free lock means that no server of an
earlier start is running. Servers that nobody is left of who started them are ended by whoever wants the lock next.
`servers.json` contains the lock's holder and, for other commands, the servers' addresses.
"""

import contextlib
import errno
import fcntl
import json
import os
import secrets
import signal
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from app.run import lock_holders
from app.run.stopping import stopping, wait_out

WAIT_FOR_OTHERS_S = 60
# Servers whose parent was killed are told to end by the kernel: they may do so before they are told again.
ORPHANS_WITHIN_S = 3.0

Holder = Literal["up", "command"]


class LocalServersError(Exception):
    """The local servers cannot be started or used; the message says why and what to do."""


@dataclass(frozen=True)
class Addresses:
    database_url: str
    service_database_url: str
    redis_url: str


def prepare(data_dir: Path) -> Path:
    """The data folder, created if it does not exist. Others (the servers' user) may pass through it, not list it."""
    data_dir = data_dir.absolute()
    try:
        if not data_dir.exists():
            data_dir.mkdir(parents=True, exist_ok=True)
            data_dir.chmod(0o711)  # whatever the umask; an existing folder keeps its mode
        _open_lock(data_dir).close()
    except OSError as error:
        raise LocalServersError(
            f"The data folder {data_dir} cannot be used ({error.strerror}): choose another with --data-dir"
        ) from None
    return data_dir


@contextlib.contextmanager
def lock_servers(data_dir: Path, holder: Holder) -> Iterator[IO[str]]:
    """Take the lock on this folder's servers, for `plaudit up` or for one command."""
    deadline = time.monotonic() + WAIT_FOR_OTHERS_S
    with _open_lock(data_dir) as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                other = read_state(data_dir)
                if other is not None and other["holder"] == "up" and _is_running(other):
                    raise LocalServersError(
                        f"Plaudit is running on {data_dir} already (process {other['pid']}): stop it first, "
                        "or choose another folder with --data-dir and another --port"
                    ) from None
                _end_orphans(lock, other)
                if time.monotonic() > deadline:
                    raise LocalServersError(f"{data_dir} is in use by another command: try again later") from None
                time.sleep(0.05)
        state = data_dir / "servers.json"
        state.unlink(missing_ok=True)
        write_state(data_dir, holder, None)
        try:
            yield lock
        finally:
            state.unlink(missing_ok=True)


def write_state(data_dir: Path, holder: Holder, addresses: Addresses | None) -> None:
    """Write which process has the lock and, once the servers are up, their addresses, for other commands."""
    state: dict[str, Any] = {"pid": os.getpid(), "holder": holder}
    state["started_at"] = lock_holders.started_at(os.getpid())
    if addresses is not None:
        state["addresses"] = vars(addresses)
    write_private(data_dir / "servers.json", json.dumps(state))


def wait_for_up(data_dir: Path) -> Addresses | None:
    """The addresses of the servers of a running `plaudit up`; None: none is running."""
    deadline = time.monotonic() + WAIT_FOR_OTHERS_S
    with _open_lock(data_dir) as lock:
        while _is_taken(lock):
            state = read_state(data_dir)
            if state is not None and state["holder"] == "command":
                return None
            if state is not None and "addresses" in state and _is_running(state):
                return Addresses(**state["addresses"])
            _end_orphans(lock, state)
            if time.monotonic() > deadline:
                raise LocalServersError("The running `plaudit up` could not start its servers")
            time.sleep(0.05)
    return None


def read_state(data_dir: Path) -> dict[str, Any] | None:
    try:
        state = json.loads((data_dir / "servers.json").read_text())
    except (FileNotFoundError, ValueError):
        return None
    except PermissionError:
        raise LocalServersError(
            f"The data folder {data_dir} belongs to another user: choose another with --data-dir"
        ) from None
    return state if isinstance(state, dict) else None


def is_new(data_dir: Path) -> bool:
    """Whether no server was ever started in this folder."""
    return not (data_dir / "secrets.json").exists()


def read_secrets(data_dir: Path) -> dict[str, str]:
    """Passwords and the secret key of this folder, generated the first time."""
    file = data_dir / "secrets.json"
    try:
        saved: dict[str, str] = json.loads(file.read_text())
    except FileNotFoundError:
        saved = {}
    names = ("superuser_password", "owner_password", "service_password", "redis_password", "secret_key")
    if not all(name in saved for name in names):
        saved = {**{name: secrets.token_urlsafe(32) for name in names}, **saved}
        write_private(file, json.dumps(saved))
    return saved


def write_private(file: Path, text: str) -> None:
    """Replace a file that only we may read, in one step."""
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=file.name)
    with os.fdopen(handle, "w") as stream:
        stream.write(text)
    Path(name).rename(file)


def open_private(file: Path) -> IO[bytes]:
    """Open a file that only we may read, for reading and appending; creates it if it does not exist.

    Others who may write in the folder can replace it: by a link to a file that they want overwritten, a pipe that
    nobody reads, a file of their own. That raises OSError.
    """
    opened = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    info = os.fstat(opened)
    if not stat.S_ISREG(info.st_mode) or info.st_nlink != 1 or info.st_uid != os.geteuid():
        os.close(opened)
        raise PermissionError(errno.EPERM, "not a regular file of this user's with one name", str(file))
    os.fchmod(opened, 0o600)
    return os.fdopen(opened, "r+b")


def _is_running(state: dict[str, Any]) -> bool:
    """Whether the process that wrote this state lives. Another one may have its id by now."""
    began = lock_holders.started_at(state["pid"])
    return began is not None and began == state.get("started_at", began)


def _end_orphans(lock: IO[str], state: dict[str, Any] | None) -> None:
    """End the servers that hold the lock, if whoever started them is gone."""
    if state is None or not _is_running(state):
        servers = lock_holders.Processes(lock_holders.orphans(lock.fileno()))
        wait_out(stopping(servers, signal.SIGQUIT, signal.SIGKILL, within_s=ORPHANS_WITHIN_S))


def _open_lock(data_dir: Path) -> IO[str]:
    """The file may belong to another user: root may use their folder."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    return os.fdopen(os.open(data_dir / "servers.lock", flags, 0o600), "a")


def _is_taken(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(lock, fcntl.LOCK_UN)
    return False
