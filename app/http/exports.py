"""Long answers, such as a whole board: how many at once, in which pieces, and for how long.

The server (granian 2.8) takes pieces from an answer's iterator as the reader takes them: it keeps four ahead, and then
the thread that serves the answer waits, without any limit of its own. So a reader who reads nothing costs a thread and
a few pieces for as long as it stays connected. Hence the bounds here: exports at once, for each tenant and in all;
bytes of a piece; seconds that a reader may take nothing (`app.stalled`); and seconds of an export in all, for a reader
who takes a little now and then.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import structlog

from app.http import stalled_readers
from tenants.errors import Limited

MAX_AT_ONCE = 16
# Of them, those of strangers: with a publishable key, or an account of their own making.
MAX_AT_ONCE_STRANGERS = 8
MAX_AT_ONCE_A_TENANT = 2
MAX_AT_ONCE_A_STRANGER = 1
MAX_PIECE_BYTES = 64 * 1024
MAX_EXPORT_S = 900.0
RETRY_AFTER_S = 10

log = structlog.get_logger()


class TooManyExports(Limited):
    code = "too_many_exports"
    title = "Too many exports are running: read one to its end, or try again later"


class Export:
    """One export's place among those that run, and its pieces. `close` gives the place back, however often."""

    def __init__(self, give_back: Callable[[], None]) -> None:
        self._give_back = give_back
        self._is_open = threading.Lock()  # held by whoever has closed it
        self._pieces: Iterator[bytes] = iter(())

    def of(self, parts: Iterator[bytes]) -> "Export":
        """With this content."""
        self._pieces = _pieces(parts, until=time.monotonic() + MAX_EXPORT_S)
        return self

    def __iter__(self) -> "Export":
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._pieces)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._is_open.acquire(blocking=False):
            self._give_back()

    def __del__(self) -> None:
        self.close()  # an answer that never came as far as the server


class Exports:
    """The exports that run in this process."""

    def __init__(self, *, port: int) -> None:
        self._port = port
        self._lock = threading.Lock()
        self._running: Counter[str] = Counter()

    def begin(self, tenant_id: str, make: Callable[[], Iterator[bytes]], *, stranger: str | None = None) -> Export:
        """An export of what `make` returns; it is closed again where that fails.

        A `stranger` (a network with a publishable key, who registered alone) takes no place of the tenant's own.
        """
        limits = {"": MAX_AT_ONCE, tenant_id: MAX_AT_ONCE_A_TENANT}
        if stranger is not None:
            name = f"{tenant_id} {stranger}"
            limits = {"": MAX_AT_ONCE, " ": MAX_AT_ONCE_STRANGERS, name: MAX_AT_ONCE_A_STRANGER}
        with self._lock:
            if any(self._running[name] >= limit for name, limit in limits.items()):
                raise TooManyExports(retry_after_s=RETRY_AFTER_S)
            self._running.update(limits.keys())
        export = Export(partial(self._end, limits.keys()))
        try:
            stalled_readers.cut_off(self._port)
            return export.of(make())
        except BaseException:
            export.close()
            raise

    def _end(self, names: Iterable[str]) -> None:
        with self._lock:
            self._running.subtract(names)
            self._running = +self._running


def _pieces(parts: Iterator[bytes], *, until: float) -> Iterator[bytes]:
    """Small ones, whatever the size of the parts. What ends too early says so in its last line."""
    try:
        for part in parts:
            for start in range(0, len(part), MAX_PIECE_BYTES):
                if time.monotonic() > until:
                    yield f"\r\n# incomplete: stopped after {MAX_EXPORT_S:.0f} s\r\n".encode()
                    return
                yield part[start : start + MAX_PIECE_BYTES]
    except Exception:
        log.exception("an export failed half way", action="export.failed")
        yield b"\r\n# incomplete: something went wrong on our side\r\n"
