"""What the connections of a process share: who handles requests, the deadlines, and the end."""

import asyncio
import threading
import time
from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING

import structlog

from app.http import request_counts
from app.server.answers import overloaded
from app.server.requests import Request
from app.server.turns import Turns

if TYPE_CHECKING:
    from app.server.connection import Connection

# How often deadlines are looked at.
SWEEP_EVERY_S = 1.0
NOTE_FULL_EVERY_S = 60.0

log = structlog.get_logger()


class Site:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        handle: Callable[[Request], None],
        *,
        max_slow_bodies: int,
        max_connections: int,
        tenant_of: Callable[[str], str] = lambda _: "",
    ) -> None:
        """`handle` is given each request, on the loop. `max_slow_bodies`: how many threads may wait for bodies.

        `tenant_of`: the tenant of a header `Authorization`, as far as that is known at once; else empty.
        """
        self.loop = loop
        self._handle = handle
        self._received: list[Request] = []
        self.turns = Turns(tenant_of)
        self.slow_bodies = threading.BoundedSemaphore(max_slow_bodies)
        self.connections: set[Connection] = set()
        self._max_connections = max_connections
        self._full_at = -NOTE_FULL_EVERY_S
        # Each connection is closed after its next answer.
        self.is_draining = False
        self._stopped: asyncio.Future[None] | None = None
        self.date = b""
        self._sweep()

    def handle_soon(self, request: Request) -> None:
        """Once everything that can be received now was received.

        To answer each request at once would wake its client at once, who then competes with us for the processor: the
        same number of answers took a third longer.
        """
        if not self._received:
            self.loop.call_soon(self._handle_received)
        self._received.append(request)
        self.turns.receive()

    def refuse(self, data: bytes, transport: asyncio.Transport) -> bool:
        """Refuse what a connection without a request has received. False: it must be parsed."""
        if self.is_draining or not self.turns.refuses(data):
            return False
        head, body = overloaded()
        transport.write(b"".join((head, self.date, b"\r\n", body)))
        request_counts.add("(any)", "(none)", HTTPStatus.SERVICE_UNAVAILABLE, 0.0)
        return True

    def _handle_received(self) -> None:
        received, self._received = self._received, []
        began = self.turns.end_receiving()
        if began is not None:
            self.loop.call_soon(self.turns.measure, began)  # in the next turn, before its requests are handled
        for request in received:
            try:
                if self.turns.is_limited:
                    self.turns.handle(request.environ.get("HTTP_AUTHORIZATION", ""))
                self._handle(request)
            except Exception:  # the others must be handled
                log.exception("a request could not be handled", action="request.failed")
                request.answer(*overloaded())

    def _sweep(self) -> None:
        """Once a second: close connections that wait too long, and set the time that answers have."""
        self._sweeping = self.loop.call_later(SWEEP_EVERY_S, self._sweep)
        self.date = f"Date: {formatdate(usegmt=True)}\r\n".encode()
        now = time.monotonic()
        for connection in [one for one in self.connections if one.deadline < now]:
            connection.expire()

    async def stop(self) -> None:
        """Close what is idle at once, and everything else after its answer; return when all are closed."""
        self.is_draining = True
        self._stopped = self.loop.create_future()
        for connection in [one for one in self.connections if one.is_idle]:
            connection.abort()
        self._stop_if_empty()
        await self._stopped

    def make_room(self) -> bool:
        """For one more connection: instead of the one that has been idle longest, if there are too many."""
        if len(self.connections) < self._max_connections:
            return True
        idle = min((one for one in self.connections if one.is_idle), key=lambda one: one.deadline, default=None)
        self._note_full(has_idle=idle is not None)
        if idle is None:
            return False
        idle.abort()
        return True

    def _note_full(self, *, has_idle: bool) -> None:
        """In the log, once a minute at most."""
        now = time.monotonic()
        if now - self._full_at > NOTE_FULL_EVERY_S:
            self._full_at = now
            data = {"connections": len(self.connections), "closes": "an idle one" if has_idle else "the new one"}
            log.warning("too many connections", action="connections.full", data=data)

    @property
    def is_stopping(self) -> bool:
        return self._stopped is not None

    def forget(self, connection: "Connection") -> None:
        """It is closed."""
        self.connections.discard(connection)
        self._stop_if_empty()

    def _stop_if_empty(self) -> None:
        if self._stopped is not None and not self._stopped.done() and not self.connections:
            self._sweeping.cancel()
            self._stopped.set_result(None)
