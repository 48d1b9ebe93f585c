"""One client's connection: HTTP/1.1 requests in, answers out, in their order and within bounds.

llhttp parses (by httptools); everything here runs on the event loop, in the connection's own callbacks. A request is
handled once its body was received, or at once if that is long: then the body waits in the client's socket until
somebody reads it (`app.server.bodies`). What a client sends beyond what is being handled waits in its socket too, and
so does the next request of one who does not read its answers. So a connection never has more in memory than its bounds.

Why not one of the usual servers: granian hands each request from its own thread to the loop's, and those two take turns
at the interpreter; half of what a kept read or a single view cost was that (docs/performance.md). Those that parse on
the loop as well (uvicorn) bound neither the size of a head nor the time it may take.
"""

import asyncio
import math
import time
from collections import deque
from concurrent.futures import Future
from http import HTTPStatus
from urllib.parse import unquote_to_bytes

import httptools

from app.http import request_counts
from app.server.answers import refusal
from app.server.bodies import Body
from app.server.requests import ENVIRON, Environ, Request, key_of
from app.server.site import Site

# Request line and headers.
MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 100
# Requests that a client may have sent before the first is answered.
MAX_PIPELINED = 16
# For a whole request, or its head if the body is long.
MAX_RECEIVE_S = 20.0
# Between two requests; longer than proxies wait, so that they close first.
MAX_IDLE_S = 75.0
# For a client that does not read its answer.
MAX_STALLED_S = 30.0
# For the rest of a body that nobody wants, so that its sender sees the answer.
MAX_LINGER_S = 2.0


