"""Debian's servers for tests: found, started as a user whom they accept, and stopped by their process id.

A server listens on a free loopback port, keeps its files in a folder of its own, and ends with this process.
"""

import os
import pwd
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, Self

import psutil
import pytest

from app.run import launcher
from app.run.ports import reserve_port
from app.run.server_user import User
from tests.secrets_seen import LOG_FOLDER
from tests.service import eventually, is_listening

# Packages of Debian, by the name of the program that tests start.
PACKAGES = {"nginx": "nginx-light", "pgbouncer": "pgbouncer", "postgres": "postgresql", "redis-server": "redis-server"}
# The account of Debian's package: PostgreSQL and PgBouncer do not run as root.
ACCOUNT = "postgres"


def find(name: str) -> str:
    """The path of a server's program. The test is skipped where it is not installed; in CI it fails."""
    folders = [
        *map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin"))),
        "/usr/bin",
        "/usr/sbin",
        os.environ["PATH"],
    ]
    found = shutil.which(name, path=os.pathsep.join(folders))
    return found or _missing(f"no {name} on this machine (Debian: apt-get install {PACKAGES[name]})")


def _missing(why: str) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(why)
    pytest.skip(why)


def unprivileged() -> User | None:
    """Whom servers run as, if root runs the tests."""
    if os.geteuid() != 0:
        return None
    try:
        account = pwd.getpwnam(ACCOUNT)
    except KeyError:
        _missing(f"no account {ACCOUNT} on this machine (Debian: apt-get install postgresql)")
    return User(account.pw_uid, account.pw_gid)


def launch(command: Sequence[str], *, death_signal: str = "SIGKILL", as_root: bool = False) -> list[str]:
    """The command, run as the unprivileged user (where root runs the tests) and ended with this process."""
    user = None if as_root else unprivileged()
    start = [sys.executable, "-I", "-S", str(launcher.__file__), str(os.getpid()), death_signal]
    return [*start, user.argument if user else "-", *command]


class Server:
    """A server that a test may start, stop and kill as often as it likes: `with` starts it and stops it at the end."""

    name: str
    stop_signal = signal.SIGTERM
    as_root = False
    process: "subprocess.Popen[bytes] | None" = None

    def __init__(self, folder: Path) -> None:
        self.port = reserve_port()
        self.folder = folder
        folder.mkdir(mode=0o700)
        if not self.as_root:
            self.hand_over(folder)

    def hand_over(self, path: Path) -> None:
        """Give a file or folder to the unprivileged user."""
        if user := unprivileged():
            os.chown(path, user.uid, user.gid)

    def command(self) -> list[str]:
        raise NotImplementedError

    def answers(self) -> bool:
        return is_listening(self.port)

    def start(self) -> None:
        LOG_FOLDER.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            command = launch(self.command(), death_signal=self.stop_signal.name, as_root=self.as_root)
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, start_new_session=True
            )
        eventually(self._has_started)

    def _has_started(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text(errors="replace")[-2000:]
        return self.answers()

    def stop(self, how: signal.Signals | None = None) -> None:
        """End it and its children, and wait until they are gone."""
        if self.process is None or self.process.poll() is not None:
            return
        children = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(how or self.stop_signal)
        self.process.wait(60)
        psutil.wait_procs(children, timeout=60)

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    @property
    def log(self) -> Path:
        return LOG_FOLDER / f"{self.name}-{self.port}.log"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()
