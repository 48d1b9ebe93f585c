"""One client's connection: HTTP/1.1 as clients send it, and bounds for everything that they may send."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import orjson
import pytest
import uvloop

from app.server import connection, processes, site
from app.server.answers import head_of
from app.server.connection import Connection
from app.server.requests import Request
from app.server.site import Site
from tests.service import eventually

Handle = Callable[[Request], None]


def answer_with(body: bytes, *, status: str = "200 OK") -> tuple[bytes, bytes]:
    return head_of(status, [("Content-Length", str(len(body)))]), body


def echo(request: Request) -> None:
    """Method, path, query and body."""
    environ = request.environ
    said = [environ["REQUEST_METHOD"], environ["PATH_INFO"], environ["QUERY_STRING"]]
    body = request.body.read() if request.body.is_complete else b"(incomplete)"
    request.answer(*answer_with(" ".join(said).encode("latin-1") + b" " + body))


class Served:
    """A site in a thread of its own, and raw connections to it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, site: Site, port: int) -> None:
        self.loop = loop
        self.site = site
        self.port = port

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)

    def send(self, *pieces: bytes, half_close: bool = False) -> bytes:
        """Everything that is answered until the server closes."""
        with self.connect() as client:
            for piece in pieces:
                client.sendall(piece)
                time.sleep(0.01)
            if half_close:
                client.shutdown(socket.SHUT_WR)
            return receive_all(client)


def receive_all(client: socket.socket) -> bytes:
    received = b""
    try:
        while piece := client.recv(65_536):
            received += piece
    except ConnectionResetError:
        pass
    return received


@contextmanager
def serving(handle: Handle, *, max_slow_bodies: int = 4) -> Iterator[Served]:
    loop = uvloop.new_event_loop()
    made: Future[Served] = Future()
    stop: list[Callable[[], None]] = []

    async def serve() -> None:
        shared = Site(loop, handle, max_slow_bodies=max_slow_bodies, max_connections=100)
        listening = processes.listen("127.0.0.1", 0, shares_port=False)
        server = await loop.create_server(lambda: Connection(shared), sock=listening)
        stopped = asyncio.Event()
        stop.append(stopped.set)
        made.set_result(Served(loop, shared, listening.getsockname()[1]))
        await stopped.wait()
        server.close()
        await asyncio.wait_for(shared.stop(), 5)

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        yield made.result(10)
    finally:
        loop.call_soon_threadsafe(stop[0])
        thread.join(10)
        assert not thread.is_alive()
        loop.close()


@pytest.fixture
def served() -> Iterator[Served]:
    with serving(echo) as served:
        yield served


def bodies_of(received: bytes) -> list[bytes]:
    """Of answers one after the other, each with its length."""
    bodies = []
    while received:
        head, _, rest = received.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        bodies.append(rest[:length])
        received = rest[length:]
    return bodies


CLOSE = b"Connection: close\r\n\r\n"


def test_requests_of_a_connection_are_answered_in_their_order(served: Served) -> None:
    first, second = (
        b"GET /a?b=%41 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /%C3%A4%2F HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nxyz",
    )
    received = served.send(first + second + b"GET /last HTTP/1.1\r\nHost: x\r\n" + CLOSE)
    assert bodies_of(received) == [b"GET /a b=%41 ", b"POST /\xc3\xa4/  xyz", b"GET /last  "]
    assert received.count(b"\r\nDate: ") == 3
    assert received.count(b"\r\nConnection: close\r\n") == 1


def test_a_request_may_come_byte_by_byte(served: Served) -> None:
    request = (
        b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n" + CLOSE + b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
    )
    with served.connect() as client:
        for place in range(len(request)):
            client.sendall(request[place : place + 1])
        assert bodies_of(receive_all(client)) == [b"POST /a  abc"]


def test_answers_wait_for_each_other_although_later_ones_are_ready() -> None:
    waiting: list[Request] = []

    def handle(request: Request) -> None:
        if request.environ["PATH_INFO"] == "/slow":
            waiting.append(request)
        else:
            echo(request)

    with serving(handle) as served, served.connect() as client:
        client.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\nGET /quick HTTP/1.1\r\nHost: x\r\n" + CLOSE)
        eventually(lambda: waiting)
        client.settimeout(0.1)
        with pytest.raises(TimeoutError):
            client.recv(1)
        client.settimeout(10)
        served.loop.call_soon_threadsafe(echo, waiting[0])
        assert bodies_of(receive_all(client)) == [b"GET /slow  ", b"GET /quick  "]


