"""How much a tenant may have: ceilings that an operator sets, above whatever the tenant sets for itself.

A ceiling is checked only when a row is about to be created. Existing rows are then counted, at most up to the ceiling.
Each process caches its last count for twenty times as long as counting took, and adds what it has created since, so
counting takes at most a twentieth of a process's time. A count that is too slow for a request runs in a background
thread, and nothing is refused until it has finished.

So a ceiling is exact where one process creates rows and counting is quick. Several processes may exceed it by what they
created while they used cached counts; and for as long, deleted rows make no room.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

import structlog
from sqlalchemy import TextClause, select, text, update
from sqlalchemy.exc import DBAPIError

from tenants.db import Tx, run_together, tenant_tx
from tenants.errors import Conflict
from tenants.pipelines import Statement
from tenants.registry import Tenant, TenantNotFound
from tenants.waiting import require_may_wait

TRUST_FACTOR = 20
# In a request, and in the background thread.
COUNT_TIMEOUT_MS = 100
BACKGROUND_COUNT_TIMEOUT_MS = 60_000
RECOUNT_AFTER_S = 1.0
# Where there is room for more rows than can be created meanwhile, they are counted no more often than this.
FAR_BELOW_S = 10.0
MAX_NEW_ROWS = 100_000
RECENT_S = 3.0
MAX_CACHED = 10_000

log = structlog.get_logger()


class Ceiling(StrEnum):
    PAGES = "pages"
    USERS = "users"
    SPACES = "spaces"
    SEGMENTS = "segments"
    SOCKETS = "sockets"


Ceilings = Mapping[Ceiling, int]
# How many rows exist, counted up to a limit.
Count = Callable[[Tx, int], int]

DEFAULTS: Ceilings = {
    Ceiling.PAGES: 5_000_000,
    Ceiling.USERS: 5_000_000,
    Ceiling.SPACES: 1_000,
    Ceiling.SEGMENTS: 1_000,
    Ceiling.SOCKETS: 2_000,
}


class CeilingReached(Conflict):
    code = "ceiling_reached"
    title = "The tenant has reached its maximum"

    def __init__(self, ceiling: Ceiling, maximum: int) -> None:
        super().__init__(
            f"This tenant has its maximum of {maximum:,} {ceiling}: an operator can raise it (plaudit tenant limit)",
            errors={ceiling.value: [f"at most {maximum}"]},
        )


@dataclass
class _CachedCount:
    """The number of rows when they were counted, plus those that this process has created since."""

    number: int
    until: float


_counts: dict[tuple[str, Ceiling], _CachedCount] = {}
_recent: dict[str, tuple[float, Ceilings]] = {}
_lock = threading.Lock()
_counting = threading.Lock()  # one background count at a time


def read(tx: Tx) -> Ceilings:
    """The ceilings of the transaction's tenant."""
    return _complete(tx.scalar(select(Tenant.ceilings).where(Tenant.id == tx.tenant)))


def recent(tenant_id: str) -> Ceilings:
    """The ceilings as of a few seconds ago at most."""
    now = time.monotonic()
    cached = _recent.get(tenant_id)
    if cached is None or cached[0] < now:
        with tenant_tx(tenant_id) as tx:
            cached = (now + RECENT_S, read(tx))
        if len(_recent) >= MAX_CACHED:
            _recent.clear()
        _recent[tenant_id] = cached
    return cached[1]


def change(tx: Tx, tenant_id: str, changes: Ceilings) -> Ceilings:
    """Set some ceilings, as the owner; the others stay."""
    changed = (
        update(Tenant)
        .where(Tenant.id == tenant_id, Tenant.deleted_at.is_(None))
        .values(ceilings=Tenant.ceilings.op("||")({ceiling.value: number for ceiling, number in changes.items()}))
    )
    stored = tx.scalar(changed.returning(Tenant.ceilings))
    if stored is None:
        raise TenantNotFound(f"There is no tenant {tenant_id!r}")
    tx.after_commit(partial(_forget, tenant_id))
    return _complete(stored)


def _forget(tenant_id: str) -> None:
    _recent.pop(tenant_id, None)


def require(tx: Tx, ceiling: Ceiling, count: Count) -> None:
    """Raise CeilingReached if there is no room for one more row, which the caller is about to create."""
    granted, refusal = reserve(tx, ceiling, count, rows=1)
    if not granted:
        raise refusal


def reserve(tx: Tx, ceiling: Ceiling, count: Count, *, rows: int) -> tuple[int, CeilingReached]:
    """How many of these rows, which the caller is about to create, have room; and the error for the others."""
    maximum, key = read(tx)[ceiling], (tx.tenant, ceiling)
    cached = _fresh_count(key) or _recount(tx, key, maximum, count)
    with _lock:
        granted = max(0, min(rows, maximum - cached.number))
        cached.number += granted
    return granted, CeilingReached(ceiling, maximum)


