"""What a backlog of one tenant costs: how quickly it is projected, and how long a neighbour's boards wait beside it.

As an import of a million views leaves it: a row of the outbox for each page of each batch. One worker does everything,
so nothing but the order of its work decides how long the neighbour waits.
"""

import time
from collections.abc import Callable
from typing import Any

import psycopg

from loadtests import latency, rows
from loadtests.dataset import DataSet, TenantSize
from loadtests.latency import Latency
from loadtests.target import Target, running_target

NEIGHBOUR, BUSY = "neighbour", "busy"
DATA = DataSet("backlog", [TenantSize(NEIGHBOUR, 2_000, 2_000, days=10), TenantSize(BUSY, 100_000, 1_000, days=10)])
SMALL, LARGE = 10_000, 1_000_000
# In turn, so that both meet the same machine.
ROUNDS = 3
LIKES_PER_S = 50
MEASURED_S = 20.0
# How much of the large backlog is projected for its rate; the rest is beside the neighbour's likes, and then dropped.
MEASURED_ROWS = 20_000
MAX_EXTRA_MS = 500.0


def backlog(seconds: float) -> None:
    """Print the rates and the neighbour's wait; `seconds` is not used, since a backlog takes as long as it takes."""
    del seconds
    with running_target(DATA, "--workers", "1") as target, target.owner() as owner:
        print("Rows of the outbox projected in a second, by one worker")
        small, large = [], []
        for _ in range(ROUNDS):
            small.append(_rate(owner, SMALL, until=0))
            large.append(_rate(owner, LARGE, until=LARGE - MEASURED_ROWS))
        print(f"  {SMALL:>9,} rows: {_middle(small):>8,.0f}/s")
        print(f"  {LARGE:>9,} rows: {_middle(large):>8,.0f}/s   {_middle(large) / _middle(small):.2f} of it")
        print(f"From a like of the neighbour to its board, {LIKES_PER_S} likes/s")
        alone = _measure(target)
        _print("alone", alone)
        _fill(owner, LARGE)
        beside = _measure(target)
        left = _waiting(owner)
        _print(f"beside {LARGE:,} rows", beside, f"   p99 + {beside.p99_ms - alone.p99_ms:.0f} ms (≤ {MAX_EXTRA_MS:g})")
        print(f"  {left:,} rows were left at its end")
        _drop(owner)


def _measure(target: Target) -> Latency:
    return latency.measure(target, seconds=MEASURED_S, per_second=LIKES_PER_S)


def _print(what: str, measured: Latency, more: str = "") -> None:
    print(f"  {what:<24}p50 {measured.p50_ms:6.0f} ms   p99 {measured.p99_ms:6.0f} ms{more}")


def _rate(owner: "psycopg.Connection[Any]", size: int, *, until: int) -> float:
    """Rows a second, from a backlog of this size until so many are left."""
    _fill(owner, size)
    before, began = _waiting(owner), time.perf_counter()
    _wait(lambda: _waiting(owner) <= until)
    rate = (before - _waiting(owner)) / (time.perf_counter() - began)
    _drop(owner)
    return rate


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


def _wait(condition: Callable[[], bool], *, within_s: float = 600) -> None:
    deadline = time.monotonic() + within_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)


def _middle(rates: list[float]) -> float:
    return sorted(rates)[len(rates) // 2]