def test_who_sends_many_requests_before_reading_is_answered_up_to_a_bound(served: Served) -> None:
    for _ in range(5):
        answers = bodies_of(served.send(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n" * 5_000))
        assert answers == [b"GET /a  "] * (connection.MAX_PIPELINED + 1), "which all arrive, although more was sent"


def test_a_client_that_reads_nothing_is_handled_no_further_and_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_STALLED_S", 0.2)
    monkeypatch.setattr(site, "SWEEP_EVERY_S", 0.05)
    handled: list[Request] = []
    large = 50_000_000  # more than the kernel buffers, which keeps up to some 38 million bytes of a connection

    def handle(request: Request) -> None:
        handled.append(request)
        request.answer(*answer_with(b"x" * large))

    with serving(handle) as served, served.connect() as client:
        client.sendall(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n" * 3)
        eventually(lambda: handled)
        eventually(lambda: not served.site.connections)
        assert len(handled) == 1, "the others would be answered into memory"
        assert len(receive_all(client)) < large


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),  # TLS
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX : a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: a\r\n b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: a\x00\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET / HTTP/3.7\r\n\r\n", 400),
        (b"GET nothing HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + b"\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\nabc", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X-%d: a\r\n" % number for number in range(101)) + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 300_000, 431),
        (b"GET /" + b"a" * 300_000, 414),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 66_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"a" * 66_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: " + b"a" * 300_000, 431),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: a\r\n" * 101 + b"\r\n", 431),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;x=" + b"a" * 300_000, 431),
    ],
)
def test_what_is_no_request_is_refused_and_the_connection_closed(served: Served, request_: bytes, status: int) -> None:
    received = served.send(request_)
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), received
    assert b"Content-Type: application/problem+json" in head
    assert b"Connection: close" in head
    problem = orjson.loads(body)
    assert (problem["status"], problem["code"]) == (status, "malformed" if status == 400 else "too_large")


def test_what_follows_a_chunked_body_is_not_taken_for_headers() -> None:
    seen: list[dict[str, Any]] = []

    def handle(request: Request) -> None:
        seen.append(request.environ)
        echo(request)

    chunked = (
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
        + CLOSE
        + b"1\r\na\r\n0\r\nAuthorization: stolen\r\n\r\n"
    )
    with serving(handle) as served:
        assert bodies_of(served.send(chunked)) == [b"POST /  a"]
    assert "HTTP_AUTHORIZATION" not in seen[0]


