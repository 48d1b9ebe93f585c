"""What the connections of a process share."""

import asyncio
import socket
from typing import Any

from app.server.requests import Request
from tests.app.server.test_connection import CLOSE, bodies_of, echo, receive_all, serving
from tests.service import eventually


def test_above_a_number_of_connections_the_one_that_was_idle_longest_is_closed(logged: Any) -> None:
    busy: list[Request] = []
    with serving(lambda r: busy.append(r) if r.environ["PATH_INFO"] == "/slow" else echo(r)) as served:
        served.site._max_connections = 2
        with served.connect() as first, served.connect() as second:
            eventually(lambda: len(served.site.connections) == 2)
            first.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
            eventually(lambda: busy)
            with served.connect() as third:
                assert receive_all(second) == b"", "it was idle"
                third.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
                eventually(lambda: len(busy) == 2)
                assert served.send(b"") == b"", "nobody is idle"
                served.loop.call_soon_threadsafe(echo, busy[0])
                assert first.recv(1000).endswith(b"GET /slow  ")
                served.loop.call_soon_threadsafe(echo, busy[1])
    assert [line["action"] for line in logged()] == ["connections.full"], "once"


def test_unfinished_requests_of_one_address_lock_no_other_address_out() -> None:
    with serving(echo) as served:
        served.site._max_connections = 3
        flood = [served.connect() for _ in range(3)]
        for client in flood:
            client.sendall(b"GET /never HTTP/1.1\r\nHost: x\r\nX: ")
        eventually(lambda: sum(one.is_receiving for one in served.site.connections) == 3)
        assert served.send(b"") == b"", "the address that has all of them gets no more"
        neighbour = socket.create_connection(("127.0.0.1", served.port), 10, source_address=("127.0.0.2", 0))
        with neighbour:
            neighbour.sendall(b"GET /a HTTP/1.1\r\nHost: x\r\n" + CLOSE)
            assert bodies_of(receive_all(neighbour)) == [b"GET /a  "]
        assert receive_all(flood[0]) == b"", "its oldest connection has made way"
        for client in flood:
            client.close()


def test_a_stop_closes_idle_connections_and_answers_the_others() -> None:
    waiting: list[Request] = []
    with serving(waiting.append) as served:
        idle, busy = served.connect(), served.connect()
        busy.sendall(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n")
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
        first.sendall(b"GET /fails HTTP/1.1\r\nHost: x\r\n" + CLOSE)
        second.sendall(b"GET /a HTTP/1.1\r\nHost: x\r\n" + CLOSE)
        assert receive_all(first).startswith(b"HTTP/1.1 503 ")
        assert bodies_of(receive_all(second)) == [b"GET /a  "]
    assert [line["action"] for line in logged()] == ["request.failed"]