def room(tenant_id: str, ceiling: Ceiling, count: Count) -> int:
    """How many rows may be created, as of a few seconds ago at most. Whoever creates some calls `add`.

    One caller counts; the others use the number of before meanwhile.
    """
    key, maximum = (tenant_id, ceiling), recent(tenant_id)[ceiling]
    cached = _fresh_count(key)
    if cached is None:
        require_may_wait()  # before it says that it counts
        before = _counts.get(key)
        if before is not None:
            with _lock:
                before.until = time.monotonic() + RECOUNT_AFTER_S
        with tenant_tx(tenant_id) as tx:
            cached = _recount(tx, key, maximum, count)
        if maximum - cached.number > MAX_NEW_ROWS:  # far below, the number may be older
            cached.until = max(cached.until, time.monotonic() + FAR_BELOW_S)
    return max(0, maximum - cached.number)


def add(tenant_id: str, ceiling: Ceiling, created: int) -> None:
    """So many rows were created since they were counted."""
    with _lock:
        cached = _counts.get((tenant_id, ceiling))
        if cached is not None:
            cached.number += created


def _fresh_count(key: tuple[str, Ceiling]) -> _CachedCount | None:
    cached = _counts.get(key)
    return cached if cached is not None and cached.until >= time.monotonic() else None


def count_values(table: str, columns: Sequence[str], *, scope: str) -> TextClause:
    """Count a tenant's values in indexed columns, also former ones that have boards of the scope; at most `:limit`.

    It goes through each index from one value to the next, so it takes as many steps as there are values.
    """
    walks = ", ".join(
        f"""found_{n}(value) AS (
            (SELECT {column} FROM {table} WHERE tenant_id = :tenant AND {column} IS NOT NULL ORDER BY {column} LIMIT 1)
            UNION ALL
            SELECT (SELECT t.{column} FROM {table} t WHERE t.tenant_id = :tenant AND t.{column} > found_{n}.value
                    ORDER BY t.{column} LIMIT 1)
            FROM found_{n} WHERE found_{n}.value IS NOT NULL
        )"""  # noqa: S608  our own names
        for n, column in enumerate(columns)
    )
    found = " UNION ".join(
        f"(SELECT value FROM found_{n} WHERE value IS NOT NULL LIMIT :limit)"  # noqa: S608  our own names
        for n in range(len(columns))
    )
    return text(f"""
        WITH RECURSIVE {walks}
        SELECT count(*) FROM (
            {found}
            UNION SELECT substr(scope, {len(scope) + 1}) FROM boards
                  WHERE tenant_id = :tenant AND starts_with(scope, '{scope}')
            LIMIT :limit) every
    """)  # noqa: S608  our own names


def _recount(tx: Tx, key: tuple[str, Ceiling], maximum: int, count: Count) -> _CachedCount:
    began = time.monotonic()
    number = _count_within(tx, COUNT_TIMEOUT_MS, lambda: count(tx, maximum + 1))
    if number is not None:
        return _remember(key, number, took_s=time.monotonic() - began)
    if _counting.acquire(blocking=False):
        threading.Thread(target=_count_in_background, args=(key, maximum, count), name="count", daemon=True).start()
    before = _counts.get(key)
    return _remember(key, before.number if before is not None else 0, took_s=RECOUNT_AFTER_S / TRUST_FACTOR)


def _count_in_background(key: tuple[str, Ceiling], maximum: int, count: Count) -> None:
    """Run by a thread of its own."""
    began = time.monotonic()
    try:
        with tenant_tx(key[0]) as tx:
            tx.set_statement_timeout(BACKGROUND_COUNT_TIMEOUT_MS)
            number = count(tx, maximum + 1)
        _remember(key, number, took_s=time.monotonic() - began)
    except Exception:
        log.exception("counting rows failed", action="ceilings.failed", tenantId=key[0], data={"ceiling": key[1].value})
    finally:
        _counting.release()


def _count_within(tx: Tx, timeout_ms: int, count: Callable[[], int]) -> int | None:
    """The count; None if it takes longer. The transaction then continues with its own timeout.

    After any other error it does not continue, and its connection may be lost: nothing is sent then.
    """
    run_together(tx.raw, Statement(b"SAVEPOINT counting"), Statement(b"SET LOCAL statement_timeout = %d" % timeout_ms))
    try:
        number = count()
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) != "57014":
            raise
        number = None
    run_together(tx.raw, Statement(b"ROLLBACK TO SAVEPOINT counting"), Statement(b"RELEASE SAVEPOINT counting"))
    return number


def _remember(key: tuple[str, Ceiling], number: int, *, took_s: float) -> _CachedCount:
    cached = _CachedCount(number, time.monotonic() + TRUST_FACTOR * took_s)
    with _lock:
        if len(_counts) >= MAX_CACHED:
            _counts.clear()
        _counts[key] = cached
    return cached


def _complete(stored: Mapping[str, Any] | None) -> Ceilings:
    return {ceiling: int((stored or {}).get(ceiling.value, default)) for ceiling, default in DEFAULTS.items()}
