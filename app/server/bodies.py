"""A request's body: received before the request is handled if it is short, otherwise when somebody reads it.

So a caller without credentials, or one who sends more than anybody may, costs no memory and no thread. Only some of the
threads may wait for the bodies of a tenant and of a caller at once, and of all tenants together, so that slow senders
leave the others alone.
"""

from concurrent.futures import Future
from typing import TYPE_CHECKING

from app.http.body import MAX_BODY_BYTES
from tenants.errors import Unavailable
from tenants.shares import current_caller

if TYPE_CHECKING:
    from app.server.connection import Connection

# A longer body is received when it is read: by who may wait, and after the caller is known.
MAX_EARLY_BYTES = 64 * 1024
# For a whole request; or for its head, and then for each part of a long body that is read.
MAX_RECEIVE_S = 20.0


class TooManySlowBodies(Unavailable):
    code = "overloaded"
    title = "Too many long bodies are being received"


class Body:
    """What WSGI calls the input. It is added to on the loop, and read by the thread that handles the request."""

    def __init__(self, connection: "Connection", *, length: int | None) -> None:
        """`length`: as its sender says; None: it is chunked."""
        self._connection = connection
        self.length = length
        self._received = bytearray()
        self._read = 0
        self._wanted = 0
        self._arrived: Future[None] | None = None
        self.is_complete = False
        self._is_broken = False
        # Its sender waits for a word of ours (`Expect: 100-continue`).
        self.is_awaited = False

    @property
    def is_long(self) -> bool:
        return max(self.length or 0, len(self._received)) > MAX_EARLY_BYTES

    # On the loop

    def add(self, piece: bytes) -> None:
        self._received += piece
        if self.is_long and len(self._received) >= self._wanted:
            self._connection.pause_reading()
            self._arrive()

    def complete(self) -> None:
        self.is_complete = True
        self._arrive()

    def break_off(self) -> None:
        """No more comes, although it is not complete."""
        self._is_broken = not self.is_complete
        self._arrive()

    def _arrive(self) -> None:
        if self._arrived is not None:
            self._arrived.set_result(None)
            self._arrived = None

    def _receive(self, wanted: int, arrived: "Future[None]") -> None:
        self._wanted, self._arrived = wanted, arrived
        if self.is_complete or self._is_broken or len(self._received) >= wanted:
            self._arrive()
        else:
            self._connection.invite(self)
            self._connection.resume_reading()

    # In the thread

    def read(self, size: int = -1) -> bytes:
        """So many bytes, or all that a body may have; fewer at its end. An incomplete body is an OSError."""
        self._wait_for(size)
        end = len(self._received) if size < 0 else self._read + size
        piece = bytes(self._received[self._read : end])
        self._read += len(piece)
        return piece

    def readline(self, size: int = -1) -> bytes:
        self._wait_for(-1)
        end = self._received.find(b"\n", self._read) + 1 or len(self._received)
        return self.read(end - self._read if size < 0 else min(size, end - self._read))

    def _wait_for(self, size: int) -> None:
        wanted = self._read + size if size >= 0 else MAX_BODY_BYTES + 1
        if not (self.is_complete or self._is_broken or len(self._received) >= wanted):
            caller, site = current_caller.get(), self._connection.site
            if not site.threads_with_bodies.acquire(blocking=False):
                raise TooManySlowBodies(retry_after_s=1)
            try:
                with site.slow_bodies.of(caller.tenant_id, caller.name):
                    self._wait(wanted)
            finally:
                site.threads_with_bodies.release()
        if self._is_broken:
            raise OSError("the body is incomplete")

    def _wait(self, wanted: int) -> None:
        arrived: Future[None] = Future()
        self._connection.site.loop.call_soon_threadsafe(self._receive, wanted, arrived)
        try:
            arrived.result(MAX_RECEIVE_S)
        except TimeoutError:
            raise OSError("the body takes too long") from None
