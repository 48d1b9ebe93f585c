"""`plaudit live` as a real process for a test, and clients that follow boards there."""

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from typing import Any, Self

import requests
import websocket

from app.run.data_folder import Addresses
from app.run.ports import reserve_port
from app.settings import Settings
from tests import secrets_seen
from tests.people import Caller
from tests.secrets_seen import LOG_FOLDER
from tests.service import PLAUDIT, ROOT, eventually


class Live:
    """One live process, on the servers of the test."""

    def __init__(self, settings: Settings, addresses: Addresses, **env: str) -> None:
        self.port = reserve_port()
        self.url = f"http://127.0.0.1:{self.port}"
        LOG_FOLDER.mkdir(parents=True, exist_ok=True)
        self.log = (LOG_FOLDER / f"live-{self.port}.log").open("ab")
        own = {
            "DATABASE_URL": addresses.database_url,
            "PLAUDIT_SERVICE_DATABASE_URL": addresses.service_database_url,
            "REDIS_URL": addresses.redis_url,
            "PLAUDIT_SECRET_KEY": settings.secret_key or "",
            "PROMETHEUS_MULTIPROC_DIR": str(LOG_FOLDER),
        }
        self.process = subprocess.Popen(
            [*PLAUDIT, "live", "--port", str(self.port)],
            stdout=self.log,
            stderr=self.log,
            cwd=ROOT,
            env=os.environ | own | env,
        )
        try:
            eventually(lambda: requests.get(f"{self.url}/health/live", timeout=1).ok, within_s=60)
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(10)
        self.log.close()

    def log_text(self) -> str:
        with open(self.log.name) as log:  # noqa: PTH123
            return log.read()

    def connect(self, path: str = "/ws/leaderboards", **options: Any) -> "Socket":
        options.setdefault("suppress_origin", True)
        address = f"ws://127.0.0.1:{self.port}{path}"
        return Socket(websocket.create_connection(address, timeout=5, **options))

    def refusal(self, path: str, **options: Any) -> tuple[int, str]:
        """The status and code of a handshake that is refused."""
        try:
            self.connect(path, **options).close()
        except websocket.WebSocketBadStatusException as error:
            return error.status_code, json.loads(error.resp_body)["code"]
        return 101, ""

    def follow(self, caller: Caller, **board: Any) -> "Socket":
        socket = self.connect(f"/ws/leaderboards?ticket={ticket_for(caller)}")
        socket.send(op="subscribe", **board)
        return socket


class Socket:
    def __init__(self, raw: Any) -> None:
        self.raw = raw

    def send(self, **message: Any) -> None:
        self.raw.send(json.dumps(message))

    def read(self, within_s: float = 5) -> dict[str, Any]:
        self.raw.settimeout(within_s)
        message: dict[str, Any] = json.loads(self.raw.recv())
        return message

    def read_until(self, kind: str, within_s: float = 10, **fields: Any) -> dict[str, Any]:
        """The next message of this kind with these fields; earlier ones are skipped."""
        deadline = time.monotonic() + within_s
        while True:
            message = self.read(max(0.01, deadline - time.monotonic()))
            if message["type"] == kind and all(message.get(name) == value for name, value in fields.items()):
                return message

    def silent_for(self, seconds: float) -> bool:
        try:
            message = self.read(seconds)
        except websocket.WebSocketTimeoutException:
            return True
        raise AssertionError(message)

    def close_code(self, within_s: float | None = 5) -> int:
        """The code with which the server closes the socket."""
        self.raw.settimeout(within_s)
        while True:
            opcode, data = self.raw.recv_data(control_frame=True)
            if opcode == websocket.ABNF.OPCODE_CLOSE:
                return int.from_bytes(data[:2])

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.raw.close(timeout=0)


def ticket_for(caller: Caller) -> str:
    answer = caller("POST", "/api/v1/live/tickets")
    assert answer.status_code == 201, answer.text
    ticket = str(answer.get_json()["ticket"])
    secrets_seen.collect({"ticket": ticket})
    return ticket


def events(answer: requests.Response) -> Iterator[tuple[str, dict[str, Any]]]:
    """Server-Sent Events as they arrive: id and message."""
    event_id = ""
    for line in answer.iter_lines(chunk_size=1, decode_unicode=True):
        if line.startswith("id: "):
            event_id = line.removeprefix("id: ")
        elif line.startswith("data: "):
            yield event_id, json.loads(line.removeprefix("data: "))
