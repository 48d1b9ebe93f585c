"""Readers of boards: by HTTP with `ETag`, by sockets and by streams. What they see is recorded, to compare versions."""

import contextlib
import json
import random
import threading
import time
from http.client import HTTPConnection
from typing import Any

import websocket

from tests.chaos.callers import Caller, plain_call
from tests.chaos.history import Recorder
from tests.chaos.seen import BOARD_WITH_VALUES
from tests.chaos.world import PAGES, World

BOARDS = [
    ("tenant", "all", "views"),
    ("tenant", "7d", "score"),
    ("space:eng", "all", "likes"),
    ("users", "all", "points"),
    ("public", "30d", "views"),
]
FOLLOWED = BOARDS[:4]
WITHOUT_ROWS = FOLLOWED[1]
TIMEOUT_S = 20.0
PING_EVERY_S = 2.0


class BoardReader:
    """Reads boards at either node, and sends the `ETag` of its last answer about each."""

    def __init__(self, world: World, call: Caller, rng: random.Random) -> None:
        self.world, self.call, self.rng = world, call, rng
        self._tags: dict[str, str] = {}

    def step(self) -> None:
        scope, window, metric = self.rng.choice(BOARDS)
        topic = f"{scope}:{window}:{metric}"
        headers = {"If-None-Match": self._tags[topic]} if topic in self._tags else {}
        used = self.world.client.get()
        number_of_rows = len(PAGES) + 40
        answer = self.call(
            "read",
            self.rng.choice("ab"),
            "GET",
            f"/api/v1/leaderboards?scope={scope}&window={window}&metric={metric}&limit={number_of_rows}",
            token=used,
            headers=headers,
            keep=("version", "source", "items") if topic == "tenant:all:views" else ("version", "source"),
            topic=topic,
            tagged=bool(headers),
        )
        if answer.status == 200:
            self._tags[topic] = answer.headers.get("etag", "")
        elif answer.status == 401:
            self.world.client.renew(used)


def ticket(world: World, node: str) -> str | None:
    """A ticket for a socket, if the node gives one."""
    connection = HTTPConnection("127.0.0.1", world.ports[node], timeout=5)
    try:
        headers = {"Authorization": f"Bearer {world.client.get()}"}
        status, body, _ = plain_call(connection, "POST", "/api/v1/live/tickets", {}, headers)
    finally:
        connection.close()
    return str(body["ticket"]) if status == 201 else None


def subscription(topic: tuple[str, str, str], top: int | None = None) -> str:
    scope, window, metric = topic
    return json.dumps(
        {"op": "subscribe", "scope": scope, "window": window, "metric": metric} | ({"top": top} if top else {})
    )


class _Follower:
    """A reader that follows boards on one connection after the other."""

    kind = ""

    def __init__(self, world: World, recorder: Recorder, node: str, port: int, stopping: threading.Event) -> None:
        self.world, self.recorder, self.node, self.port, self.stopping = world, recorder, node, port, stopping
        self._opened = 0

    @property
    def name(self) -> str:
        """The name of its newest connection."""
        return f"{self.kind} {self.node} {self._opened}"

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                self._follow()
            except Exception:  # noqa: BLE001  a library for clients raises many kinds when its server is killed
                self.stopping.wait(0.3)
            finally:
                if not self.stopping.is_set():
                    self.recorder.note("closed", reader=self.name)

    def _follow(self) -> None:
        raise NotImplementedError


class SocketReader(_Follower):
    """Follows boards by a socket, and opens another one when it is closed."""

    kind = "socket"

    def _follow(self) -> None:
        ticket_ = ticket(self.world, self.node)
        if ticket_ is None:
            raise ConnectionError
        address = f"ws://127.0.0.1:{self.port}/ws/leaderboards?ticket={ticket_}"
        raw = websocket.create_connection(address, timeout=TIMEOUT_S, suppress_origin=True)
        self._opened += 1
        with contextlib.closing(raw):
            for topic in FOLLOWED:
                raw.send(subscription(topic, None if topic == WITHOUT_ROWS else 10))
            raw.settimeout(PING_EVERY_S)
            heard_at = time.monotonic()
            while not self.stopping.is_set():
                try:
                    message = json.loads(raw.recv())
                except websocket.WebSocketTimeoutException:
                    if time.monotonic() - heard_at > TIMEOUT_S:  # a client does not wait for ever
                        return
                    raw.send('{"op": "ping"}')
                    continue
                heard_at = time.monotonic()
                record_frame(self.recorder, self.name, self.node, message)


class StreamReader(_Follower):
    """Follows boards by a stream that it resumes with `Last-Event-ID`, as browsers do."""

    kind = "stream"
    _path = ""
    _last_id = ""

    def _follow(self) -> None:
        if not self._last_id:
            ticket_ = ticket(self.world, self.node)
            if ticket_ is None:
                raise ConnectionError
            topics = "&".join(f"topic={':'.join(topic)}" for topic in FOLLOWED)
            self._path = f"/api/v1/live/events?{topics}&top=5&ticket={ticket_}"
        connection = HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        headers = {"Last-Event-ID": self._last_id} if self._last_id else {}
        with contextlib.closing(connection):
            connection.request("GET", self._path, headers=headers)
            answer = connection.getresponse()
            if answer.status != 200:
                if answer.status < 500:
                    self._last_id = ""
                raise ConnectionError
            self._opened += 1
            while not self.stopping.is_set():
                line = answer.readline().decode().rstrip("\n")
                if line.startswith("id: "):
                    self._last_id = line.removeprefix("id: ")
                elif line.startswith("data: "):
                    record_frame(self.recorder, self.name, self.node, json.loads(line.removeprefix("data: ")))
                elif not line and answer.isclosed():
                    raise ConnectionError


def record_frame(recorder: Recorder, name: str, node: str, message: dict[str, Any]) -> None:
    fields: dict[str, Any] = {
        field: message[field] for field in ("topic", "version", "seq", "code") if field in message
    }
    if message["type"] == "top" and message["topic"] == BOARD_WITH_VALUES:
        fields["views"] = {str(row["page"]["id"]): row["value"] for row in message["items"] if row["page"]}
    recorder.note("frame", reader=name, node=node, type=message["type"], **fields)
