"""The WSGI application, called in a thread."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import orjson
import pytest

from app.server import connection, site, wsgi_calls
from tests.app.server.test_connection import CLOSE, Served, bodies_of, receive_all, serving
from tests.service import eventually

App = Callable[[dict[str, Any], Any], Iterable[bytes]]
GET = b"GET / HTTP/1.1\r\nHost: x\r\n" + CLOSE


def serving_app(app: App) -> Any:
    return serving(
        lambda request: threading.Thread(target=wsgi_calls.answer, args=(app, request, time.monotonic())).start()
    )


def plain(status: str, *headers: tuple[str, str], body: bytes = b"") -> App:
    def app(_environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response(status, list(headers))
        return [body] if body else []

    return app


def chunks_of(received: bytes) -> list[bytes]:
    head, _, rest = received.partition(b"\r\n\r\n")
    assert b"Transfer-Encoding: chunked" in head
    chunks = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        chunks.append(rest[: int(size, 16)])
        rest = rest[int(size, 16) + 2 :]
    return chunks


def test_an_answer_with_a_length_is_sent_as_it_is() -> None:
    with serving_app(plain("201 CREATED", ("Content-Length", "2"), ("A", "b"), body=b"hi")) as served:
        received = served.send(GET)
    assert received.startswith(b"HTTP/1.1 201 CREATED\r\nContent-Length: 2\r\nA: b\r\nDate: ")
    assert received.endswith(b"\r\n\r\nhi")


def test_an_answer_that_never_has_a_body_has_no_length() -> None:
    with serving_app(plain("204 NO CONTENT", ("Content-Length", "0"))) as served:
        assert b"content-length" not in served.send(GET).lower()


def test_a_head_without_a_length_ends_after_its_headers() -> None:
    with serving_app(plain("200 OK", ("A", "b"))) as served:
        received = served.send(GET.replace(b"GET", b"HEAD"))
    assert received.endswith(b"\r\n\r\n")
    assert b"chunked" not in received


class Pieces:
    """An answer of unknown length; says whether it was closed."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self.is_closed = False

    def __call__(self, _environ: dict[str, Any], start_response: Any) -> "Pieces":
        start_response("200 OK", [("Content-Type", "text/csv")])
        return self

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces

    def close(self) -> None:
        self.is_closed = True


def test_an_answer_without_a_length_is_sent_in_chunks() -> None:
    pieces = Pieces(iter([b"a", b"", b"b" * 300_000]))
    with serving_app(pieces) as served:
        assert chunks_of(served.send(GET)) == [b"a", b"b" * 300_000, b""]
    assert pieces.is_closed


def test_to_an_old_client_it_ends_with_the_connection() -> None:
    with serving_app(Pieces(iter([b"a", b"b"]))) as served:
        received = served.send(b"GET / HTTP/1.0\r\n\r\n")
    assert received.endswith(b"\r\n\r\nab")
    assert b"chunked" not in received


def endless() -> Iterator[bytes]:
    while True:
        yield b"x" * 65_536


def test_a_reader_that_reads_nothing_is_cut_off_and_the_answer_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_STALLED_S", 0.2)
    monkeypatch.setattr(site, "SWEEP_EVERY_S", 0.05)
    pieces = Pieces(endless())
    with serving_app(pieces) as served, served.connect() as client:
        client.sendall(GET)
        eventually(lambda: pieces.is_closed, within_s=10)
        eventually(lambda: not served.site.connections, within_s=10)


def test_a_reader_that_goes_away_ends_the_answer() -> None:
    pieces = Pieces(endless())
    with serving_app(pieces) as served:
        with served.connect() as client:
            client.sendall(GET)
            client.recv(100_000)
        eventually(lambda: pieces.is_closed, within_s=10)


def test_what_fails_before_an_answer_is_a_500_and_after_its_start_the_end_of_the_connection(logged: Any) -> None:
    def fail(*_: Any) -> Iterable[bytes]:
        raise ZeroDivisionError

    def fails() -> Iterator[bytes]:
        yield b"a"
        raise ZeroDivisionError

    def is_answered(served: Served) -> bytes:
        with served.connect() as client:
            client.sendall(GET)
            return receive_all(client)

    with serving_app(fail) as served:
        assert orjson.loads(bodies_of(is_answered(served))[0])["code"] == "internal_error"
    pieces = Pieces(fails())
    with serving_app(pieces) as served:
        assert not is_answered(served).endswith(b"0\r\n\r\n"), "so that nobody takes it for whole"
    assert pieces.is_closed
    assert [line["action"] for line in logged()] == ["request.failed"] * 2


def test_who_waits_too_long_for_a_thread_is_refused_and_who_is_gone_is_not_answered() -> None:
    called: list[Any] = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        called.append(environ)
        start_response("200 OK", [("Content-Length", "0")])
        return []

    long_ago = time.monotonic() - wsgi_calls.MAX_WAIT_S - 1
    with serving(lambda request: wsgi_calls.answer(app, request, long_ago)) as served:
        assert served.send(GET).startswith(b"HTTP/1.1 503 ")
    assert called == []
    waiting: list[Any] = []
    with serving(waiting.append) as served:
        with served.connect() as client:
            client.sendall(GET)
            eventually(lambda: waiting)
        waiting[0].abort()
        eventually(lambda: not served.site.connections)
        wsgi_calls.answer(app, waiting[0], time.monotonic())
    assert called == []
