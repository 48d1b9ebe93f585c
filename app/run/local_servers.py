"""The local servers: PostgreSQL and Valkey from wheels, started by our own launcher.

`LocalServers(data_dir)` knows how to start both; `plaudit up` supervises them, and `running()` runs them during
one command. `server_files` decides where their files are.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from app.machine import machine_memory
from app.run import environment, lock_holders, probes, server_roles, server_settings, server_user
from app.run.data_folder import (
    Addresses,
    LocalServersError,
    lock_servers,
    prepare,
    read_secrets,
    wait_for_up,
    write_state,
)
from app.run.ports import reserve_port
from app.run.probes import Question
from app.run.server_files import home_for, postgres_version, reachable_binaries, refuse_other_versions
from app.run.server_roles import Logins
from app.run.server_user import User
from app.run.stopping import FORCE_WITHIN_S, Stoppable, stopping, wait_out

START_TIMEOUT_S = 60
STOP_WITHIN_S = 8.0


@dataclass(frozen=True)
class Server:
    """One server: how to start and stop it, and how to ask whether it works."""

    name: str
    command: list[str]
    # The politest comes first, the one that always works last.
    stop_signals: tuple[signal.Signals, ...]
    question: Question | None = None
    stdin: bytes = b""
    lock: int | None = None
    program: str = ""
    env: dict[str, str] = field(default_factory=dict)
    # Its lines that only report starting and stopping, which are not shown.
    noise: str = r"(?!)"

    def start(self, **popen: Any) -> "subprocess.Popen[bytes]":
        """Start it. It ends with the calling thread: call this from the main thread."""
        self._end_remains()
        process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            start_new_session=True,
            pass_fds=() if self.lock is None else (self.lock,),
            env=environment.inherited(**self.env),
            **popen,
        )
        assert process.stdin is not None  # noqa: S101
        with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
            stdin.write(self.stdin)
        return process

    def stopping(
        self, process: Stoppable, *, within_s: float = STOP_WITHIN_S, is_urgent: Callable[[], bool] = lambda: False
    ) -> Iterator[signal.Signals]:
        """Stop it and all that it has started: see `stopping.stopping`."""
        yield from stopping(process, *self.stop_signals, within_s=within_s, is_urgent=is_urgent)
        self._end_remains()

    def stop(self, process: Stoppable, *, within_s: float = STOP_WITHIN_S) -> None:
        wait_out(self.stopping(process, within_s=within_s))

    def _end_remains(self) -> None:
        """End the children of a killed PostgreSQL: it does not start again beside one that has not noticed yet."""
        if self.lock is not None:
            left = [holder for holder in lock_holders.holders(self.lock) if holder.program == self.program]
            wait_out(stopping(lock_holders.Processes(left), signal.SIGKILL, within_s=FORCE_WITHIN_S))


class LocalServers:
    """The PostgreSQL and Valkey of one data folder. Created with the lock on the folder's servers."""

    def __init__(self, data_dir: Path, lock: IO[str], *, durable: bool = True, keep_old_version: bool = False) -> None:
        self.data_dir = data_dir
        self._lock = lock
        self._durable = durable
        self._user = server_user.choose() if os.geteuid() == 0 else None
        self._home = home_for(data_dir, self._user)
        self._binaries = reachable_binaries(self._user)
        self._secrets = read_secrets(data_dir)
        self.version = postgres_version(self._binaries.postgres)
        if not keep_old_version:
            refuse_other_versions(data_dir, self.version)
        self._postgres_port, self._valkey_port = reserve_port(), reserve_port()

    @property
    def addresses(self) -> Addresses:
        return Addresses(
            database_url=self.logins.owner_url,
            service_database_url=self.logins.service_url,
            redis_url=f"redis://:{self._secrets['redis_password']}@127.0.0.1:{self._valkey_port}/0",
        )

    @property
    def logins(self) -> Logins:
        names = ("superuser_password", "owner_password", "service_password")
        return Logins(self._postgres_port, **{name: self._secrets[name] for name in names})

    def postgres(self) -> Server:
        data = self._postgres_data()
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self._postgres_port),
            "unix_socket_directories": "",
            **server_settings.for_postgres(
                memory=machine_memory(),
                free_disk=server_settings.free_disk(data),
                counts_statements=server_settings.has_statements(self._binaries.postgres),
            ),
        }
        if not self._durable:
            settings |= {"fsync": "off", "full_page_writes": "off"}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return Server(
            name="postgres",
            command=self._launch("SIGQUIT", [str(self._binaries.postgres), "-D", str(data), *options]),
            # Fast shutdown, which cuts clients off and flushes data; immediate shutdown, which leaves that to recovery.
            stop_signals=(signal.SIGINT, signal.SIGQUIT, signal.SIGKILL),
            question=Question(
                self._postgres_port, probes.postgres_question(server_roles.OWNER_LOGIN, server_roles.DATABASE)
            ),
            lock=self._lock.fileno(),
            program=self._binaries.postgres.name,
            noise=r"LOG: +(starting|listening|database system|received|aborting|background worker|shutting|checkpoint)"
            r"|FATAL: +the database system is (starting up|shutting down)"
            # A data folder of an earlier release, before its roles are converted.
            r'|"plaudit_super"|Connection matched file',
        )

    def valkey(self) -> Server:
        config = (
            f"port {self._valkey_port}\nbind 127.0.0.1\nprotected-mode yes\n"
            f'requirepass {self._secrets["redis_password"]}\nsave ""\nappendonly no\n'
            "loglevel warning\ndaemonize no\ndisable-thp no\n"
        )
        return Server(
            name="valkey",
            command=self._launch("SIGKILL", [str(self._binaries.valkey), "-"]),
            stop_signals=(signal.SIGTERM, signal.SIGKILL),
            question=Question(self._valkey_port, b"PING\r\n"),
            stdin=config.encode(),
            # Boards are read at random addresses: huge pages make that a third faster. Redis advises against them
            # because of its dumps, and this server writes none.
            env={"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
            lock=self._lock.fileno(),
            program=self._binaries.valkey.name,
            noise=r"Reading config|Memory overcommit|ready to exit|User requested shutdown|Received SIG",
        )

    def are_up(self, *, database: bool = True, redis: bool = True) -> bool:
        """Whether they answer. Once PostgreSQL does, its database and roles are created where they are missing."""
        return (not redis or self._redis_answers()) and (not database or server_roles.ensure(self.logins))

    def wait_until_up(self, processes: dict[str, "subprocess.Popen[bytes]"]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.are_up():
            for name, process in processes.items():
                if process.poll() is not None:
                    raise LocalServersError(f"The local {name} stopped at once, with status {process.returncode}")
            if time.monotonic() > deadline:
                raise LocalServersError(f"The local servers did not start within {START_TIMEOUT_S} s")
            time.sleep(0.02)

    def _launch(self, death_signal: str, command: list[str], *, user: User | None = None) -> list[str]:
        user = user or self._user
        launcher = str(Path(__file__).with_name("launcher.py"))
        start = [sys.executable, "-I", "-S", launcher, str(os.getpid()), death_signal]
        return [*start, user.argument if user else "-", *command]

    def _postgres_data(self) -> Path:
        """PostgreSQL's data folder for this version, created by initdb the first time."""
        data = self._home / f"postgres-{self.version}"
        if not (data / "PG_VERSION").exists():
            self._initdb(data)
        if self._user:
            server_user.take_over(data, self._user)
        link = self.data_dir / data.name
        if link != data and not link.exists():
            link.unlink(missing_ok=True)
            link.symlink_to(data)
        return data

    def _initdb(self, data: Path) -> None:
        """Create the data folder: in a private folder first, and renamed into place when it is complete."""
        private = data.with_name(data.name + ".new")
        for unfinished in (data, private):  # what an interrupted initdb left
            shutil.rmtree(unfinished, ignore_errors=True)
        new_data, password_file = private / "data", private / "password"
        private.mkdir(mode=0o700)
        new_data.mkdir(mode=0o700)
        password_file.touch(mode=0o600)
        password_file.write_text(self._secrets["superuser_password"])
        initdb_user = server_user.named_user(self._user) if self._user else None
        if self._user and initdb_user:
            os.chown(private, -1, self._user.gid)
            private.chmod(0o710)
            for path in (new_data, password_file):
                os.chown(path, initdb_user.uid, initdb_user.gid)
        options = ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-instructions"]
        if self.version >= 17:
            options = [*options, "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        initdb = [
            str(self._binaries.postgres.with_name("initdb")),
            *("-D", str(new_data), "-U", server_roles.SUPERUSER_LOGIN, f"--pwfile={password_file}", *options),
        ]
        done = subprocess.run(
            self._launch("SIGKILL", initdb, user=initdb_user),
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            pass_fds=(self._lock.fileno(),),
        )
        password_file.unlink()
        if done.returncode:
            raise LocalServersError(f"PostgreSQL's initdb failed: {done.stderr.strip().splitlines()[-1:]}")
        if self._user and initdb_user:
            server_user.change_owner(new_data, self._user, former={initdb_user.uid})
        new_data.rename(data)
        private.rmdir()

    def _redis_answers(self) -> bool:
        from redis import Redis  # not before the servers are started: see server_roles
        from redis.exceptions import RedisError

        try:
            with Redis.from_url(self.addresses.redis_url, socket_timeout=1) as redis:
                return bool(redis.ping())
        except (RedisError, OSError):
            return False


@contextlib.contextmanager
def running(data_dir: Path, *, keep_old_version: bool = False) -> Iterator[Addresses]:
    """The servers of this folder: those of a running `plaudit up`, or else started until the block ends."""
    data_dir = prepare(data_dir)
    state = wait_for_up(data_dir)
    if state is not None:
        yield state
        return
    with lock_servers(data_dir, "command") as lock:
        servers = LocalServers(data_dir, lock, keep_old_version=keep_old_version)
        with started(servers, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
            write_state(data_dir, "command", servers.addresses)
            yield servers.addresses


@contextlib.contextmanager
def started(servers: LocalServers, **popen: Any) -> Iterator[dict[str, "subprocess.Popen[bytes]"]]:
    """Start both servers, wait until they are up, and stop them at the end."""
    specs = [servers.postgres(), servers.valkey()]
    processes = {spec.name: spec.start(**popen) for spec in specs}
    try:
        servers.wait_until_up(processes)
        yield processes
    finally:
        for spec in reversed(specs):
            spec.stop(processes[spec.name])
