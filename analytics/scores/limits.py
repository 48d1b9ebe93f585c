"""How fast scores may grow: a rate limit for each user's own claims, one for what a tenant's apps claim, and breakers
against spikes of a tenant or of all tenants.

They apply to new payments only: a replay is answered before them and is not counted.

A tenant's breaker counts what all processes pay. No payment waits for that: each process counts its own, and once a
second adds them to a counter in Redis, whose growth says what the others have paid (`Breakers.exchange`). So a tenant
may exceed its limit by what is paid in that second, and by what others paid before a process had reached a thousandth
of the limit and began to exchange. Without Redis, or while a cluster's node is away that has the tenant's counter, each
process counts alone, and others never hear of what it paid then.
"""

import contextlib
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from enum import Enum

import structlog

from tenants import allowances
from tenants.allowances import Taken
from tenants.errors import Unavailable
from tenants.metrics import Counter, Gauge
from tenants.redis import RedisUnavailable, boards, key
from tenants.shares import share_of
from tenants.throttle import PREFIX, State, TooMany

NAME = "scores"
APP_ACTIONS = "app-actions"
WINDOW_S = 60
# For all tenants together, in one process; far above what one can pay in a minute. A tenant's own limit is a setting.
MAX_PER_MINUTE = 3_000_000
OPEN_S = 10.0
PROBES = 5
EXCHANGE_EVERY_S = 1.0
# Below this part of a tenant's limit a process does not exchange: most tenants cost nothing.
MIN_EXCHANGED_SHARE = 1 / 1000
KEPT_S = 2 * WINDOW_S

log = structlog.get_logger()

TRIPPED = Counter("plaudit_score_breaker_tripped_total", "How often a breaker against spikes opened.", ["breaker"])
OPEN = Gauge("plaudit_score_breaker_open", "Whether a breaker is open.", ["breaker"], multiprocess_mode="livemax")


class TooBusy(Unavailable):
    code = "score_spike"
    title = "Too many score updates: try again in a moment"


def require_user(*, per_minute: int, updates: int, oldest_at: datetime | None, now: datetime) -> State:
    """Admit one more update of a user who had `updates` in the last minute, the first at `oldest_at`; or raise TooMany.

    They are counted in the ledger while the user's row is locked: exact with or without Redis, and there is nothing to
    undo when the transaction is rolled back.
    """
    start = now - timedelta(seconds=WINDOW_S)
    wait_s = (oldest_at - start).total_seconds() if oldest_at is not None else WINDOW_S
    state = State(
        name=NAME,
        limit=per_minute,
        window_s=WINDOW_S,
        remaining=max(0, per_minute - updates - 1),
        resets_in_s=max(1, math.ceil(wait_s)),
        is_allowed=updates < per_minute,
    )
    if not state.is_allowed:
        raise TooMany(f"At most {per_minute} score updates a minute", state=state)
    return state


def take_app_actions(tenant_id: str, per_minute: int, wanted: int) -> Taken:
    """How many of the actions that a tenant's app sends may be paid now, under the tenant's own limit.

    They are taken before the commit, for all processes together, and what was not needed is given back after it.
    """
    return allowances.take(APP_ACTIONS, per_minute, wanted, tenant_id)


def give_back_app_actions(tenant_id: str, amount: int) -> None:
    allowances.give_back(APP_ACTIONS, amount, tenant_id)


def together(taken: Sequence[Taken]) -> Taken | None:
    """What the requests of a commit may use together; None: they have no such actions."""
    if not taken:
        return None
    longest = max(taken, key=lambda one: (not one.state.is_allowed, one.state.resets_in_s))
    return replace(longest, amount=sum(one.amount for one in taken))


class _Phase(Enum):
    CLOSED = "closed"
    OPEN = "open"
    PROBING = "half-open"