def test_an_old_client_gets_its_answer_and_the_end_of_the_connection(served: Served) -> None:
    assert bodies_of(served.send(b"GET /a HTTP/1.0\r\n\r\n")) == [b"GET /a  "]
    assert bodies_of(served.send(b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")) == [b"GET /a  "]


@pytest.mark.parametrize("pieces", [1, 7])
@pytest.mark.parametrize(
    ("framing", "body"), [(b"Content-Length: 5", b"abcde"), (b"Transfer-Encoding: chunked", b"5\r\nabcde\r\n0\r\n\r\n")]
)
def test_who_offers_another_protocol_is_answered_in_this_one(
    served: Served, framing: bytes, body: bytes, pieces: int
) -> None:
    upgrade = b" /a HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n"
    sent = (
        b"POST"
        + upgrade
        + framing
        + b"\r\n\r\n"
        + body
        + b"GET"
        + upgrade
        + b"\r\nGET /b HTTP/1.1\r\nHost: x\r\n"
        + CLOSE
    )
    step = -(-len(sent) // pieces)
    received = served.send(*(sent[start : start + step] for start in range(0, len(sent), step)))
    assert bodies_of(received) == [b"POST /a  abcde", b"GET /a  ", b"GET /b  "]


def test_a_client_that_offers_another_protocol_may_end_the_connection(served: Served) -> None:
    offer = b"POST /a HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nContent-Length: 2\r\n"
    for options in (b"Upgrade, close", b"close, upgrade", b"Upgrade\r\nConnection: Close"):
        request = offer + b"Connection: " + options + b"\r\n\r\nab"
        assert bodies_of(served.send(request)) == [b"POST /a  ab"], "and the end, without which the client would wait"


def test_nothing_is_upgraded(served: Served) -> None:
    upgrade = b"GET /a HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    assert bodies_of(served.send(upgrade, half_close=True)) == [b"GET /a  "]
    assert served.send(b"CONNECT a:1 HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 400 ")


def test_who_stops_sending_gets_the_answer(served: Served) -> None:
    assert bodies_of(served.send(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n", half_close=True)) == [b"GET /a  "]
    assert served.send(b"GET /a HT", half_close=True) == b""
    early = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab"
    assert bodies_of(served.send(early, half_close=True)) == [b"POST /a  (incomplete)"]


def test_a_head_has_no_body(served: Served) -> None:
    received = served.send(b"HEAD /a HTTP/1.1\r\nHost: x\r\n" + CLOSE)
    assert b"Content-Length: 9" in received
    assert received.endswith(b"\r\n\r\n")


def test_a_request_that_takes_too_long_is_refused_or_closed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_RECEIVE_S", 0.1)
    monkeypatch.setattr(connection, "MAX_IDLE_S", 0.3)
    monkeypatch.setattr(site, "SWEEP_EVERY_S", 0.05)
    assert served.send(b"GET /a HTTP/1.1\r\nHost: x\r\nX: ") == b"", "a head that never ends"
    body = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab"
    assert bodies_of(served.send(body)) == [b"POST /a  (incomplete)"]
    assert served.send(b"") == b"", "a connection that sends nothing"
    assert bodies_of(served.send(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n")) == [b"GET /a  "], (
        "and one that sends nothing more"
    )


def test_who_asks_first_is_told_to_send_the_body(served: Served) -> None:
    with served.connect() as client:
        client.sendall(b"POST /a HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n" + CLOSE)
        assert client.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"ab")
        assert bodies_of(receive_all(client)) == [b"POST /a  ab"]


def test_nobody_is_told_to_send_a_body_in_the_middle_of_another_answer() -> None:
    waiting: list[Request] = []
    with serving(lambda r: waiting.append(r) if r.environ["PATH_INFO"] == "/slow" else echo(r)) as served:
        with served.connect() as client:
            client.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
            client.sendall(b"POST /a HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n" + CLOSE)
            eventually(lambda: waiting)
            time.sleep(0.05)
            served.loop.call_soon_threadsafe(echo, waiting[0])
            received = b""
            while not received.endswith(b"100 Continue\r\n\r\n"):
                received += client.recv(1000)
            assert bodies_of(received.partition(b"HTTP/1.1 100")[0]) == [b"GET /slow  "]
            client.sendall(b"ab")
            assert bodies_of(receive_all(client)) == [b"POST /a  ab"]
        old = b"POST /a HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nab"
        assert bodies_of(served.send(old)) == [b"POST /a  ab"], "an old client does not know it"


def test_deadlines_are_kept_whatever_a_client_leaves_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that are not read, many requests behind them, and a body that never comes."""
    monkeypatch.setattr(connection, "MAX_STALLED_S", 0.2)
    monkeypatch.setattr(connection, "MAX_RECEIVE_S", 0.2)
    monkeypatch.setattr(site, "SWEEP_EVERY_S", 0.05)
    with serving(lambda request: request.answer(*answer_with(b"x" * 4_000_000))) as served:
        for ahead in (1, connection.MAX_PIPELINED - 1, connection.MAX_PIPELINED, connection.MAX_PIPELINED + 1):
            with served.connect() as client:
                client.sendall(
                    b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n" * ahead
                    + b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"
                )
                eventually(lambda: served.site.connections)
                eventually(lambda: not served.site.connections, within_s=10)


def test_an_answer_before_the_end_of_a_body_arrives_although_its_sender_goes_on(served: Served) -> None:
    """To close at once would reset the connection, and take the answer away."""
    with served.connect() as client:
        client.sendall(b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 50000000\r\n\r\n")
        time.sleep(0.05)
        for _ in range(20):
            client.sendall(b"x" * 65_536)
        assert bodies_of(receive_all(client)) == [b"POST /a  (incomplete)"]


def test_an_answer_to_a_client_that_is_gone_goes_nowhere() -> None:
    waiting: list[Request] = []
    with serving(waiting.append) as served:
        with served.connect() as client:
            client.sendall(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n")
            eventually(lambda: waiting)
        failed: list[Any] = []
        served.loop.set_exception_handler(lambda _loop, context: failed.append(context))
        for _ in range(2):
            waiting[0].answer_soon(*answer_with(b"late"))
            waiting[0].abort()
            eventually(lambda: not served.site.connections)
        assert failed == []
