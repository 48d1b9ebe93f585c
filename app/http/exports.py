"""Long answers, such as a whole board: how many at once, in which pieces, and for how long.

An answer is sent as the reader reads it (`app.server.wsgi_calls`): a few pieces are on their way, and then the thread
that serves the answer waits. So a slow reader costs a thread. Hence the bounds here: concurrent exports, in a process
and for each tenant in all of them; bytes of a piece; and seconds of a whole export, for a reader who reads a little now
and then. (For one who reads nothing the server has a bound.)
"""

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import structlog

from tenants.errors import Limited
from tenants.open_counts import Group, OpenCounts

MAX_EXPORTS = 16
# Of these, for strangers: anonymous readers with a publishable key, and self-registered users.
MAX_EXPORTS_FOR_STRANGERS = 8
MAX_EXPORTS_PER_TENANT = 2
MAX_EXPORTS_PER_STRANGER = 1
MAX_PIECE_BYTES = 64 * 1024
MAX_EXPORT_S = 900.0
RETRY_AFTER_S = 10

log = structlog.get_logger()


class TooManyExports(Limited):
    code = "too_many_exports"
    title = "Too many exports are running: read one to its end, or try again later"


class Export:
    """A running export: its slot, and its pieces. `close` releases the slot, and may be called repeatedly."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._release = release
        self._closed = threading.Lock()  # locked by the first `close`, for ever
        self._pieces: Iterator[bytes] = iter(())

    def with_content(self, parts: Iterator[bytes]) -> "Export":
        self._pieces = _pieces(parts, deadline=time.monotonic() + MAX_EXPORT_S)
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
        if self._closed.acquire(blocking=False):
            self._release()

    def __del__(self) -> None:
        self.close()  # the answer was never passed to the server


# Those of each tenant, and of each stranger, in all processes.
_everywhere = OpenCounts("exports")


class Exports:
    """The exports that run in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all = self._for_strangers = 0

    def begin(self, tenant_id: str, start: Callable[[], Iterator[bytes]], *, stranger: str | None = None) -> Export:
        """An export of what `start` returns; its slot is released if that fails.

        A `stranger` (a network with a publishable key, or a self-registered user) uses no slot of the tenant's own.
        """
        group = (tenant_id, stranger or "")
        limits = {group: MAX_EXPORTS_PER_TENANT if stranger is None else MAX_EXPORTS_PER_STRANGER}
        if not self._take_slot(is_stranger=stranger is not None):
            raise TooManyExports(retry_after_s=RETRY_AFTER_S)
        if _everywhere.open(limits) is not None:
            self._release_slot(is_stranger=stranger is not None)
            raise TooManyExports(retry_after_s=RETRY_AFTER_S)
        export = Export(partial(self._end, group))
        try:
            return export.with_content(start())
        except BaseException:
            export.close()
            raise

    def _end(self, group: Group) -> None:
        _everywhere.close([group])
        self._release_slot(is_stranger=group[1] != "")

    def _take_slot(self, *, is_stranger: bool) -> bool:
        """One of this process's."""
        with self._lock:
            if self._all >= MAX_EXPORTS or (is_stranger and self._for_strangers >= MAX_EXPORTS_FOR_STRANGERS):
                return False
            self._all += 1
            self._for_strangers += is_stranger
            return True

    def _release_slot(self, *, is_stranger: bool) -> None:
        with self._lock:
            self._all -= 1
            self._for_strangers -= is_stranger


def _pieces(parts: Iterator[bytes], *, deadline: float) -> Iterator[bytes]:
    """The parts in small pieces. An export that ends too early has a last line that begins with `# incomplete`."""
    try:
        for part in parts:
            for start in range(0, len(part), MAX_PIECE_BYTES):
                if time.monotonic() > deadline:
                    yield f"\r\n# incomplete: stopped after {MAX_EXPORT_S:.0f} s\r\n".encode()
                    return
                yield part[start : start + MAX_PIECE_BYTES]
    except Exception:
        log.exception("an export failed after it had started", action="export.failed")
        yield b"\r\n# incomplete: something went wrong on our side\r\n"
