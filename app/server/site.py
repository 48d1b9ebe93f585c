"""What the connections of a process share: who handles requests, the deadlines, and the end."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from email.utils import formatdate
from typing import TYPE_CHECKING

import structlog

from app.server.answers import overloaded
from app.server.requests import Request
from tenants.shares import TenantShare, share_of

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
    ) -> None:
        """`handle` is given each request, on the loop. `max_slow_bodies`: a quarter of the threads.

        A tenant has its share of these for bodies, and each of its callers half of that: a slow body is not over soon,
        so others could not wait until a caller that has all of them gives one back. As many more wait for their turn.
        All tenants together leave a quarter of the threads to everything else.
        """
        self.loop = loop
        self._handle = handle
        self._received: list[Request] = []
        self.slow_bodies = TenantShare(share_of(max_slow_bodies), max_waiting=max_slow_bodies, keeps_half=True)
        # Those that receive a body, and those that wait for their turn.
        self.threads_with_bodies = threading.BoundedSemaphore(3 * max_slow_bodies)
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

    def _handle_received(self) -> None:
        received, self._received = self._received, []
        for request in received:
            try:
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

    def make_room(self, address: str) -> bool:
        """For one more connection from this address. If there are too many, close one that waits for its client."""
        if len(self.connections) < self._max_connections:
            return True
        idle = min((one for one in self.connections if one.is_idle), key=lambda one: one.deadline, default=None)
        closed = idle or self._slowest_of_flood(address)
        self._note_full(closes_another=closed is not None)
        if closed is None:
            return False
        closed.abort()
        return True

    def _slowest_of_flood(self, newcomer: str) -> "Connection | None":
        """The oldest unfinished request of an address that has most connections: others must not be locked out.

        None if the newcomer is from there too, as behind a proxy.
        """
        ((address, count),) = Counter(one.address for one in self.connections).most_common(1)
        if 2 * count <= len(self.connections) or address == newcomer:
            return None
        unfinished = (one for one in self.connections if one.address == address and one.is_receiving)
        return min(unfinished, key=lambda one: one.deadline, default=None)

    def _note_full(self, *, closes_another: bool) -> None:
        """In the log, once a minute at most."""
        now = time.monotonic()
        if now - self._full_at > NOTE_FULL_EVERY_S:
            self._full_at = now
            data = {
                "connections": len(self.connections),
                "closes": "a waiting one" if closes_another else "the new one",
            }
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