class Breaker:
    """Opens above a number of payments a minute; after a while admits a few, and closes if the spike is over.

    A payment is counted when it is committed, so one that is rolled back is not counted.
    """

    def __init__(self, name: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self._clock = clock
        self._lock = threading.Lock()
        # [second, arrivals], of the last minute: bounded.
        self._seconds: deque[list[int]] = deque()
        self._arrived = 0
        self._phase = _Phase.CLOSED
        self._since = 0.0
        self._probes = 0
        self._max_per_minute = 0
        # What the other processes have not been told of, and the counter of all when they last were.
        self._untold = 0
        self._total: int | None = None

    def require(self, max_per_minute: int, *, pending: int = 0) -> None:
        """Admit one payment, or raise TooBusy. After its commit `passed` counts it.

        `pending`: how many were admitted in the same transaction, which are not committed yet.
        """
        with self._lock:
            now, self._max_per_minute = self._clock(), max_per_minute
            if self._phase is _Phase.OPEN and now - self._since >= OPEN_S:
                self._phase, self._since, self._probes = _Phase.PROBING, now, 0
            if self._phase is _Phase.PROBING:
                if self._probes < PROBES:
                    self._probes += 1
                    return
                if self._recent(now, OPEN_S) * 60 / OPEN_S > max_per_minute:
                    self._open(now, first=False)
                else:
                    self._close()
            self._drop_old(now)
            if self._phase is _Phase.CLOSED and self._arrived + pending >= max_per_minute:
                self._open(now, first=True)
            if self._phase is _Phase.OPEN:
                self._count(now)  # refused payments show whether the spike continues
                raise TooBusy(retry_after_s=max(1.0, OPEN_S - (now - self._since)))

    def passed(self, payments: int = 1) -> None:
        """Payments that were admitted are committed."""
        with self._lock:
            self._count(self._clock(), payments)

    def take_untold(self) -> int | None:
        """What this process counted since it was last asked; None: too little to tell others."""
        with self._lock:
            self._drop_old(self._clock())
            untold, self._untold = self._untold, 0
            if self._arrived and self._arrived >= self._max_per_minute * MIN_EXCHANGED_SHARE:
                return untold
            self._total = None
            return None

    def told(self, untold: int, total: int | None) -> None:
        """The counter of all processes after this one's part was added.

        None: it may have been or not. It is not added again, so that no spike appears where none was.
        """
        with self._lock:
            by_others = total - untold - self._total if total is not None and self._total is not None else 0
            self._total = total
            if by_others > 0:  # less than nothing: the counter was lost, and began again
                self._count(self._clock(), by_others, by_others=True)

    def _count(self, now: float, payments: int = 1, *, by_others: bool = False) -> None:
        if not by_others:
            self._untold += payments
        second = int(now)
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append([second, 0])
        self._seconds[-1][1] += payments
        self._arrived += payments
        self._drop_old(now)

    def _drop_old(self, now: float) -> None:
        while self._seconds and self._seconds[0][0] <= int(now) - WINDOW_S:
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
    """One breaker for each tenant, of all processes; and one for all tenants, which protects this process."""

    def __init__(self) -> None:
        self._all = Breaker("_all")
        self._tenants: dict[str, Breaker] = {}
        self._lock = threading.Lock()
        self._pid = 0

    def require(self, tenant_id: str, *, max_per_minute: int, pending: int) -> None:
        # Whatever a tenant's setting is, it cannot open the common breaker alone.
        self._of(tenant_id).require(min(max_per_minute, share_of(MAX_PER_MINUTE)), pending=pending)
        self._all.require(MAX_PER_MINUTE, pending=pending)

    def passed(self, tenant_id: str, payments: int) -> None:
        self._of(tenant_id).passed(payments)
        self._all.passed(payments)
        if self._pid != os.getpid():  # nothing is started before a fork
            self._start()

    def exchange(self) -> None:
        """Tell the other processes what was counted here since the last time, and count what they did."""
        untold = {breaker: breaker.take_untold() for breaker in list(self._tenants.values())}
        told = {breaker: amount for breaker, amount in untold.items() if amount is not None}
        totals: list[int | None] = [None] * len(told)
        with contextlib.suppress(RedisUnavailable):
            if told:
                totals = _add([breaker.name for breaker in told], list(told.values()))
        for (breaker, amount), total in zip(told.items(), totals, strict=True):
            breaker.told(amount, total)

    def _start(self) -> None:
        with self._lock:
            if self._pid != os.getpid():
                self._pid = os.getpid()
                threading.Thread(target=self._run, name="breakers", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(EXCHANGE_EVERY_S)
            try:
                self.exchange()
            except Exception:  # the next one may succeed
                log.exception("breakers were not exchanged", action="breaker.failed")

    def _of(self, tenant_id: str) -> Breaker:
        return self._tenants.setdefault(tenant_id, Breaker(tenant_id))


def _add(tenant_ids: Sequence[str], amounts: Sequence[int]) -> list[int | None]:
    """Each tenant's counter of all processes, after this was added; None if its node is away. In one round trip."""
    with boards().client() as client:
        pipeline = client.pipeline(transaction=False)
        for tenant_id, amount in zip(tenant_ids, amounts, strict=True):
            pipeline.incrby(counter_of(tenant_id), amount)
            pipeline.expire(counter_of(tenant_id), KEPT_S)
        answers = pipeline.execute(raise_on_error=False)[::2]
        return [answer if isinstance(answer, int) else None for answer in answers]


def counter_of(tenant_id: str) -> str:
    return key(PREFIX, tenant_id, "paid")


breakers = Breakers()
