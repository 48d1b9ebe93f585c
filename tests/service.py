"""A whole Plaudit for a test: `plaudit up` as a real process, on servers and ports of its own."""

import contextlib
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
import requests
from redis.exceptions import RedisError

from tests import secrets_seen
from tests.secrets_seen import LOG_FOLDER

PLAUDIT = [sys.executable, "-m", "app.cli"]
ROOT = Path(__file__).parents[1]


def plaudit(*arguments: str, data_dir: Path, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    """Run one command to its end."""
    done = subprocess.run(
        [*PLAUDIT, "--data-dir", str(data_dir), *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=120,
        env=own_servers_env() | (env or {}),
    )
    LOG_FOLDER.mkdir(parents=True, exist_ok=True)
    with (LOG_FOLDER / "commands.txt").open("a") as said:
        said.write(done.stderr)
    return done


def plaudit_json(*arguments: str, data_dir: Path) -> Any:
    """What one command says with --json."""
    done = plaudit(*arguments, "--json", data_dir=data_dir)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def own_servers_env() -> dict[str, str]:
    """Our environment without any server named: embedded ones are meant here."""
    named = ("DATABASE_URL", "REDIS_URL", "PLAUDIT_SERVICE_DATABASE_URL", "PLAUDIT_QUEUE_REDIS_URL")
    return {name: value for name, value in os.environ.items() if name not in named}


class Service:
    """`plaudit up --json`, started and ready."""

    def __init__(self, data_dir: Path, *options: str, env: dict[str, str] | None = None) -> None:
        self.data_dir = data_dir
        LOG_FOLDER.mkdir(parents=True, exist_ok=True)
        self.log = (LOG_FOLDER / f"up-{data_dir.parent.name}-{data_dir.name}.log").open("ab")
        command = [*PLAUDIT, "up", "--json", "--data-dir", str(data_dir), "--port", str(free_port()), *options]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self.log, cwd=ROOT, env=own_servers_env() | (env or {}), text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.said()
        self.ready: dict[str, Any] = json.loads(line)
        self.url = str(self.ready["url"])
        secrets_seen.look_at(self.ready)
        secrets_seen.look_at(json.loads((data_dir / "secrets.json").read_text()))

    def get(self, path: str, **options: Any) -> requests.Response:
        return requests.get(self.url + path, timeout=10, **options)

    def post(self, path: str, **options: Any) -> requests.Response:
        answer = requests.post(self.url + path, timeout=10, **options)
        if answer.headers.get("Content-Type") == "application/json":
            secrets_seen.look_at(answer.json())
        return answer

    def token(self) -> str:
        """An access token of the demo's client."""
        auth = (self.ready["client_id"], self.ready["client_secret"])
        answer = self.post("/oauth/token", data={"grant_type": "client_credentials"}, auth=auth)
        return str(answer.json()["access_token"])

    def processes(self) -> dict[str, psutil.Process]:
        """The direct children, by name."""
        found = {}
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if command := child.cmdline():  # a process that is just starting has none yet
                    found[_name(command)] = child
        return found

    def everything(self) -> list[psutil.Process]:
        me = psutil.Process(self.process.pid)
        return [me, *me.children(recursive=True)]

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(how)
        status = self.process.wait(15)
        self.close()
        return status

    def close(self) -> None:
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.log.close()

    def said(self) -> str:
        return Path(self.log.name).read_text(errors="replace")


@contextlib.contextmanager
def running_service(data_dir: Path, *options: str, env: dict[str, str] | None = None) -> Iterator[Service]:
    service = Service(data_dir, *options, env=env)
    try:
        yield service
    finally:
        if service.process.poll() is None:
            service.stop()
        service.close()


def eventually(what: Callable[[], Any], *, within_s: float = 20, every_s: float = 0.05) -> Any:
    """Wait until `what` is true (an error of a server that is down counts as not yet); the last answer."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            answer = what()
        except (requests.RequestException, RedisError, OSError, psutil.Error):
            answer = None
        if answer or time.monotonic() > deadline:
            assert answer, f"not within {within_s} s"
            return answer
        time.sleep(every_s)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _name(command: list[str]) -> str:
    text = " ".join(command)
    for name in ("postgres", "valkey", "gunicorn", "cron", "worker", "web"):
        if name in (Path(command[0]).name if name in {"postgres", "valkey"} else text):
            return {"gunicorn": "live"}.get(name, name)
    return text
