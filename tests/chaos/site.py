"""The site under test: two nodes on one PostgreSQL and one Redis, with a proxy between every pair of processes.

Node `a` is `plaudit up` with its own servers. Node `b` has a process of each kind, which reaches these servers through
proxies, and which a thread starts again when it ends, as systemd does. Clients reach both through proxies.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

import psycopg
from redis import Redis

from app.run.data_folder import read_secrets, read_state
from app.run.ports import reserve_port
from app.run.server_roles import Logins
from tests import secrets_seen
from tests.chaos.clock import Clock
from tests.chaos.proxies import Proxies
from tests.secrets_seen import LOG_FOLDER
from tests.service import PLAUDIT, ROOT, Service, eventually, is_listening, own_servers_env

NODES = ("a", "b")
# What an operator's process manager waits before it starts a process again.
RESTART_AFTER_S = 0.2
UP_WITHIN_S = 300.0


@dataclass
class Managed:
    """A process of node b, and how it is started. `is_wanted` is False while a restart has stopped it."""

    command: list[str]
    env: dict[str, str]
    log: Path
    process: "subprocess.Popen[bytes] | None" = None
    is_wanted: bool = True

    def start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)  # another run of tests deletes the logs of the one before
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*PLAUDIT, *self.command], stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=ROOT, env=self.env
            )

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None


@dataclass
class Site:
    folder: Path
    data_dir: Path
    proxies: Proxies = field(default_factory=Proxies)
    ports: dict[str, int] = field(default_factory=dict)
    own: dict[str, Managed] = field(default_factory=dict)
    up: Service | None = None
    # What the site did that no call shows: a start that gave up, a process that did not stop.
    problems: list[str] = field(default_factory=list)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _keeper: threading.Thread | None = None

    def __post_init__(self) -> None:
        self.ports = {f"{kind} {node}": reserve_port() for kind in ("web", "live") for node in NODES}
        self.clock = Clock(self.folder)
        for node in NODES:
            for kind in ("web", "live"):
                self.proxies.add(f"client-{kind} {node}", lambda port=self.ports[f"{kind} {node}"]: port)  # type: ignore[misc]
        for process in ("web", "worker", "live"):
            self.proxies.add(f"{process}-postgres", lambda: self._server_port("database_url"))
            self.proxies.add(f"{process}-redis", lambda: self._server_port("redis_url"))
        self.up_env = {
            "PLAUDIT_LIVE_PORT": str(self.ports["live a"]),
            "PLAUDIT_PUBLIC_URL": f"http://127.0.0.1:{self.client_port('a')}",
            "PLAUDIT_WEB_PROCESSES": "2",
        }

    def __enter__(self) -> Self:
        self.start_up()
        self._define_own_processes()
        self._keeper = threading.Thread(target=self._keep, name="node b")
        self._keeper.start()
        eventually(lambda: is_listening(self.ports["web b"]) and is_listening(self.ports["live b"]))
        return self

    def __exit__(self, *_error: object) -> None:
        self._stopping.set()
        if self._keeper is not None:
            self._keeper.join(60)
        if self.up is not None and self.up.process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.up.stop()
        if self.up is not None:
            self.up.process.kill()
            self.up.close()
        self.proxies.close()

    def client_port(self, node: str, kind: str = "web") -> int:
        """Where clients reach a node: through its proxy."""
        return self.proxies.by_name[f"client-{kind} {node}"].port

    def start_up(self) -> float:
        """Start node a, again if it gives up. Returns how many seconds it took. Only for the main thread, whose end
        would end it.
        """
        began = time.monotonic()
        while True:
            try:
                self.up = Service(self.data_dir, "--port", str(self.ports["web a"]), env=self.up_env, prepared=False)
                return time.monotonic() - began
            except AssertionError as error:
                if time.monotonic() - began > UP_WITHIN_S:
                    raise
                last = str(error).strip().splitlines()[-1:]
                self.problems.append(f"`plaudit up` gave up after {time.monotonic() - began:.0f} s: {last}")

    @property
    def addresses(self) -> dict[str, Any]:
        state = read_state(self.data_dir) or {}
        found: dict[str, Any] = state.get("addresses", {})
        return found

    def superuser(self) -> "psycopg.Connection[Any]":
        """A connection to PostgreSQL that may see and end everything."""
        secrets = read_secrets(self.data_dir)
        names = ("superuser_password", "owner_password", "service_password")
        logins = Logins(self._server_port("database_url") or 0, **{name: secrets[name] for name in names})
        return _connect(logins.superuser_url)

    def owner(self) -> "psycopg.Connection[Any]":
        return _connect(self.addresses["database_url"])

    def redis(self) -> "Redis":
        return Redis.from_url(self.addresses["redis_url"], socket_timeout=10)

    def restart(self, name: str, *, within_s: float = 30) -> None:
        """End a process of node b as a process manager does, and start it again."""
        managed = self.own[name]
        managed.is_wanted = False
        assert managed.process is not None
        managed.process.send_signal(signal.SIGTERM)
        try:
            managed.process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.problems.append(f"{name} of node b did not end within {within_s:.0f} s of SIGTERM")
            managed.process.kill()
            managed.process.wait()
        managed.is_wanted = True

    def _server_port(self, name: str) -> int | None:
        try:
            return urlsplit(str(self.addresses[name])).port
        except (KeyError, OSError, ValueError):
            return None

    def _through(self, url: str, proxy: str) -> str:
        parts = urlsplit(url)
        login = parts.netloc.rpartition("@")[0]
        return urlunsplit(parts._replace(netloc=f"{login}@127.0.0.1:{self.proxies.by_name[proxy].port}"))

    def _define_own_processes(self) -> None:
        addresses, secrets = self.addresses, read_secrets(self.data_dir)
        secrets_seen.collect(secrets)
        metrics = self.folder / "metrics-b"
        metrics.mkdir()
        common = own_servers_env() | self.up_env | self.clock.env
        common |= {
            "PLAUDIT_LIVE_PORT": str(self.ports["live b"]),
            "PLAUDIT_SECRET_KEY": secrets["secret_key"],
            "PLAUDIT_PARENT_PID": str(os.getpid()),
            "PLAUDIT_WEB_PROCESSES": "1",
            "PROMETHEUS_MULTIPROC_DIR": str(metrics),
            "LOG_FORMAT": "json",
        }
        for name in ("web", "live", "worker", "cron"):
            via = "worker" if name == "cron" else name
            env = common | {
                "PLAUDIT_SERVICE_DATABASE_URL": self._through(addresses["service_database_url"], f"{via}-postgres"),
                "REDIS_URL": self._through(addresses["redis_url"], f"{via}-redis"),
            }
            if via == "worker":
                env["DATABASE_URL"] = self._through(addresses["database_url"], f"{via}-postgres")
            port = ["--port", str(self.ports[f"{name} b"])] if name in {"web", "live"} else []
            folder = ["--data-dir", str(self.folder / "data-b")]
            log = LOG_FOLDER / f"chaos-b-{name}-{self.folder.name}.log"
            self.own[name] = Managed([*folder, name, *port], env, log)

    def _keep(self) -> None:
        """Start what is not running, until the end; then stop all of it."""
        due: dict[str, float] = {}
        while not self._stopping.wait(0.02):
            for name, managed in self.own.items():
                if managed.is_alive or not managed.is_wanted:
                    due.pop(name, None)
                elif time.monotonic() >= due.setdefault(
                    name, time.monotonic() + (RESTART_AFTER_S if managed.process else 0)
                ):
                    managed.start()
        for managed in self.own.values():
            if managed.is_alive and managed.process is not None:
                managed.process.terminate()
        for managed in self.own.values():
            if managed.process is not None:
                try:
                    managed.process.wait(15)
                except subprocess.TimeoutExpired:
                    managed.process.kill()
                    managed.process.wait()


def _connect(url: str) -> "psycopg.Connection[Any]":
    """A connection, as soon as PostgreSQL accepts one."""
    connection: psycopg.Connection[Any] = eventually(lambda: psycopg.connect(url, autocommit=True, connect_timeout=5))
    return connection
