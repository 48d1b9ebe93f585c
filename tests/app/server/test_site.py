"""What the connections of a process share."""

import asyncio
from typing import Any

import pytest

from app.server.requests import Request
from tests.app.server.test_connection import CLOSE, Served, bodies_of, echo, receive_all, serving
from tests.service import eventually


@pytest.fixture(name="served")
def _served() -> Any:
    with serving(echo) as served:
        yield served


def test_above_a_number_of_connections_the_next_is_closed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.site, "_max_connections", 2)
    with served.connect(), served.connect():
        eventually(lambda: len(served.site.connections) == 2)
        assert served.send(b"") == b""
    eventually(lambda: not served.site.connections)
    assert bodies_of(served.send(b"GET /a HTTP/1.1\r\n" + CLOSE)) == [b"GET /a  "]


def test_a_stop_closes_idle_connections_and_answers_the_others() -> None:
    waiting: list[Request] = []
    with serving(waiting.append) as served:
        idle, busy = served.connect(), served.connect()
        busy.sendall(b"GET /a HTTP/1.1\r\n\r\n")
        eventually(lambda: waiting)
        stopping = asyncio.run_coroutine_threadsafe(served.site.stop(), served.loop)
        with idle:
            assert idle.recv(1) == b""
        assert not stopping.done()
        served.loop.call_soon_threadsafe(echo, waiting[0])
        with busy:
            received = receive_all(busy)
        assert b"Connection: close" in received
        assert bodies_of(received) == [b"GET /a  "]
        stopping.result(10)


def test_a_request_that_cannot_be_handled_is_refused_and_stops_no_other(logged: Any) -> None:
    def handle(request: Request) -> None:
        if request.environ["PATH_INFO"] == "/fails":
            raise RuntimeError("can't start new thread")
        echo(request)

    with serving(handle) as served, served.connect() as first, served.connect() as second:
        first.sendall(b"GET /fails HTTP/1.1\r\n" + CLOSE)
        second.sendall(b"GET /a HTTP/1.1\r\n" + CLOSE)
        assert receive_all(first).startswith(b"HTTP/1.1 503 ")
        assert bodies_of(receive_all(second)) == [b"GET /a  "]
    assert [line["action"] for line in logged()] == ["request.failed"]
