"""A proxy before PostgreSQL that cuts a connection at a chosen message of its protocol.

It counts *trips*: what a client sends until it waits for the answer, which is a `Sync` or a simple query. It does not
count the trips of the credential feed's reader, nor the `SELECT 1` that checks a new connection: they belong to no
request.
"""

import asyncio
import contextlib
import re
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum, auto
from typing import Any

from sqlalchemy.engine import make_url

# Messages: the type, the length with itself, the rest.
HEAD_BYTES = 5
ADMIN_SHUTDOWN = b"SFATAL\0VFATAL\0C57P01\0Mterminating connection due to administrator command\0\0"
CHECK = b"SELECT 1"
OF_NO_REQUEST = re.compile(rb"FROM credential_changes|INSERT INTO processes|DELETE FROM processes|^SELECT 1$")


class Where(StrEnum):
    """Where in a trip a connection is cut."""

    BEFORE = auto()  # the server gets nothing of the trip
    AMID = auto()  # the server executes some of its statements, and answers none
    AFTER = auto()  # the server executes all of it; the client gets no answer
    DURING = auto()  # the client gets a part of the answer, which ends anywhere, also within a message


class How(StrEnum):
    """How a connection ends."""

    CLOSED = auto()
    RESET = auto()
    TERMINATED = auto()  # as PostgreSQL ends one: it says so first


@dataclass
class Trip:
    statements: list[bytes] = field(default_factory=list)
    # How many of its statements the server has executed.
    executed: int = 0

    @property
    def commits(self) -> bool:
        return b"COMMIT" in self.statements

    @property
    def is_committed(self) -> bool:
        return b"COMMIT" in self.statements[: self.executed]


@dataclass
class Cut:
    """Cut the connection at the trip with this number, counted from when the cut was set."""

    trip: int
    where: Where = Where.BEFORE
    how: How = How.CLOSED
    # Which part of a trip is executed (AMID) or delivered (DURING).
    share: float = 0.5


