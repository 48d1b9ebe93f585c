"""A whole Plaudit for a test: `plaudit up` as a real process, on servers and ports of its own."""

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import requests
from psycopg.rows import scalar_row
from redis.exceptions import RedisError

from app.run.data_folder import read_state
from app.run.ports import reserve_port
from tests import commands, secrets_seen
from tests.secrets_seen import LOG_FOLDER

PLAUDIT = [sys.executable, "-m", "app.cli"]
ROOT = Path(__file__).parents[1]
# The environment variable with the folder of the data folder that all pytest processes copy.
PREPARED_IN = "PLAUDIT_TEST_PREPARED_IN"
# Tests that need several workers say so.
ONE_WORKER = ("--workers", "1")


def plaudit(*arguments: str, data_dir: Path, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    """Run one command to its end."""
    done = commands.run(["--data-dir", str(data_dir), *arguments], env=own_servers_env() | (env or {}))
    LOG_FOLDER.mkdir(parents=True, exist_ok=True)
    with (LOG_FOLDER / "commands.txt").open("a") as log:
        log.write(done.stderr)
    return done


def plaudit_json(*arguments: str, data_dir: Path) -> Any:
    """The JSON that one command prints with --json."""
    done = plaudit(*arguments, "--json", data_dir=data_dir)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def copy_prepared(data_dir: Path) -> Path:
    """Create this data folder as `plaudit migrate` does, from a copy: with the cluster, the roles and the schema.

    The first pytest process that needs it runs `plaudit migrate` to create the original.
    """
    shared = Path(os.environ[PREPARED_IN])
    with (shared / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "complete").exists():
            migrated = plaudit("migrate", data_dir=shared / "data")
            assert migrated.returncode == 0, migrated.stderr
            (shared / "complete").touch()
    # With owners and modes: started by root, the servers run as another user.
    subprocess.run(["cp", "--archive", str(shared / "data"), str(data_dir)], check=True)  # noqa: S607  any cp does
    return data_dir


def own_servers_env() -> dict[str, str]:
    """Our environment without the addresses of servers, so that local ones are started.

    With a port for sockets: the one after the API's, which `plaudit up` would choose, may be taken meanwhile. And
    without a drain at the end, for which nobody waits here.
    """
    databases = ("DATABASE_URL", "PLAUDIT_SERVICE_DATABASE_URL", "PLAUDIT_DIRECT_DATABASE_URL")
    named = (*databases, "REDIS_URL", "PLAUDIT_QUEUE_REDIS_URL")
    env = {name: value for name, value in os.environ.items() if name not in named}
    return env | {"PLAUDIT_LIVE_PORT": str(reserve_port()), "PLAUDIT_DRAIN_S": "0"}


class Service:
    """`plaudit up --json`, started and ready. A data folder that does not exist is copied from the prepared one."""

    def __init__(self, data_dir: Path, *options: str, env: dict[str, str] | None = None, prepared: bool = True) -> None:
        self.data_dir = data_dir
        if prepared and not data_dir.exists():
            copy_prepared(data_dir)
        LOG_FOLDER.mkdir(parents=True, exist_ok=True)
        self.log = (LOG_FOLDER / f"up-{data_dir.parent.name}-{data_dir.name}.log").open("ab")
        command = [
            *PLAUDIT,
            "up",
            "--json",
            "--data-dir",
            str(data_dir),
            "--port",
            str(reserve_port()),
            *ONE_WORKER,
            *options,
        ]
        # Tests that are interrupted leave no service behind.
        env = own_servers_env() | {"PLAUDIT_PARENT_PID": str(os.getpid())} | (env or {})
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, cwd=ROOT, env=env, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log_text()
        self.ready: dict[str, Any] = json.loads(line)
        self.url = str(self.ready["url"])
        secrets_seen.collect(self.ready)
        own = data_dir / "secrets.json"
        if own.exists():  # not if servers and secret are the operator's
            secrets_seen.collect(json.loads(own.read_text()))

    def get(self, path: str, **options: Any) -> requests.Response:
        return requests.get(self.url + path, timeout=10, **options)

    def post(self, path: str, **options: Any) -> requests.Response:
        answer = requests.post(self.url + path, timeout=10, **options)
        if answer.headers.get("Content-Type") == "application/json":
            secrets_seen.collect(answer.json())
        return answer

    def token(self) -> str:
        """An access token of the demo's client."""
        auth = (self.ready["client_id"], self.ready["client_secret"])
        answer = self.post("/oauth/token", data={"grant_type": "client_credentials"}, auth=auth)
        return str(answer.json()["access_token"])

    def processes(self) -> dict[str, psutil.Process]:
        """The direct children, by name; of several with one name, all but the first with a number."""
        by_name: dict[str, psutil.Process] = {}
        for child in children_of(self.process.pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                name = _name(child)
                taken = sum(other.startswith(name) for other in by_name)
                by_name[f"{name}{taken + 1}" if taken else name] = child
        return by_name

    def everything(self) -> list[psutil.Process]:
        me = psutil.Process(self.process.pid)
        return [me, *me.children(recursive=True)]

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(how)
        status = self.process.wait(60)
        self.close()
        return status

    def close(self) -> None:
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.log.close()

    def log_text(self) -> str:
        return Path(self.log.name).read_text(errors="replace")


@contextlib.contextmanager
def running_service(
    data_dir: Path, *options: str, env: dict[str, str] | None = None, prepared: bool = True
) -> Iterator[Service]:
    service = Service(data_dir, *options, env=env, prepared=prepared)
    try:
        yield service
    finally:
        if service.process.poll() is None:
            service.stop()
        service.close()


def wait_for_right_boards(service: Service, *, within_s: float = 60) -> None:
    """Until `plaudit check` finds no difference, and nothing is due."""
    # A check takes as much CPU as what it waits for.
    eventually(lambda: _boards_are_right(service), within_s=within_s, every_s=0.5)


def _boards_are_right(service: Service) -> bool:
    state = read_state(service.data_dir)
    if state is None or "addresses" not in state:
        return False
    with psycopg.connect(state["addresses"]["database_url"]) as owner:  # cheaper than the command, which callers repeat
        if owner.execute("SELECT FROM outbox LIMIT 1").fetchone() is not None:
            return False
    report = json.loads(plaudit("check", "--json", data_dir=service.data_dir).stdout)
    return bool(report["ok"]) and report["due"] == 0


def eventually(what: Callable[[], Any], *, within_s: float = 60, every_s: float = 0.05) -> Any:
    """Wait until `what` returns something true, and return that. Errors of a server that is down mean: not yet."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            answer = what()
        except (requests.RequestException, RedisError, OSError, psutil.Error, psycopg.OperationalError):
            answer = None
        if answer or time.monotonic() > deadline:
            assert answer, f"not within {within_s} s"
            return answer
        time.sleep(every_s)


def blocked_connections(database_url: str, *, for_s: float = 0) -> int:
    """How many of the database's connections have been waiting for a lock, at least this long."""
    with psycopg.connect(database_url, row_factory=scalar_row) as connection:
        found = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            " AND clock_timestamp() - query_start >= make_interval(secs => %s)",
            [for_s],
        ).fetchone()
    return int(found or 0)


def children_of(pid: int) -> list[psutil.Process]:
    """Its direct children. psutil's function reads every process of the machine: too much to repeat often."""
    listed = list(Path(f"/proc/{pid}/task").glob("*/children"))
    if not listed:  # some kernels do not list them
        return psutil.Process(pid).children()
    children: list[psutil.Process] = []
    for file in listed:
        with contextlib.suppress(OSError):  # the thread has ended
            for child in file.read_text().split():
                with contextlib.suppress(psutil.NoSuchProcess):
                    children.append(psutil.Process(int(child)))
    return children


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _name(process: psutil.Process) -> str:
    """What one of the supervisor's children is."""
    command = " ".join(process.cmdline())
    for name in ("postgres", "valkey"):
        if name in Path(command.split(" ")[0]).name:
            return name
    if "gunicorn" in command:
        return "live"
    return "web" if command.endswith("app.cli web") else process.name().removeprefix("plaudit-")
