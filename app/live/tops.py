"""The first rows of boards, as frames carry them: read once for all connections."""

import threading
import time
from dataclasses import dataclass, field
from typing import Any

import orjson
import structlog

from analytics.boards import reading
from analytics.boards.names import Board
from app.http.boards import rows_as_json
from tenants.db import utcnow
from tenants.errors import Unavailable

# A read that did not find the wanted version, or failed, is not repeated within this time.
READ_AGAIN_AFTER_S = 0.4
MAX_ENTRIES = 200

log = structlog.get_logger()


Rows = list[dict[str, Any]]


@dataclass(slots=True)
class Top:
    version: int
    items: Rows
    body: orjson.Fragment
    # That a newer version was wanted, and PostgreSQL has confirmed that there is none: it was lost with a server.
    is_newest: bool = False
    # The rows that most followers were sent before, and which positions differ: computed once for all of them.
    _compared: tuple[Rows | None, list[int]] | None = None

    def changed_positions(self, before: Rows | None) -> list[int]:
        """The positions whose rows differ from those that were sent before (None: nothing was)."""
        compared = self._compared
        if compared is None or compared[0] is not before:
            old, new = ({row["rank"]: row for row in rows} for rows in (before or [], self.items))
            changed = sorted(rank for rank in old.keys() | new.keys() if old.get(rank) != new.get(rank))
            compared = self._compared = before, changed
        return compared[1]


@dataclass
class _Entry:
    """The rows of a board, so many, with these fields of users."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    top: Top | None = None
    wanted: int = -1
    read_at: float = 0.0


class Tops:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[tuple[Board, int, tuple[str, ...]], _Entry] = {}

    def get(self, board: Board, limit: int, version: int, fields: tuple[str, ...]) -> Top:
        """The rows at this version or a newer one; at an older one if no newer can be read yet.

        `fields`: of users, those that the follower may see.
        """
        with self._lock:
            if len(self._entries) >= MAX_ENTRIES:
                self._entries.clear()
            entry = self._entries.setdefault((board, limit, fields), _Entry())
        with entry.lock:
            is_new_enough = entry.top is not None and entry.top.version >= version
            was_just_tried = version <= entry.wanted and time.monotonic() - entry.read_at < READ_AGAIN_AFTER_S
            if not is_new_enough and not was_just_tried:
                entry.top = _read(board, limit, fields, at_least=version)
                entry.wanted, entry.read_at = version, time.monotonic()
            if entry.top is None:
                raise Unavailable
            return entry.top

    def forget(self) -> None:
        """Versions may have been lost with a server: read all boards again."""
        with self._lock:
            self._entries.clear()


def _read(board: Board, limit: int, fields: tuple[str, ...], *, at_least: int) -> Top | None:
    """None: it cannot be read at the moment."""
    try:
        shown = reading.read(board, reading.Top(limit), now=utcnow(), at_least=at_least)
        is_newest = shown.version < at_least and reading.is_newest(board, shown.version, now=utcnow())
    except Exception as error:  # noqa: BLE001  an outage of any kind
        log.warning("cannot read a board", action="live.top", data={"error": type(error).__name__})
        return None
    items = rows_as_json(shown, fields)
    return Top(shown.version, items, orjson.Fragment(orjson.dumps(items, option=orjson.OPT_UTC_Z)), is_newest)
