"""How fast scores may grow: each user by the minute, and breakers against spikes of a tenant or of everybody.

All of it is for new effects: whoever asks again for something done before is answered first, and counts nowhere.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import datetime, timedelta
from enum import Enum
from uuid import UUID

import structlog
from prometheus_client import Counter, Gauge
from sqlalchemy import text

from tenants import throttle
from tenants.db import Tx
from tenants.errors import Unavailable
from tenants.throttle import State, TooMany

NAME = "scores"
WINDOW_S = 60
# For everybody together, in one process. A tenant's own is a setting.
MOST_PER_MINUTE = 300_000
OPEN_S = 10.0
PROBES = 5

log = structlog.get_logger()

TRIPPED = Counter("plaudit_score_breaker_tripped_total", "How often a breaker against spikes opened.", ["breaker"])
OPEN = Gauge("plaudit_score_breaker_open", "Whether a breaker is open.", ["breaker"], multiprocess_mode="livemax")


class TooBusy(Unavailable):
    code = "score_spike"
    title = "Scores grow faster than they ever should: updates are held up for a moment"


def require_user(tx: Tx, user_id: UUID, *, per_minute: int, now: datetime) -> State:
    """Count one more update of this user, who is held; TooMany above the limit. Without Redis, PostgreSQL counts."""
    state = throttle.shared_hit(NAME, throttle.per_minute(per_minute), tx.tenant, str(user_id))
    if state is None:
        state = _by_ledger(tx, user_id, per_minute=per_minute, now=now)
    if not state.allowed:
        raise TooMany(f"At most {per_minute} score updates a minute", state=state)
    return state


def _by_ledger(tx: Tx, user_id: UUID, *, per_minute: int, now: datetime) -> State:
    start = now - timedelta(seconds=WINDOW_S)
    row = tx.run(
        text("""
            SELECT count(*) AS n, min(at) AS oldest FROM score_ledger
            WHERE tenant_id = :tenant AND user_id = :user AND at > :start AND reverses IS NULL
        """),
        {"tenant": tx.tenant, "user": user_id, "start": start},
    ).one()
    wait = (row.oldest - start).total_seconds() if row.oldest is not None else WINDOW_S
    return State(
        name=NAME,
        limit=per_minute,
        window_s=WINDOW_S,
        remaining=max(0, per_minute - row.n - 1),
        resets_in_s=max(1, math.ceil(wait)),
        allowed=row.n < per_minute,
    )


class _Phase(Enum):
    CLOSED = "closed"
    OPEN = "open"
    PROBING = "half-open"


class Breaker:
    """Opens when more than so many come in a minute; after a while lets a few through, and closes if the rush is over.

    For one process: each guards what it is asked for.
    """

    def __init__(self, name: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self._clock = clock
        self._lock = threading.Lock()
        # Arrivals by the second: enough for a minute, and bounded.
        self._seconds: deque[list[int]] = deque()
        self._arrived = 0
        self._phase = _Phase.CLOSED
        self._since = 0.0
        self._probes = 0

    def require(self, most_per_minute: int) -> None:
        """Let one through, or TooBusy."""
        with self._lock:
            now = self._clock()
            self._arrive(now)
            rush = self._arrived > most_per_minute
            if self._phase is _Phase.CLOSED and rush:
                self._open(now, first=True)
            elif self._phase is _Phase.OPEN and now - self._since >= OPEN_S:
                self._phase, self._since, self._probes = _Phase.PROBING, now, 0
            if self._phase is _Phase.PROBING:
                if self._probes < PROBES:
                    self._probes += 1
                    return
                if self._recent(now, OPEN_S) * 60 / OPEN_S > most_per_minute:
                    self._open(now, first=False)
                else:
                    self._close()
            if self._phase is _Phase.OPEN:
                raise TooBusy(retry_after_s=max(1.0, OPEN_S - (now - self._since)))

    def _arrive(self, now: float) -> None:
        second = int(now)
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append([second, 0])
        self._seconds[-1][1] += 1
        self._arrived += 1
        while self._seconds and self._seconds[0][0] <= second - WINDOW_S:
            self._arrived -= self._seconds.popleft()[1]

    def _recent(self, now: float, seconds: float) -> int:
        return sum(count for second, count in self._seconds if second > now - seconds)

    def _open(self, now: float, *, first: bool) -> None:
        self._phase, self._since = _Phase.OPEN, now
        OPEN.labels(self.name).set(1)
        if first:
            TRIPPED.labels(self.name).inc()
            log.error("a breaker opened", action="breaker.opened", data={"breaker": self.name})

    def _close(self) -> None:
        self._phase = _Phase.CLOSED
        self._seconds.clear()
        self._arrived = 0
        OPEN.labels(self.name).set(0)
        log.info("a breaker closed", action="breaker.closed", data={"breaker": self.name})


class Breakers:
    """One for each tenant, and one for all of them."""

    def __init__(self) -> None:
        self._all = Breaker("_all")
        self._tenants: dict[str, Breaker] = {}

    def require(self, tenant_id: str, *, most_per_minute: int) -> None:
        self._tenants.setdefault(tenant_id, Breaker(tenant_id)).require(most_per_minute)
        self._all.require(MOST_PER_MINUTE)


breakers = Breakers()
