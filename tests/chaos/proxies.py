"""A TCP proxy between two processes that can delay, swallow, reset and cut what passes through it.

Where it connects to may change at any time: a restarted server has another port.
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

from app.run.ports import reserve_port

CHUNK_BYTES = 65536


class Mode(StrEnum):
    PASS = "pass"
    # Each chunk waits before it is passed on.
    DELAY = "delay"
    # Connections stay open and nothing arrives, in neither direction; what was held back arrives when it ends.
    BLACKHOLE = "blackhole"
    # Open connections are reset, and new ones too.
    RESET = "reset"
    # After a few bytes of the next answer its connection is closed: in the middle of a message.
    CUT = "cut"


@dataclass(eq=False)
class _Link:
    """One connection through the proxy."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter


class Proxy:
    """Listens on a loopback port; `to` says to which port it connects."""

    def __init__(self, name: str, to: Callable[[], int | None], loop: asyncio.AbstractEventLoop) -> None:
        self.name = name
        self.port = reserve_port()
        self.mode = Mode.PASS
        self.delay_s = 0.0
        self.cut_after_bytes = 0
        self._to = to
        self._loop = loop
        self._links: set[_Link] = set()
        self._passing = asyncio.Event()
        self._passing.set()
        self._server: asyncio.Server | None = None

    @property
    def links(self) -> int:
        """How many connections are open."""
        return len(self._links)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    def set(self, mode: Mode, *, delay_s: float = 0.0, cut_after_bytes: int = 0) -> None:
        """Change what happens to every connection, from now on. Called by other threads."""
        changed = asyncio.run_coroutine_threadsafe(self._set(mode, delay_s, cut_after_bytes), self._loop)
        changed.result(10)

    def close(self) -> None:
        """Listen no more. Only for the thread of the loop."""
        if self._server is not None:
            self._server.close()

    async def _set(self, mode: Mode, delay_s: float, cut_after_bytes: int) -> None:
        self.mode, self.delay_s, self.cut_after_bytes = mode, delay_s, cut_after_bytes
        if mode is Mode.BLACKHOLE:
            self._passing.clear()
        else:
            self._passing.set()
        if mode is Mode.RESET:
            for link in list(self._links):
                _reset(link.client)
                _reset(link.server)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = self._to()
        if self.mode is Mode.RESET or port is None:
            _reset(writer)
            return
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            _reset(writer)
            return
        link = _Link(writer, server_writer)
        self._links.add(link)
        pumps = [
            asyncio.create_task(self._pump(reader, server_writer, is_answer=False)),
            asyncio.create_task(self._pump(server_reader, writer, is_answer=True)),
        ]
        try:
            # A connection that ends on one side, or breaks, ends on the other.
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            self._links.discard(link)
            for each in (writer, server_writer):
                with contextlib.suppress(OSError, RuntimeError):
                    each.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool) -> None:
        with contextlib.suppress(OSError, RuntimeError):
            while data := await reader.read(CHUNK_BYTES):
                await self._passing.wait()
                if self.mode is Mode.DELAY:
                    await asyncio.sleep(self.delay_s)
                if self.mode is Mode.CUT and is_answer:
                    writer.write(data[: min(self.cut_after_bytes, len(data) - 1)])
                    await writer.drain()
                    return
                writer.write(data)
                await writer.drain()
            await self._passing.wait()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close it with RST, as a host that knows nothing of the connection answers."""
    raw = writer.get_extra_info("socket")
    if raw is not None:
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


class Proxies:
    """All proxies of a site, served by one thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="proxies", daemon=True)
        self._thread.start()
        self.by_name: dict[str, Proxy] = {}

    def add(self, name: str, to: Callable[[], int | None]) -> Proxy:
        proxy = self.by_name[name] = Proxy(name, to, self._loop)
        self._run(proxy.start())
        return proxy

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _serve(self) -> None:
        """Until it is closed. Nothing is left unfinished then: a destructor would run at some later moment."""
        self._loop.run_forever()
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _end(self) -> None:
        for proxy in self.by_name.values():
            proxy.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # connections close in the next round

    def _run(self, work: Awaitable[None]) -> None:
        async def wait() -> None:
            await work

        asyncio.run_coroutine_threadsafe(wait(), self._loop).result(10)
