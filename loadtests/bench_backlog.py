"""What a backlog of one tenant costs: how quickly it is projected, and how long a neighbour's boards wait beside it.

As an import of a million views leaves it: a row of the outbox for each page of each batch. One worker does everything,
so nothing but the order of its work decides how long the neighbour waits.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Self

import psycopg

from loadtests import latency, rows
from loadtests.dataset import DataSet, TenantSize
from loadtests.latency import Latency
from loadtests.target import Target, running_target
from tenants.queue import CRON_LEADER

NEIGHBOUR, BUSY = "neighbour", "busy"
DATA = DataSet("backlog", [TenantSize(NEIGHBOUR, 2_000, 2_000, days=10), TenantSize(BUSY, 100_000, 1_000, days=10)])
SMALL, LARGE = 10_000, 1_000_000
# In turn, so that both meet the same machine.
ROUNDS = 3
LIKES_PER_S = 50
MEASURED_S = 20.0
# How much of the large backlog is drained, at whose beginning and end the rate is measured.
DRAINED_ROWS = 200_000
MEASURED_ROWS = 20_000
MAX_EXTRA_MS = 500.0
LOOK_EVERY_S = 0.5
STEPS_LOOK_EVERY_S = 0.01


def backlog(seconds: float) -> None:
    """Print the rates and the neighbour's wait; `seconds` is not used, since a backlog takes as long as it takes."""
    del seconds
    with running_target(DATA, "--workers", "1") as target, target.owner() as owner:
        print("Rows of the outbox projected in a second, by one worker")
        small = sorted(_small_rate(owner) for _ in range(ROUNDS))[ROUNDS // 2]
        print(f"  {SMALL:>9,} rows: {small:>8,.0f}/s")
        for what, snapshot in (("", nullcontext()), (", beside a transaction with an old snapshot", _snapshot(target))):
            with snapshot, _LongestStep(target) as longest:
                first, last = _drain(owner)
            print(
                f"  {LARGE:>9,} rows{what}: the first {MEASURED_ROWS:,} {first:,.0f}/s ({first / small:.2f} of it),"
                f" and after {DRAINED_ROWS:,} {last:,.0f}/s ({last / first:.2f} of the first);"
                f" longest step {longest.longest_s:.2f} s"
            )
        print(f"From a like of the neighbour to its board, {LIKES_PER_S} likes/s")
        alone = _measure(target)
        _print("alone", alone)
        _fill(owner, LARGE)
        beside = _measure(target)
        left = _waiting(owner)
        _print(f"beside {LARGE:,} rows", beside, f"   p99 + {beside.p99_ms - alone.p99_ms:.0f} ms (≤ {MAX_EXTRA_MS:g})")
        print(f"  {left:,} rows were left at its end")
        _drop(owner)


@contextmanager
def _snapshot(target: Target) -> Iterator[None]:
    """A transaction that may still see each row that is deleted."""
    with psycopg.connect(target.addresses["database_url"]) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute("SELECT count(*) FROM tenants")
        yield


class _LongestStep:
    """The longest transaction of a worker meanwhile. (A step has two; the shorter ones are not noticed.)"""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.longest_s = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _look(self) -> None:
        with self._target.owner() as owner:
            while not self._stopped.wait(STEPS_LOOK_EVERY_S):
                for (age_s,) in owner.execute(_OPEN_FOR_S).fetchall():
                    self.longest_s = max(self.longest_s, float(age_s))


def _measure(target: Target) -> Latency:
    return latency.measure(target, seconds=MEASURED_S, per_second=LIKES_PER_S)


def _print(what: str, measured: Latency, more: str = "") -> None:
    print(f"  {what:<24}p50 {measured.p50_ms:6.0f} ms   p99 {measured.p99_ms:6.0f} ms{more}")


def _small_rate(owner: "psycopg.Connection[Any]") -> float:
    _fill(owner, SMALL)
    rate = _rate(owner, until=0)
    _drop(owner)
    return rate


def _drain(owner: "psycopg.Connection[Any]") -> tuple[float, float]:
    """The rates at the beginning and at the end."""
    _fill(owner, LARGE)
    first = _rate(owner, until=LARGE - MEASURED_ROWS)
    _rate(owner, until=LARGE - DRAINED_ROWS + MEASURED_ROWS)
    last = _rate(owner, until=LARGE - DRAINED_ROWS)
    _drop(owner)
    return first, last


def _rate(owner: "psycopg.Connection[Any]", *, until: int, within_s: float = 600) -> float:
    """Rows a second, until so many are left."""
    before, began = _waiting(owner), time.perf_counter()
    left, now = before, began
    while left > until and now - began < within_s:
        time.sleep(LOOK_EVERY_S)
        left, now = _waiting(owner), time.perf_counter()
    return (before - left) / (now - began)


def _fill(owner: "psycopg.Connection[Any]", size: int) -> None:
    """Mark pages as stale, in one commit. Each has one view more, so that its boards change."""
    with owner.transaction():
        owner.execute(rows.VIEW_EVERY_PAGE, {"tenant": BUSY})
        owner.execute(rows.COUNT_EVERY_PAGE, {"tenant": BUSY})
        owner.execute(rows.BACKLOG, {"tenant": BUSY, "size": size, "shuffle": rows.SHUFFLE})


def _drop(owner: "psycopg.Connection[Any]") -> None:
    """Forget the backlog, so that the next one is projected alone. The busy tenant's boards are not looked at."""
    owner.execute("DELETE FROM outbox WHERE tenant_id = %s", [BUSY])
    owner.execute("VACUUM outbox")


def _waiting(owner: "psycopg.Connection[Any]") -> int:
    row = owner.execute("SELECT count(*) FROM outbox WHERE tenant_id = %s", [BUSY]).fetchone()
    return int(row[0]) if row else 0


# Only the worker uses the service's login meanwhile, and the leader of the schedule, whose transaction stays open.
_OPEN_FOR_S = f"""
    SELECT extract(epoch FROM clock_timestamp() - xact_start) FROM pg_stat_activity
    WHERE xact_start IS NOT NULL AND backend_type = 'client backend' AND usename <> current_user
      AND application_name <> '{CRON_LEADER}'
"""  # noqa: S608  a constant
