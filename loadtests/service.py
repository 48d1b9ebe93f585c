"""A complete service to measure: `plaudit up` as a real process, with its own servers and ports."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import requests

from app.run.ports import reserve_port

ROOT = Path(__file__).parents[1]
# Removed from the environment, so that the service uses local servers.
NAMED_SERVERS = ("DATABASE_URL", "REDIS_URL", "PLAUDIT_SERVICE_DATABASE_URL", "PLAUDIT_QUEUE_REDIS_URL")
STOP_WITHIN_S = 30


class NotInTime(Exception):
    """A condition did not come true in time."""


class Service:
    """`plaudit up --json`, started and ready. Its log is in `up.log` beside the data folder."""

    def __init__(self, data_dir: Path, *options: str, **more_env: str) -> None:
        self.data_dir = data_dir
        command = [sys.executable, "-m", "app.cli", "up", "--json", "--data-dir", str(data_dir)]
        command += ["--port", str(reserve_port()), *options]
        env = {name: value for name, value in os.environ.items() if name not in NAMED_SERVERS}
        env |= {"PLAUDIT_LIVE_PORT": str(reserve_port()), **more_env}
        log = data_dir.parent / "up.log"
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=stderr, cwd=ROOT, env=env, text=True
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, log.read_text(errors="replace")
        self.ready: dict[str, Any] = json.loads(line)
        self.url = str(self.ready["url"])

    def post(self, path: str, **options: Any) -> requests.Response:
        return requests.post(self.url + path, timeout=10, **options)

    def token(self) -> str:
        """An access token of the demo's client."""
        auth = (self.ready["client_id"], self.ready["client_secret"])
        answer = self.post("/oauth/token", data={"grant_type": "client_credentials"}, auth=auth)
        return str(answer.json()["access_token"])

    def processes(self) -> list[psutil.Process]:
        """What `plaudit up` has started: servers, API, sockets, workers."""
        return psutil.Process(self._process.pid).children()

    def live_process(self) -> psutil.Process:
        """The process that serves the sockets."""
        return next(child for child in self.processes() if "gunicorn" in " ".join(child.cmdline()))

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.communicate(timeout=STOP_WITHIN_S)


@contextmanager
def running_service(data_dir: Path, *options: str, **more_env: str) -> Iterator[Service]:
    service = Service(data_dir, *options, **more_env)
    try:
        yield service
    finally:
        service.stop()


@contextmanager
def demo(**more_env: str) -> Iterator[Service]:
    """A service with the demo tenant and without its traffic, in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="plaudit-bench-") as folder:
        Path(folder).chmod(0o711)
        with running_service(Path(folder) / "data", "--demo", "--no-traffic", **more_env) as service:
            yield service


def wait_until(condition: Callable[[], Any], *, within_s: float = 20, every_s: float = 0.05) -> None:
    """Wait until the condition is true. It is not while the server cannot be reached."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            if condition():
                return
        except (requests.RequestException, OSError):
            pass
        if time.monotonic() > deadline:
            raise NotInTime(f"not within {within_s} s")
        time.sleep(every_s)
