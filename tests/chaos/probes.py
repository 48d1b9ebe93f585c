"""Probes of each node, several times a second: a write, a read, a like that shows on a board, and a new socket.

Each sample says when it began and ended, and whether it succeeded. `report` computes recovery from them.
"""

import contextlib
import json
import random
import threading
import time
import uuid
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from typing import Any

import websocket

from tests.chaos.callers import Caller, plain_call
from tests.chaos.history import OK, Recorder
from tests.chaos.readers import FOLLOWED, subscription, ticket
from tests.chaos.site import NODES
from tests.chaos.world import USERS, World

TIMEOUT_S = 1.5
EVERY_S = {"write": 0.15, "read": 0.15, "board": 0.3, "socket": 0.7}
# While it fails.
AGAIN_AFTER_S = 0.05
BOARD_WITHIN_S = 60.0
POLL_S = 0.05
COLUMNS = tuple(EVERY_S)


class Probes:
    """Runs them in threads until it is stopped."""

    def __init__(self, world: World, recorder: Recorder, live_ports: dict[str, int], seed: int) -> None:
        self.world, self.recorder, self.live_ports = world, recorder, live_ports
        self._stopping = threading.Event()
        self._rng = random.Random(f"probes {seed}")
        self._threads = [
            threading.Thread(target=self._run, args=[column, node], name=f"probe {column} {node}")
            for column in COLUMNS
            for node in NODES
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(BOARD_WITHIN_S)

    def _run(self, column: str, node: str) -> None:
        probe: Callable[[str, Caller], bool] = getattr(self, f"_{column}")
        call = Caller(self.recorder, self.world.ports, by=f"probe {column} {node}", timeout_s=TIMEOUT_S)
        while not self._stopping.is_set():
            began = time.time()
            try:
                is_good = probe(node, call)
            except (OSError, HTTPException, ValueError, websocket.WebSocketException):
                is_good = False
            if self._stopping.is_set():  # it may have been interrupted
                return
            self.recorder.note("sample", column=column, node=node, began=began, ended=time.time(), ok=is_good)
            call.drop(node)  # a caller who comes anew
            self._stopping.wait(EVERY_S[column] if is_good else AGAIN_AFTER_S)

    def _write(self, node: str, call: Caller) -> bool:
        event = {"type": "view", "page": f"probe-{node}", "id": uuid.UUID(int=self._rng.getrandbits(128)).hex}
        answer = call(
            "batch",
            node,
            "POST",
            f"/api/v1/pages/probe-{node}/views",
            token=self.world.client.get(),
            body={"id": event["id"]},
            keep=("accepted", "duplicates", "rejected"),
            events=[event],
        )
        return answer.phase == OK

    def _read(self, node: str, call: Caller) -> bool:
        path = "/api/v1/leaderboards?scope=space:ops&window=7d&metric=likes"
        return call("other", node, "GET", path, token=self.world.client.get()).phase == OK

    def _board(self, node: str, call: Caller) -> bool:
        """A like that was acknowledged is on the board."""
        page, user = f"probe-{node}", USERS[0]
        for liked in (True, False):
            method, path = "PUT" if liked else "DELETE", f"/api/v1/pages/{page}/likes/{user}"
            token = self.world.client.get()
            fields: dict[str, Any] = {"page": page, "user": user, "liked": liked}
            if call("like", node, method, path, token=token, keep=("liked",), **fields).phase != OK:
                return False
            deadline = time.monotonic() + BOARD_WITHIN_S
            while self._likes_of(page, node) != int(liked):
                if time.monotonic() > deadline or self._stopping.is_set():
                    return False
                time.sleep(POLL_S)
        return True

    def _likes_of(self, page: str, node: str) -> int | None:
        path = f"/api/v1/leaderboards?scope=tenant&window=all&metric=likes&members={page}"
        headers = {"Authorization": f"Bearer {self.world.client.get()}"}
        connection = HTTPConnection("127.0.0.1", self.world.ports[node], timeout=TIMEOUT_S)
        with contextlib.closing(connection), contextlib.suppress(OSError, HTTPException):
            status, body, _ = plain_call(connection, "GET", path, None, headers)
            if status == 200:
                return int(body["items"][0]["value"]) if body["items"] else 0
        return None

    def _socket(self, node: str, _call: Caller) -> bool:
        """A new socket that follows a board."""
        ticket_ = ticket(self.world, node)
        if ticket_ is None:
            return False
        address = f"ws://127.0.0.1:{self.live_ports[node]}/ws/leaderboards?ticket={ticket_}"
        with contextlib.closing(websocket.create_connection(address, timeout=TIMEOUT_S, suppress_origin=True)) as raw:
            raw.send(subscription(FOLLOWED[0]))
            return bool(json.loads(raw.recv())["type"] == "subscribed")
