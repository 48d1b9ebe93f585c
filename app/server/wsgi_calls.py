"""Answering a request in a thread: the WSGI application is called, and its answer given to the loop (PEP 3333)."""

import time
from collections.abc import Iterable
from concurrent.futures import Future
from http import HTTPStatus
from typing import Any

import structlog

from app.server.answers import NEVER_A_BODY, Header, head_of, overloaded, refusal
from app.server.connection import MAX_STALLED_S
from app.server.requests import Request

log = structlog.get_logger()


# For a thread.
MAX_WAIT_S = 10.0


class ReaderGone(Exception):
    """The answer cannot be sent to its end: nobody reads it any more, or it failed."""


def answer(app: Any, request: Request, submitted_at: float) -> None:
    """Raises nothing: what fails outside of a route is answered too. A request waits for a thread only so long."""
    if request.connection.is_lost:
        return
    if time.monotonic() - submitted_at > MAX_WAIT_S:
        request.answer_soon(*overloaded())
        return
    try:
        _call(app, request)
    except ReaderGone:
        request.abort()
    except Exception:
        log.exception("a request failed outside of its route", action="request.failed")
        head, body = refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "Something went wrong on our side")
        request.answer_soon(head, body)


def _call(app: Any, request: Request) -> None:
    started: list[tuple[str, list[Header]]] = []

    def start_response(status: str, headers: list[Header], _exc_info: object = None) -> None:
        started[:] = [(status, headers)]

    pieces = app(request.environ, start_response)
    try:
        status, headers = started[0]
        code = int(status[:3])
        if code in NEVER_A_BODY:
            headers = [header for header in headers if header[0].lower() != "content-length"]
        has_length = any(name.lower() == "content-length" for name, _ in headers)
        if has_length or code in NEVER_A_BODY or request.is_head:
            request.answer_soon(head_of(status, headers), b"".join(pieces))
        else:
            _send_in_pieces(request, status, headers, pieces)
    finally:
        if hasattr(pieces, "close"):
            pieces.close()


def _send_in_pieces(request: Request, status: str, headers: list[Header], pieces: Iterable[bytes]) -> None:
    """An answer of unknown length, as quickly as the client reads it: this thread waits for it."""
    connection, call_soon = request.connection, request.connection.site.loop.call_soon_threadsafe
    is_chunked = request.environ["SERVER_PROTOCOL"] == "HTTP/1.1"  # else it ends with the connection
    framing = [("Transfer-Encoding", "chunked")] if is_chunked else []
    call_soon(connection.begin, request, head_of(status, [*headers, *framing]))
    try:
        for piece in pieces:
            if piece:
                framed = b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked else piece
                sent: Future[None] = Future()
                call_soon(connection.send_piece, request, framed, sent)
                sent.result(2 * MAX_STALLED_S)  # the connection is closed before that
    except (TimeoutError, ConnectionError):
        raise ReaderGone from None
    except Exception:
        log.exception("an answer failed after it had begun", action="request.failed")
        raise ReaderGone from None
    call_soon(connection.end, request, b"0\r\n\r\n" if is_chunked else b"")
