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
MAX_KEPT_KEYS = 500


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
    kept = _KEYS.get(name)
    if kept is not None or b"_" in name:
        return kept
    key = name.decode("latin-1").upper().replace("-", "_")
    key = key if key in {"CONTENT_TYPE", "CONTENT_LENGTH"} else f"HTTP_{key}"
    if len(_KEYS) < MAX_KEPT_KEYS:
        _KEYS[name] = key
    return key


_KEYS: dict[bytes, str] = {}
