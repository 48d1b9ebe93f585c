"""What a process keeps of boards between requests, so that most reads need neither PostgreSQL nor a second question to
Redis: what rows show of pages, the ids of pages, and the ranks of the day before.

It is kept only while this process receives what is published about boards (`analytics.boards.listener`), and dropped
when it changes; and for a bounded time, whatever is published. Other processes (workers, commands) keep nothing.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import date
from typing import Any, Generic, TypeVar

from analytics.boards.names import Board
from analytics.boards.snapshots import RanksOfADay

MAX_SUMMARIES = 20_000
MAX_PAGE_IDS = 50_000
MAX_RANKS = 64
SUMMARIES_FOR_S = 900.0
PAGE_IDS_FOR_S = 3600.0
RANKS_FOR_S = 60.0
# While a day has no record yet: it is made soon after the day's end.
NO_RANKS_FOR_S = 2.0

Key = TypeVar("Key")
Value = TypeVar("Value")


class Kept(Generic[Key, Value]):
    """The newest values, for a while. The oldest make room."""

    def __init__(self, max_values: int, *, for_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_values, self._for_s, self._clock = max_values, for_s, clock
        self._values: dict[Key, tuple[float, Value]] = {}
        self._lock = threading.Lock()

    def get(self, key: Key) -> Value | None:
        kept = self._values.get(key)
        return kept[1] if kept is not None and kept[0] > self._clock() else None

    def get_all(self, keys: Iterable[Key]) -> list[Value | None]:
        """The same for each of these."""
        values, now = self._values, self._clock()
        return [kept[1] if (kept := values.get(key)) is not None and kept[0] > now else None for key in keys]

    def keep(self, key: Key, value: Value, *, for_s: float | None = None) -> None:
        until = self._clock() + (self._for_s if for_s is None else for_s)
        with self._lock:
            self._values.pop(key, None)
            self._values[key] = (until, value)
            while len(self._values) > self._max_values:
                del self._values[next(iter(self._values))]

    def drop(self, keys: Iterable[Key]) -> None:
        with self._lock:
            for key in keys:
                self._values.pop(key, None)

    def clear(self) -> None:
        with self._lock:
            self._values.clear()

    def __len__(self) -> int:
        return len(self._values)


class BoardMemory:
    """This process's memory of boards. `is_trusted`: whether nothing that is published can be missed."""

    def __init__(self, is_trusted: Callable[[], bool]) -> None:
        self.is_trusted = is_trusted
        # (tenant, page id) → what a row shows of the page
        self.summaries: Kept[tuple[str, str], Mapping[str, Any]] = Kept(MAX_SUMMARIES, for_s=SUMMARIES_FOR_S)
        # (tenant, external id) → page id. A page that was deleted is on no board: whoever misses it there asks again.
        self.page_ids: Kept[tuple[str, str], str] = Kept(MAX_PAGE_IDS, for_s=PAGE_IDS_FOR_S)
        # (board, day) → the ranks at its end; a tuple, since there may be none
        self.ranks: Kept[tuple[Board, date], tuple[RanksOfADay | None]] = Kept(MAX_RANKS, for_s=RANKS_FOR_S)
        # Counts what was dropped: what was read before a drop is not kept after it.
        self.drops = 0

    def keep_page(self, tenant_id: str, page_id: str, summary: Mapping[str, Any]) -> None:
        """What a row shows of a page, and so the page's id by its external id. `tenant_id`: whose boards show it."""
        self.summaries.keep((tenant_id, page_id), summary)
        self.page_ids.keep((summary["tenant"], summary["external_id"]), page_id)

    def on_change(self, message: Mapping[str, Any]) -> None:
        """What was published: summaries that changed are dropped."""
        if message.get("resync"):
            self.clear()
        changed = message.get("summaries", ())
        if changed:
            self.drops += 1
            self.summaries.drop((message["tenant"], page_id) for page_id in changed)

    def clear(self) -> None:
        """Messages, or commits of PostgreSQL, may have been lost."""
        self.drops += 1
        self.summaries.clear()
        self.page_ids.clear()
        self.ranks.clear()
