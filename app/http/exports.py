"""Long answers, such as a whole board: how many at once, in which pieces, and for how long.

An answer is sent as the reader reads it (`app.server.wsgi_calls`): a few pieces are on their way, and then the thread
that serves the answer waits. So a slow reader costs a thread. Hence the bounds here: concurrent exports, in a process
and for each tenant in all of them, of which a caller has half while another caller of that tenant is refused some;
bytes of a piece; and seconds of a whole export, for a reader who reads a little now
and then. (For one who reads nothing the server has a bound.)
"""

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import structlog

from tenants.errors import Limited
from tenants.open_counts import Group, OpenCounts
from tenants.shares import Refusals, current_caller, half_of

MAX_EXPORTS = 16
# Of these, for strangers: anonymous readers with a publishable key, and self-registered users.
MAX_EXPORTS_FOR_STRANGERS = 8
MAX_EXPORTS_PER_TENANT = 2
MAX_EXPORTS_PER_STRANGER = 1
MAX_PIECE_BYTES = 64 * 1024
MAX_EXPORT_S = 900.0
RETRY_AFTER_S = 10
# So long a refusal leaves one of the tenant's exports to the caller that was refused: it comes back meanwhile.
CONTENDED_FOR_S = 2.0 * RETRY_AFTER_S
# Tenants of which a caller was refused lately.
MAX_CONTENDED = 1_000

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
        self._refusals: dict[str, Refusals] = {}

    def begin(self, tenant_id: str, start: Callable[[], Iterator[bytes]], *, stranger: str | None = None) -> Export:
        """An export of what `start` returns; its slot is released if that fails.

        A `stranger` (a network with a publishable key, or a self-registered user) uses no slot of the tenant's own.
        """
        is_stranger, caller = stranger is not None, current_caller.get().name
        limits = {(tenant_id, stranger): MAX_EXPORTS_PER_STRANGER} if stranger else self._limits(tenant_id, caller)
        if not self._take_slot(is_stranger=is_stranger):
            raise TooManyExports(retry_after_s=RETRY_AFTER_S)
        if _everywhere.open(limits) is not None:
            self._release_slot(is_stranger=is_stranger)
            if not is_stranger:  # their exports are none of the tenant's own
                self._note_refusal(tenant_id, caller)
            raise TooManyExports(retry_after_s=RETRY_AFTER_S)
        export = Export(partial(self._end, list(limits), is_stranger=is_stranger))
        try:
            return export.with_content(start())
        except BaseException:
            export.close()
            raise

    def _limits(self, tenant_id: str, caller: str) -> dict[Group, int]:
        """The groups of an export of the tenant's own, and how many each may have."""
        refusals = self._refusals.get(tenant_id)
        is_contended = refusals is not None and refusals.are_of_others(caller)
        of_caller = half_of(MAX_EXPORTS_PER_TENANT) if is_contended else MAX_EXPORTS_PER_TENANT
        return {(tenant_id, ""): MAX_EXPORTS_PER_TENANT, (tenant_id, f"of {caller}"): of_caller}

    def _note_refusal(self, tenant_id: str, caller: str) -> None:
        with self._lock:
            if len(self._refusals) >= MAX_CONTENDED:
                self._refusals.clear()  # at worst, whoever was refused is refused once more
            self._refusals.setdefault(tenant_id, Refusals(for_s=CONTENDED_FOR_S)).note(caller)

    def _end(self, groups: list[Group], *, is_stranger: bool) -> None:
        _everywhere.close(groups)
        self._release_slot(is_stranger=is_stranger)

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
