"""One client's connection: HTTP/1.1 requests in, answers out, in their order and within bounds.

llhttp parses (by httptools); everything here runs on the event loop, in the connection's own callbacks. A request is
handled once its body was received, or at once if that is long: then the body waits in the client's socket until
somebody reads it (`app.server.bodies`). What a client sends beyond what is being handled waits in its socket too, and
so does the next request of one who does not read its answers: a connection never has more in memory than its bounds.
"""

import asyncio
import math
import time
from collections import deque
from concurrent.futures import Future
from http import HTTPStatus
from urllib.parse import unquote_to_bytes

import httptools

from app.http import edge, request_counts
from app.server.answers import refusal
from app.server.bodies import MAX_RECEIVE_S, Body
from app.server.requests import ENVIRON, VERSIONS, Environ, Request, key_of, same_framing
from app.server.site import Site

# Request line and headers.
MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 100
# Requests that a client may have sent before the first is answered.
MAX_PIPELINED = 64
# Between two requests; longer than proxies wait, so that they close first. (The first one must come sooner.)
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
        self._head_bytes = self._headers = 0
        # Received, and neither a whole head nor a part of a body.
        self._unparsed_bytes = 0
        self._is_resuming = False
        self._body: Body | None = None
        self._is_handed_over = False
        # The one that is being answered, and those that came meanwhile.
        self._active: Request | None = None
        self._next: deque[Request] = deque()
        self._is_last = self._is_cut = self._is_paused = False
        self._is_discarding = self._is_closing = False
        self.is_lost = False
        self._drained: Future[None] | None = None
        self._is_write_paused = False
        self.deadline = math.inf

    # What the loop calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # of a stream
        self._transport = transport
        if self.site.is_stopping or not self.site.make_room():
            transport.abort()
            return
        self.site.connections.add(self)
        peer, own = transport.get_extra_info("peername") or ("", 0), transport.get_extra_info("sockname") or ("", 0)
        address = {"REMOTE_ADDR": peer[0], "SERVER_NAME": own[0], "SERVER_PORT": str(own[1])}
        self._environ = {**ENVIRON, **address}
        self.deadline = time.monotonic() + MAX_RECEIVE_S

    def data_received(self, data: bytes) -> None:
        if self._is_discarding or (self.site.turns.is_limited and self._is_refused(data)):
            return
        if self._incoming is None and self._active is None:
            self.deadline = time.monotonic() + MAX_RECEIVE_S
        self._unparsed_bytes += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            self._refuse(error)
        else:
            if self._unparsed_bytes > MAX_HEAD_BYTES:
                self._refuse(_HeadTooLarge())

    def _is_refused(self, data: bytes) -> bool:
        """Whether this was answered unparsed."""
        is_refused = self.is_idle and not self._is_write_paused and self.site.refuse(data, self._transport)
        if is_refused and not self._is_write_paused:
            self.deadline = time.monotonic() + MAX_IDLE_S
        return is_refused

    def _feed(self, data: bytes) -> None:
        """Parse this. What asks for another protocol is a request like any other, and what follows it is, too."""
        for _ in range(MAX_PIPELINED):
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                self._parser = httptools.HttpRequestParser(self)
                if self._body is not None:  # the parser takes its body for the other protocol
                    self._is_resuming = True
                    self._parser.feed_data(same_framing(self._body))
            else:
                return
        raise httptools.HttpParserError("too many upgrades")

    def eof_received(self) -> bool:
        """Who stops sending still gets the answers to what was complete; the rest is refused."""
        if self._incoming is not None and self._has_head:
            self._break_body()
        self._end_requests()
        return self._active is not None

    def connection_lost(self, _error: Exception | None) -> None:
        self.is_lost = True
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
        if self._is_closing:
            return
        self.deadline = math.inf if self._active is not None else time.monotonic() + MAX_IDLE_S
        if self._drained is not None:
            self._drained.set_result(None)
            self._drained = None
        if self._active is None:
            self._go_on()

    # What the parser calls

    def on_message_begin(self) -> None:
        if not self._is_resuming:
            self._url, self._has_head, self._headers, self._is_handed_over = b"", False, 0, False
            self._head_bytes = 0
            self._incoming = self._environ.copy()

    def on_url(self, url: bytes) -> None:
        if not self._is_resuming:
            self._url += url
            self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_resuming:
            return
        self._headers += 1
        self._count_head(len(name) + len(value))
        if self._has_head or self._incoming is None:  # after a chunked body: worth nothing
            return
        key = key_of(name)
        if key is None:
            return
        text = value.decode("latin-1")
        if key not in self._incoming:
            self._incoming[key] = text
        else:
            self._incoming[key] += (";" if key == "HTTP_COOKIE" else ",") + text

    def _count_head(self, more: int) -> None:
        """Address, headers and what a chunked body has after it."""
        self._head_bytes += more
        if self._head_bytes > MAX_HEAD_BYTES or self._headers > MAX_HEADERS:
            raise _HeadTooLarge

    def on_headers_complete(self) -> None:
        self._unparsed_bytes = 0
        if self._is_resuming:
            self._is_resuming = False
            return
        environ, parser = self._incoming, self._parser
        assert environ is not None  # noqa: S101
        self._has_head = True
        target = httptools.parse_url(self._url)
        path = target.path or b"/"
        environ["PATH_INFO"] = (unquote_to_bytes(path) if b"%" in path else path).decode("latin-1")
        environ["QUERY_STRING"] = target.query.decode("latin-1") if target.query else ""
        environ["REQUEST_METHOD"] = parser.get_method().decode()
        environ["SERVER_PROTOCOL"] = version = f"HTTP/{parser.get_http_version()}"
        coding = environ.get("HTTP_TRANSFER_ENCODING")
        has_two_hosts = "," in environ.get("HTTP_HOST", "")  # a proxy may have decided by the other one
        if version not in VERSIONS or (coding is not None and coding.lower() != "chunked") or has_two_hosts:
            raise _NotAccepted
        self._body = Body(self, length=None if coding is not None else int(environ.get("CONTENT_LENGTH") or 0))
        if version == "HTTP/1.1" and environ.get("HTTP_EXPECT", "").lower() == "100-continue":
            self._body.is_awaited = coding is not None or bool(self._body.length)
        if self._body.is_long:
            self._hand_over_received()
        else:
            self._invite_next()

    def on_body(self, piece: bytes) -> None:
        body = self._body
        assert body is not None  # noqa: S101
        self._unparsed_bytes = 0
        body.add(piece)
        if not self._is_handed_over and body.is_long:  # chunked, and longer than it seemed
            self._hand_over_received()

    def on_message_complete(self) -> None:
        assert self._body is not None  # noqa: S101
        self._unparsed_bytes = 0
        if self._parser.should_upgrade() and (self._body.length or self._body.length is None):
            return  # see `_feed`
        self._body.complete()
        if not self._is_handed_over:
            self._hand_over_received()
        self._incoming = self._body = None
        self._has_head = False
        self._is_last |= not self._parser.should_keep_alive()

    def _hand_over_received(self) -> None:
        self._hand_over()
        if self._is_cut:
            raise _NotAccepted

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
        self._is_cut = len(self._next) >= MAX_PIPELINED

    def _handle(self, request: Request) -> None:
        self._active = request
        self.deadline = math.inf
        self.site.handle_soon(request)

    def send(self, request: Request, head: bytes, body: bytes) -> None:
        """Send a whole answer."""
        if self.is_lost or self._active is not request:
            return
        closing = b"" if self._keeps_alive(request) else b"Connection: close\r\n"
        self._transport.write(b"".join((head, self.site.date, closing, b"\r\n", b"" if request.is_head else body)))
        self._finish(request)

    def begin(self, request: Request, head: bytes) -> None:
        """Send the head of an answer in pieces."""
        if not self.is_lost and self._active is request:
            closing = b"" if self._keeps_alive(request) else b"Connection: close\r\n"
            self._transport.write(b"".join((head, self.site.date, closing, b"\r\n")))

    def send_piece(self, request: Request, piece: bytes, sent: "Future[None]") -> None:
        """Send a piece of an answer; `sent` is resolved when there is room for the next."""
        if self.is_lost or self._active is not request:
            sent.set_exception(ConnectionError("the client is gone"))
            return
        self._transport.write(piece)
        if self._is_write_paused:
            self._drained = sent
        else:
            sent.set_result(None)

    def end(self, request: Request, last: bytes) -> None:
        """After the last piece."""
        if not self.is_lost and self._active is request:
            self._transport.write(last)
            self._finish(request)

    def _keeps_alive(self, request: Request) -> bool:
        is_end = (self._is_last or self.site.is_draining) and not self._next
        return request.keeps_alive and request.body.is_complete and not is_end

    def _finish(self, request: Request) -> None:
        keeps_alive = self._keeps_alive(request)
        self._active = None
        if keeps_alive:
            if not self._is_write_paused:
                self.deadline = time.monotonic() + (MAX_IDLE_S if self._incoming is None else MAX_RECEIVE_S)
            self._go_on()
        else:
            self._close(has_more_to_read=self._is_cut or self.site.is_draining or not request.body.is_complete)

    def _go_on(self) -> None:
        """With the next request, unless the client does not read its answers."""
        if self._is_write_paused:
            return
        if self._next:
            self._handle(self._next.popleft())
        elif self._is_last:
            self._close(has_more_to_read=self._is_cut)
        else:
            self._invite_next()
            self.resume_reading()

    def _end_requests(self) -> None:
        """No request comes after those that are here."""
        self._is_last = self._is_discarding = True
        if self._active is None and not self._next:
            self._close()

    def _close(self, *, has_more_to_read: bool = False) -> None:
        """After everything is sent. To close while the client sends would take the answer away from it."""
        self._is_discarding = self._is_closing = True
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
        status, detail = HTTPStatus.BAD_REQUEST, f"This is not a request of HTTP/1.1: {str(error)[:100]}"
        if isinstance(error, _HeadTooLarge) or isinstance(error.__context__, _HeadTooLarge):
            is_address = len(self._url) > edge.MAX_TARGET_CHARS
            status = HTTPStatus.REQUEST_URI_TOO_LONG if is_address else HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            detail = f"A request may have {MAX_HEADERS} headers, and with its address {MAX_HEAD_BYTES} bytes of them"
        head, body = refusal(status, detail)
        self._transport.write(b"".join((head, self.site.date, b"Connection: close\r\n\r\n", body)))
        request_counts.add("(any)", "(none)", status.value, 0.0)
        self._incoming = self._body = None
        self._is_last = True
        self._close(has_more_to_read=True)

    def expire(self) -> None:
        """The deadline is over."""
        is_free = self._active is None and not self._next and not self._is_write_paused
        if is_free and self._incoming is not None and self._has_head and not self._is_handed_over:
            self._break_body()  # the route answers that the body is incomplete
            self._is_discarding = True
        else:
            self._transport.abort()

    def _break_body(self) -> None:
        assert self._body is not None  # noqa: S101
        self._body.break_off()
        if not self._is_handed_over:
            self._hand_over()

    @property
    def is_idle(self) -> bool:
        """Whether nothing of a request is here."""
        return self._active is None and not self._next and self._incoming is None

    def _invite_next(self) -> None:
        """The body of the request that is being received, if its turn has come: never into another one's answer."""
        if self._body is not None and not self._is_handed_over and self._active is None and not self._next:
            self.invite(self._body)

    def invite(self, body: Body) -> None:
        """Tell a client that waits for it to send the body."""
        if body.is_awaited and not self.is_lost:
            body.is_awaited = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def abort(self) -> None:
        if not self.is_lost:
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
