"""The first rows of boards, as frames carry them: read once, however many connections ask."""

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

# Where a change was looked for and had not arrived, or nothing could be read, nobody looks again within this time.
READ_AGAIN_AFTER_S = 0.4
MOST_KEPT = 200

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Top:
    version: int
    items: list[dict[str, Any]]
    body: orjson.Fragment


@dataclass
class _Asked:
    """One question: a board, how many rows, for whom."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    top: Top | None = None
    wanted: int = -1
    read_at: float = 0.0


class Tops:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: dict[tuple[Board, int, bool], _Asked] = {}

    def get(self, board: Board, limit: int, version: int, *, external_ids: bool) -> Top:
        """The rows at this version or a newer one, or an older one if there is no other yet."""
        with self._lock:
            if len(self._asked) >= MOST_KEPT:
                self._asked.clear()
            asked = self._asked.setdefault((board, limit, external_ids), _Asked())
        with asked.lock:
            is_new_enough = asked.top is not None and asked.top.version >= version
            is_in_vain = version <= asked.wanted and time.monotonic() - asked.read_at < READ_AGAIN_AFTER_S
            if not is_new_enough and not is_in_vain:
                asked.top = _read(board, limit, external_ids=external_ids)
                asked.wanted, asked.read_at = version, time.monotonic()
            if asked.top is None:
                raise Unavailable
            return asked.top


def _read(board: Board, limit: int, *, external_ids: bool) -> Top | None:
    """None: it cannot be read at the moment."""
    try:
        shown = reading.read(board, reading.Top(limit), now=utcnow())
    except Exception as error:  # noqa: BLE001  an outage, of whatever kind
        log.warning("cannot read a board", action="live.top", data={"error": type(error).__name__})
        return None
    items = rows_as_json(shown, external_ids=external_ids)
    return Top(shown.version, items, orjson.Fragment(orjson.dumps(items, option=orjson.OPT_UTC_Z)))
