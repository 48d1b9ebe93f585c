"""Calls of the API that are recorded: over kept connections, through the clients' proxies, to either node."""

import http.client
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from tests import secrets_seen
from tests.chaos.history import FAILED, OK, UNKNOWN, Recorder

# Longer than any answer may take.
TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Answer:
    status: int | None
    body: Any
    headers: dict[str, str] = field(default_factory=dict)
    phase: str = UNKNOWN

    @property
    def is_ok(self) -> bool:
        return self.phase == OK

    @property
    def is_unknown(self) -> bool:
        return self.phase == UNKNOWN


def phase_of(status: int) -> str:
    """503 is unknown: a commit whose answer was lost is answered with it."""
    if status < 400:
        return OK
    return FAILED if status < 500 else UNKNOWN


def plain_call(
    connection: http.client.HTTPConnection, method: str, path: str, body: Any, headers: dict[str, str]
) -> tuple[int, Any, dict[str, str]]:
    """One request on this connection: status, JSON and headers. OSError or HTTPException if there is no answer."""
    data = None
    if path == "/oauth/token":
        data, headers = urlencode(body).encode(), {"Content-Type": "application/x-www-form-urlencoded", **headers}
    elif body is not None:
        data, headers = json.dumps(body).encode(), {"Content-Type": "application/json", **headers}
    connection.request(method, path, body=data, headers=headers)
    answer = connection.getresponse()
    raw = answer.read()
    try:
        parsed = json.loads(raw) if raw else None
    except ValueError:
        parsed = None
    secrets_seen.collect(parsed)
    return answer.status, parsed, {name.lower(): value for name, value in answer.getheaders()}


class Caller:
    """One thread's connections. `ports` are those of the clients' proxies, by node."""

    def __init__(self, recorder: Recorder, ports: dict[str, int], *, by: str, timeout_s: float = TIMEOUT_S) -> None:
        self.recorder = recorder
        self.by = by
        self._ports = ports
        self._timeout_s = timeout_s
        self._connections: dict[str, http.client.HTTPConnection] = {}

    def __call__(
        self,
        op: str,
        node: str,
        method: str,
        path: str,
        *,
        token: str = "",
        body: Any = None,
        headers: dict[str, str] | None = None,
        keep: Sequence[str] = (),
        **fields: Any,
    ) -> Answer:
        """Ask and record. `keep`: the fields of the answer that the checker needs; `fields`: those of the call."""
        number = self.recorder.invoke(op, node=node, by=self.by, **fields)
        sent = {**({"Authorization": f"Bearer {token}"} if token else {}), **(headers or {})}
        began = time.monotonic()
        try:
            status, parsed, received = plain_call(self._connection(node), method, path, body, sent)
        except (OSError, http.client.HTTPException) as error:
            self.drop(node)
            phase = FAILED if isinstance(error, ConnectionRefusedError) else UNKNOWN
            took_s = round(time.monotonic() - began, 3)
            self.recorder.finish(number, phase, status=None, error=type(error).__name__, took_s=took_s)
            return Answer(None, None, phase=phase)
        phase = phase_of(status)
        kept = {name: parsed.get(name) for name in keep} if isinstance(parsed, dict) and phase == OK else None
        code = parsed.get("code") if isinstance(parsed, dict) and status >= 400 else None
        took_s = round(time.monotonic() - began, 3)
        self.recorder.finish(number, phase, status=status, code=code, answer=kept, took_s=took_s)
        return Answer(status, parsed, received, phase)

    def drop(self, node: str) -> None:
        """Close the connection: after an error its next answer could be that of another call."""
        if connection := self._connections.pop(node, None):
            connection.close()

    def _connection(self, node: str) -> http.client.HTTPConnection:
        if node not in self._connections:
            self._connections[node] = http.client.HTTPConnection(
                "127.0.0.1", self._ports[node], timeout=self._timeout_s
            )
        return self._connections[node]


class Token:
    """An access token that callers share, and get again when it is refused."""

    def __init__(self, ports: dict[str, int], path: str, body: dict[str, str]) -> None:
        self._ports, self._path, self._body = ports, path, body
        self._lock = threading.Lock()
        self.value = ""

    def get(self) -> str:
        """The token, asked for the first time. It is kept until `renew`."""
        with self._lock:
            return self.value or self._ask()

    def renew(self, refused: str) -> None:
        """The token was refused: ask for another one, unless another thread has."""
        with self._lock:
            if self.value == refused:
                self._ask()

    def _ask(self) -> str:
        for node in ("a", "b") * 30:
            connection = http.client.HTTPConnection("127.0.0.1", self._ports[node], timeout=5)
            try:
                status, parsed, _ = plain_call(connection, "POST", self._path, self._body, {})
            except (OSError, http.client.HTTPException):
                status, parsed = 0, None
            finally:
                connection.close()
            if status == 200:
                self.value = str(parsed["access_token"])
                return self.value
            time.sleep(0.5)
        return self.value