class CuttingProxy:
    """Passes everything on to a server, until it is told to cut."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._passes = asyncio.Event()
        self._passes.set()
        self.port = 0
        self.cut: Cut | None = None
        # Cut each new connection, at the trip that checks whether it works.
        self.opening: Cut | None = None
        # The trips since the cut was set, and the one that was cut.
        self.trips: list[Trip] = []
        self.cut_trip: Trip | None = None

    def set(self, cut: Cut | None) -> None:
        self.trips, self.cut_trip, self.cut = [], None, cut

    def fall_silent(self) -> None:
        """Pass nothing on, as a network that loses everything, until `speak`."""
        self._loop.call_soon_threadsafe(self._passes.clear)

    def speak(self) -> None:
        self._loop.call_soon_threadsafe(self._passes.set)

    async def pass_(self) -> None:
        """Wait until something may be passed on."""
        await self._passes.wait()

    async def start(self) -> None:
        self._listening = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._listening.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            try:
                from_server, to_server = await asyncio.open_connection(*self._server)
                try:
                    await _Session(self, (reader, writer), (from_server, to_server)).run()
                finally:
                    to_server.close()
            finally:
                writer.close()

    async def stop(self) -> None:
        self._listening.close()
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Session:
    """A client's connection, and the one to the server."""

    def __init__(self, proxy: CuttingProxy, client: Streams, server: Streams) -> None:
        self._proxy = proxy
        self._from_client, self._to_client = client
        self._from_server, self._to_server = server

    async def run(self) -> None:
        """One trip after the other: the client is not read while the server answers."""
        head = await self._from_client.readexactly(4)
        await self._proxy.pass_()
        self._to_server.write(head + await self._from_client.readexactly(struct.unpack("!i", head)[0] - 4))
        while True:
            answer = await self._answer()
            self._to_client.write(answer)
            if answer[-6:-1] == b"Z\0\0\0\x05":
                break
            kind, message = await _message(self._from_client)  # of the login
            self._to_server.write(message)
        while True:
            trip = Trip()
            sent: list[tuple[bytes, bytes]] = []
            while not sent or sent[-1][0] not in b"SQX":
                kind, message = await _message(self._from_client)
                sent.append((kind, message))
                if kind == b"P":
                    trip.statements.append(message[HEAD_BYTES:].split(b"\0")[1])
                elif kind == b"Q":
                    trip.statements.append(message[HEAD_BYTES:-1])
            if not await self._pass_on(trip, sent):
                return

    async def _pass_on(self, trip: Trip, sent: list[tuple[bytes, bytes]]) -> bool:
        """Returns whether the connection is still open."""
        cut = self._due(trip)
        await self._proxy.pass_()
        if sent[-1][0] == b"X":
            self._to_server.write(sent[-1][1])
            return False
        if cut is None:
            self._to_server.write(b"".join(message for _, message in sent))
            self._to_client.write(await self._answer())
            trip.executed = len(trip.statements)
            return True
        delivered = b""
        if cut.where is Where.AMID:
            trip.executed = await self._execute_some(sent, max(1, round(cut.share * len(trip.statements))))
        elif cut.where is not Where.BEFORE:
            self._to_server.write(b"".join(message for _, message in sent))
            answer = await self._answer()
            trip.executed = len(trip.statements)
            if cut.where is Where.DURING:
                delivered = answer[: max(1, round(cut.share * (len(answer) - 1)))]
        self._end(delivered, cut.how)
        return False

    def _due(self, trip: Trip) -> Cut | None:
        """The cut, if it is for this trip."""
        proxy = self._proxy
        if trip.statements == [CHECK] and proxy.opening is not None:
            return proxy.opening
        if not trip.statements or any(OF_NO_REQUEST.search(statement) for statement in trip.statements):
            return None
        proxy.trips.append(trip)
        if proxy.cut is None or len(proxy.trips) <= proxy.cut.trip or proxy.cut_trip is not None:
            return None
        proxy.cut_trip = trip
        return proxy.cut

    async def _execute_some(self, sent: list[tuple[bytes, bytes]], count: int) -> int:
        """Have the server execute the first statements of a trip, and no more. Returns how many it did execute."""
        passed: list[bytes] = []
        left = count
        for kind, message in sent:
            if kind in b"QS":
                break
            passed.append(message)
            left -= kind == b"E"
            if not left:
                break
        if not passed:  # a simple query, which is executed or is not
            return 0
        self._to_server.write(b"".join([*passed, b"H\0\0\0\x04"]))
        executed = 0
        while executed < count - left:
            kind, _ = await _message(self._from_server)
            if kind == b"E":
                break
            executed += kind in b"CIs"
        return executed

    async def _answer(self) -> bytes:
        """Everything that the server sends until it waits for the client."""
        answer = b""
        while True:
            try:
                kind, message = await _message(self._from_server)
            except (OSError, asyncio.IncompleteReadError):
                self._to_client.write(answer)  # why it closed the connection
                raise
            answer += message
            # Of the login: what authentication asks for, except that it is done.
            if kind == b"Z" or (kind == b"R" and struct.unpack("!i", message[5:9])[0] not in {0, 12}):
                return answer

    def _end(self, delivered: bytes, how: How) -> None:
        raw: Any = self._to_client.get_extra_info("socket")
        if delivered:
            self._to_client.write(delivered)
        elif how is How.TERMINATED:
            self._to_client.write(b"E" + struct.pack("!i", len(ADMIN_SHUTDOWN) + 4) + ADMIN_SHUTDOWN)
        if how is How.RESET:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(HEAD_BYTES)
    return head[:1], head + await reader.readexactly(struct.unpack("!i", head[1:])[0] - 4)


@contextlib.contextmanager
def cutting_proxy(url: str) -> Iterator[tuple[CuttingProxy, str]]:
    """A proxy before this database, and the database's address behind it."""
    address = make_url(url)
    proxy = CuttingProxy(address.host or "127.0.0.1", address.port or 5432)
    loop = proxy._loop
    thread = threading.Thread(target=loop.run_forever, name="cutting-proxy", daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(proxy.start(), loop).result(60)
    try:
        query = {**address.query, "sslmode": "disable", "gssencmode": "disable"}
        through = address.set(host="127.0.0.1", port=proxy.port, query=query)
        yield proxy, through.render_as_string(hide_password=False)
    finally:
        asyncio.run_coroutine_threadsafe(proxy.stop(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()
