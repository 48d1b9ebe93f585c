"""Two nodes behind the documented nginx are restarted one after the other under load: no caller notices."""

import contextlib
import http.client
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from socket import SHUT_RDWR
from typing import Self

import pytest
import requests
import websocket

from tests.live import Socket
from tests.servers.nodes import PAGES, Client, Node, counted, shared_env
from tests.servers.postgres import Postgres
from tests.servers.proxy import Proxy
from tests.servers.redis_cluster import RedisServer
from tests.service import eventually

CALLERS = 50
SOCKETS = 200
PAUSE_S = 0.1


@pytest.fixture
def nodes(folder: Path, postgres: Postgres, redis: RedisServer) -> Iterator[tuple[Proxy, list[Node]]]:
    proxy = Proxy(folder / "nginx")
    public = {"PLAUDIT_PUBLIC_URL": proxy.url, "PLAUDIT_PROXY_HOPS": "1", "PLAUDIT_WEB_PROCESSES": "2"}
    env = shared_env(database=postgres.url(), redis=redis.url, PLAUDIT_DRAIN_S="", **public)  # the default
    with (
        Node(folder / "first", env, "--demo", "--no-traffic") as first,
        Node(folder / "second", env) as second,
    ):
        proxy.nodes = [(node.port, node.live_port) for node in (first, second)]
        with proxy:
            yield proxy, [first, second]


class Callers:
    """Each keeps its connection to the proxy, and sends every request once."""

    def __init__(self, proxy: Proxy, token: str) -> None:
        self.answers: Counter[tuple[str, int | str]] = Counter()
        self._port = proxy.port
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._run = secrets.token_hex(4)
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._send, args=[number]) for number in range(CALLERS)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def wait_for(self, more: int) -> None:
        goal = self.answers.total() + more
        eventually(lambda: self.answers.total() >= goal)

    def _send(self, caller: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        with contextlib.closing(connection):
            number = 0
            while not self._stopping.is_set():
                number += 1
                page = f"/api/v1/pages/{PAGES[number % len(PAGES)]}"
                # A view without an id: sent twice, it counts twice.
                self._ask(connection, "view", "POST", f"{page}/views")
                self._ask(connection, "like", "PUT", f"{page}/likes/{self._run}-{caller}-{number}")
                self._ask(connection, "board", "GET", "/api/v1/leaderboards?scope=tenant&window=7d&metric=views")
                self._ask(connection, "settings", "GET", "/api/v1/settings")

    def _ask(self, connection: http.client.HTTPConnection, kind: str, method: str, path: str) -> None:
        outcome: int | str
        try:
            connection.request(method, path, body=None if method == "GET" else b"{}", headers=self._headers)
            answer = connection.getresponse()
            answer.read()
            outcome = answer.status
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            outcome = type(error).__name__
        with self._lock:
            self.answers[kind, outcome] += 1
        time.sleep(PAUSE_S)


class Follower:
    """A client that opens a socket through the proxy, and again whenever it is closed."""

    def __init__(self, client: Client) -> None:
        # The codes with which the server closed the socket, and the statuses of handshakes that it refused.
        self.codes: list[int] = []
        self.refused: list[int | str] = []
        self.is_open = threading.Event()
        self._client = client
        self._socket: Socket | None = None
        self._is_over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over:
            try:
                answer = self._client("POST", "/api/v1/live/tickets", timeout_s=30)
                if answer.status_code == 201:
                    self._follow(answer.json()["ticket"])
                else:
                    self.refused.append(answer.status_code)
            except websocket.WebSocketBadStatusException as error:
                self.refused.append(error.status_code)
            except (OSError, requests.RequestException, websocket.WebSocketException) as error:
                self.refused.append(type(error).__name__)
            time.sleep(PAUSE_S)

    def _follow(self, ticket: str) -> None:
        address = self._client.url.replace("http", "ws") + f"/ws/leaderboards?ticket={ticket}"
        socket = Socket(websocket.create_connection(address, timeout=30, suppress_origin=True))
        self._socket = socket
        self.is_open.set()
        try:
            self.codes.append(socket.close_code(within_s=None))
        finally:
            self.is_open.clear()
            socket.close()

    def close(self) -> None:
        self._is_over = True
        if self._socket is not None and self._socket.raw.sock is not None:
            with contextlib.suppress(OSError):
                self._socket.raw.sock.shutdown(SHUT_RDWR)


def test_a_rolling_restart_costs_no_request_and_sockets_come_back(
    nodes: tuple[Proxy, list[Node]], postgres: Postgres
) -> None:
    proxy, both = nodes
    client = Client(proxy.url, both[0].ready)
    client.prepare()
    before = counted(postgres)
    followers = [Follower(client) for _ in range(SOCKETS)]
    try:
        eventually(lambda: all(one.is_open.is_set() for one in followers))
        with Callers(proxy, client.token) as callers:
            callers.wait_for(500)
            for node in both:
                node.restart()
                eventually(lambda: all(one.is_open.is_set() for one in followers))
            callers.wait_for(500)
        codes = Counter(code for one in followers for code in one.codes)
        told = [bool(one.codes) for one in followers]
        refused = Counter(status for one in followers for status in one.refused)
    finally:
        for one in followers:
            one.close()
    assert {outcome for _, outcome in callers.answers} == {200, 202}, callers.answers
    acknowledged = Counter(view=callers.answers["view", 202], like=callers.answers["like", 200])
    assert counted(postgres) - before == acknowledged
    assert set(codes) == {1012}, codes
    assert all(told), "all were at a node that was restarted"
    assert set(refused) <= {429}, refused  # all come back at once, perhaps to a busy machine
