"""A request as WSGI describes it (PEP 3333), and where its answer goes."""

import sys
from typing import TYPE_CHECKING, Any

from app.server.bodies import Body

if TYPE_CHECKING:
    from app.server.connection import Connection

Environ = dict[str, Any]

# What is the same for all requests.
ENVIRON: Environ = {
    "SCRIPT_NAME": "",
    "wsgi.version": (1, 0),
    "wsgi.url_scheme": "http",
    "wsgi.input_terminated": True,
    "wsgi.errors": sys.stderr,
    "wsgi.multithread": True,
    "wsgi.multiprocess": True,
    "wsgi.run_once": False,
}


VERSIONS = {"HTTP/1.0", "HTTP/1.1"}


class Request:
    __slots__ = ("body", "connection", "environ", "keeps_alive")

    def __init__(self, connection: "Connection", environ: Environ, body: Body, *, keeps_alive: bool) -> None:
        self.connection = connection
        self.environ = environ
        self.body = body
        self.keeps_alive = keeps_alive

    def answer(self, head: bytes, body: bytes) -> None:
        """Send a whole answer: on the loop. `head`: status line and headers, each with its line's end."""
        self.connection.send(self, head, body)

    def answer_soon(self, head: bytes, body: bytes) -> None:
        """The same from another thread."""
        self.connection.site.loop.call_soon_threadsafe(self.answer, head, body)

    def abort(self) -> None:
        """From another thread: close the connection, whatever was sent."""
        self.connection.site.loop.call_soon_threadsafe(self.connection.abort)

    @property
    def is_head(self) -> bool:
        return bool(self.environ["REQUEST_METHOD"] == "HEAD")


def key_of(name: bytes) -> str | None:
    """Of a header in the environment. One with an underscore could pretend to be another one: it is left out."""
    return _KEYS.get(name) or (None if b"_" in name else _key(name))


def _key(name: bytes) -> str:
    key = name.decode("latin-1").upper().replace("-", "_")
    return key if key in {"CONTENT_TYPE", "CONTENT_LENGTH"} else f"HTTP_{key}"


# The usual ones, as most clients spell them.
_KEYS = {
    spelled: _key(spelled)
    for name in (
        *(b"Accept", b"Accept-Encoding", b"Accept-Language", b"Authorization", b"Cache-Control", b"Connection"),
        *(b"Content-Encoding", b"Content-Length", b"Content-Type", b"Cookie", b"Expect", b"Forwarded", b"Host"),
        *(b"Idempotency-Key", b"If-Match", b"If-None-Match", b"Origin", b"Referer", b"Sec-Fetch-Mode", b"Traceparent"),
        *(b"Transfer-Encoding", b"Upgrade", b"User-Agent", b"X-Forwarded-For", b"X-Forwarded-Proto", b"X-Plaudit-Key"),
        *(b"X-Real-Ip", b"X-Request-Id"),
    )
    for spelled in (name, name.lower())
}


def same_framing(body: Body) -> bytes:
    """A head after which a parser expects this body."""
    framing = b"Transfer-Encoding: chunked" if body.length is None else b"Content-Length: %d" % body.length
    return b"POST / HTTP/1.1\r\n" + framing + b"\r\n\r\n"