class Connection(asyncio.Protocol):
    def __init__(self, site: Site) -> None:
        self.site = site
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # until it is made
        self._environ: Environ = {}
        # The request that is being received: its address, its environment, whether its head is complete, its body.
        self._url = b""
        self._incoming: Environ | None = None
        self._has_head = False
        self._head_bytes = 0
        self._headers = 0
        self._body: Body | None = None
        self._is_handed_over = False
        # The one that is being answered, and those that came meanwhile.
        self._active: Request | None = None
        self._next: deque[Request] = deque()
        self._is_last = False
        self._is_paused = False
        self._is_discarding = False
        self._is_lost = False
        self._drained: Future[None] | None = None
        self._is_write_paused = False
        self.deadline = math.inf

    # What the loop calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # of a stream
        self._transport = transport
        if self.site.is_stopping or self.site.is_full:
            transport.abort()
            return
        self.site.connections.add(self)
        peer, own = transport.get_extra_info("peername") or ("", 0), transport.get_extra_info("sockname") or ("", 0)
        address = {"REMOTE_ADDR": peer[0], "SERVER_NAME": own[0], "SERVER_PORT": str(own[1])}
        self._environ = {**ENVIRON, **address}
        self.deadline = time.monotonic() + MAX_IDLE_S

    def data_received(self, data: bytes) -> None:
        if self._is_discarding:
            return
        if not self._has_head:
            if not self._head_bytes and self._active is None:
                self.deadline = time.monotonic() + MAX_RECEIVE_S
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # nothing is upgraded here: it was a request like any other
            self._end_requests()
        except httptools.HttpParserError as error:
            self._refuse(error)
        else:
            if self._head_bytes > MAX_HEAD_BYTES and not self._has_head:
                self._refuse(_HeadTooLarge())

    def eof_received(self) -> bool:
        """Who stops sending still gets the answers to what was complete; the rest is refused."""
        if self._incoming is not None and self._has_head:
            self._break_body()
        self._end_requests()
        return self._active is not None

    def connection_lost(self, _error: Exception | None) -> None:
        self._is_lost = True
        self.site.forget(self)
        self._next.clear()
        for body in (self._body, self._active.body if self._active is not None else None):
            if body is not None:
                body.break_off()
        if self._drained is not None:
            self._drained.set_exception(ConnectionError("the client is gone"))
            self._drained = None

    def pause_writing(self) -> None:
        self._is_write_paused = True
        self.deadline = time.monotonic() + MAX_STALLED_S

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self.deadline = math.inf if self._active is not None else time.monotonic() + MAX_IDLE_S
        if self._drained is not None:
            self._drained.set_result(None)
            self._drained = None
        if self._active is None:
            self._go_on()

    # What the parser calls

    def on_message_begin(self) -> None:
        self._url, self._has_head, self._headers, self._is_handed_over = b"", False, 0, False
        self._incoming = self._environ.copy()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._has_head or self._incoming is None:  # after a chunked body: not worth anything
            return
        self._headers += 1
        if self._headers > MAX_HEADERS:
            raise _HeadTooLarge
        key = key_of(name)
        if key is None:
            return
        text = value.decode("latin-1")
        if key not in self._incoming:
            self._incoming[key] = text
        else:
            self._incoming[key] += (";" if key == "HTTP_COOKIE" else ",") + text

    def on_headers_complete(self) -> None:
        environ, parser = self._incoming, self._parser
        assert environ is not None  # noqa: S101
        self._has_head, self._head_bytes = True, 0
        target = httptools.parse_url(self._url)
        path = target.path or b"/"
        environ["PATH_INFO"] = (unquote_to_bytes(path) if b"%" in path else path).decode("latin-1")
        environ["QUERY_STRING"] = target.query.decode("latin-1") if target.query else ""
        environ["REQUEST_METHOD"] = parser.get_method().decode()
        environ["SERVER_PROTOCOL"] = version = f"HTTP/{parser.get_http_version()}"
        coding = environ.get("HTTP_TRANSFER_ENCODING")
        if version not in _VERSIONS or (coding is not None and coding.lower() != "chunked"):
            raise _NotAccepted
        self._body = Body(self, length=None if coding is not None else int(environ.get("CONTENT_LENGTH") or 0))
        if environ.get("HTTP_EXPECT", "").lower() == "100-continue":
            self._body.is_awaited = True
        if self._body.is_long:
            self._hand_over()
        elif self._body.is_awaited and (coding is not None or self._body.length):
            self.invite(self._body)

    def on_body(self, piece: bytes) -> None:
        body = self._body
        assert body is not None  # noqa: S101
        body.add(piece)
        if not self._is_handed_over and body.is_long:  # chunked, and longer than it seemed
            self._hand_over()

    def on_message_complete(self) -> None:
        assert self._body is not None  # noqa: S101
        self._body.complete()
        if not self._is_handed_over:
            self._hand_over()
        self._incoming = self._body = None
        self._has_head = False
        if not self._parser.should_keep_alive():
            self._is_last = True

    # Requests and answers

    def _hand_over(self) -> None:
        """Handle the request that is being received: now, or after those before it."""
        assert self._incoming is not None and self._body is not None  # noqa: S101, PT018
        self._is_handed_over = True
        keeps_alive = self._parser.should_keep_alive() and self._incoming["SERVER_PROTOCOL"] == "HTTP/1.1"
        self._incoming["wsgi.input"] = self._body
        request = Request(self, self._incoming, self._body, keeps_alive=keeps_alive)
        if self._active is None and not self._next and not self._is_write_paused:
            self._handle(request)
            return
        self._next.append(request)
        self.pause_reading()
        if len(self._next) >= MAX_PIPELINED:
            raise _NotAccepted

    def _handle(self, request: Request) -> None:
        self._active = request
        self.deadline = math.inf
        self.site.handle_soon(request)

    def send(self, request: Request, head: bytes, body: bytes) -> None:
        """Send a whole answer."""
        if self._is_lost or self._active is not request:
            return
        closing = b"" if self._keeps_alive(request) else b"Connection: close\r\n"
        self._transport.write(b"".join((head, self.site.date, closing, b"\r\n", b"" if request.is_head else body)))
        self._finish(request)

    def begin(self, request: Request, head: bytes) -> None:
        """Send the head of an answer in pieces."""
        if not self._is_lost:
            closing = b"" if self._keeps_alive(request) else b"Connection: close\r\n"
            self._transport.write(b"".join((head, self.site.date, closing, b"\r\n")))

    def send_piece(self, piece: bytes, sent: "Future[None]") -> None:
        """Send a piece of an answer; `sent` is resolved when there is room for the next."""
        if self._is_lost:
            sent.set_exception(ConnectionError("the client is gone"))
            return
        self._transport.write(piece)
        if self._is_write_paused:
            self._drained = sent
        else:
            sent.set_result(None)

    def end(self, request: Request, last: bytes) -> None:
        """After the last piece."""
        if not self._is_lost:
            self._transport.write(last)
            self._finish(request)

    def _keeps_alive(self, request: Request) -> bool:
        is_end = self._is_last and not self._next
        return request.keeps_alive and request.body.is_complete and not is_end and not self.site.is_stopping

    def _finish(self, request: Request) -> None:
        keeps_alive = self._keeps_alive(request)
        self._active = None
        if keeps_alive:
            if not self._is_write_paused:
                self.deadline = time.monotonic() + MAX_IDLE_S
            self._go_on()
        else:
            self._close(has_more_to_read=not request.body.is_complete)

    def _go_on(self) -> None:
        """With the next request, unless the client does not read its answers."""
        if self._is_write_paused:
            return
        if self._next:
            self._handle(self._next.popleft())
        elif self._is_last:
            self._close()
        else:
            self.resume_reading()

    def _end_requests(self) -> None:
        """No request comes after those that are here."""
        self._is_last = self._is_discarding = True
        if self._active is None and not self._next:
            self._close()

    def _close(self, *, has_more_to_read: bool = False) -> None:
        """After everything is sent. To close while the client sends would take the answer away from it."""
        self._is_discarding = True
        self._next.clear()
        if has_more_to_read and self._transport.can_write_eof():
            self.resume_reading()
            self._transport.write_eof()
            self.deadline = time.monotonic() + MAX_LINGER_S
        else:
            self.deadline = time.monotonic() + MAX_STALLED_S
            self._transport.close()

    # Bounds

    def _refuse(self, error: Exception) -> None:
        """What cannot be parsed, or is too long. Requests before it are answered."""
        if self._active is not None or self._next:
            if self._body is not None:
                self._body.break_off()
            self._end_requests()
            return
        if isinstance(error, _HeadTooLarge) or isinstance(error.__context__, _HeadTooLarge):
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            detail = f"A request may have {MAX_HEADERS} headers, and with its address {MAX_HEAD_BYTES} bytes of them"
        else:
            status, detail = HTTPStatus.BAD_REQUEST, f"This is not a request of HTTP/1.1: {str(error)[:100]}"
        head, body = refusal(status, detail)
        self._transport.write(b"".join((head, self.site.date, b"Connection: close\r\n\r\n", body)))
        request_counts.add("(any)", "(none)", status.value, 0.0)
        self._incoming = self._body = None
        self._is_last = True
        self._close(has_more_to_read=True)

    def expire(self) -> None:
        """The deadline is over."""
        if self._incoming is not None and self._has_head and not self._is_handed_over:
            self._break_body()  # the route answers that the body is incomplete
            self._is_discarding = True
        else:
            self._transport.abort()

    def _break_body(self) -> None:
        assert self._body is not None  # noqa: S101
        self._body.break_off()
        if not self._is_handed_over:
            self._hand_over()

    def close_if_idle(self) -> None:
        if self._active is None and not self._next and self._incoming is None:
            self._transport.close()

    def invite(self, body: Body) -> None:
        """Tell a client that waits for it to send the body."""
        if body.is_awaited and not self._is_lost:
            body.is_awaited = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def abort(self) -> None:
        if not self._is_lost:
            self._transport.abort()

    def pause_reading(self) -> None:
        if not self._is_paused and not self._transport.is_closing():
            self._is_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._is_paused and not self._transport.is_closing():
            self._is_paused = False
            self._transport.resume_reading()


class _NotAccepted(Exception):
    """Raised in a callback of the parser, which then stops."""


class _HeadTooLarge(_NotAccepted):
    """The same, because of too many headers."""


_VERSIONS = {"HTTP/1.0", "HTTP/1.1"}
