"""How much a tenant may have: ceilings that an operator sets, above whatever the tenant sets for itself.

They are asked for only when something new is about to be made. What there is then is counted, at most up to the
ceiling. Each process trusts its last count for twenty times as long as it took, and adds what it has made since, so
counting costs a twentieth of a process's time at most. A count that takes too long for a request is made beside it by
a thread, and until that has an answer nothing is refused.

So a ceiling is exact where one process makes things and counting is quick. Several at once may pass it, by what they
made while they trusted their counts; and for as long, what was deleted makes no room.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import structlog
from sqlalchemy import TextClause, select, text, update
from sqlalchemy.exc import DBAPIError

from tenants.db import Tx, tenant_tx
from tenants.errors import Conflict
from tenants.registry import Tenant, TenantNotFound

TRUSTED_TIMES = 20
# In a request; and beside it.
QUICKLY_MS = 100
QUICKLY_SHARED_MS = 20  # where other tenants wait too
SLOWLY_MS = 60_000
TRY_AGAIN_AFTER_S = 1.0
RECENT_S = 3.0
MAX_REMEMBERED = 10_000

log = structlog.get_logger()


class Ceiling(StrEnum):
    PAGES = "pages"
    USERS = "users"
    SPACES = "spaces"
    SEGMENTS = "segments"
    SOCKETS = "sockets"


Ceilings = Mapping[Ceiling, int]
# How many there are, or `most` where there are more.
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
    title = "The tenant has as many as it may have"

    def __init__(self, ceiling: Ceiling, most: int) -> None:
        super().__init__(
            f"This tenant may have {most:,} {ceiling}, and has them: an operator can raise it (plaudit tenant limit)",
            errors={ceiling.value: [f"at most {most}"]},
        )


@dataclass
class _Known:
    """How many there were when they were counted, with those that this process has made since."""

    number: int
    until: float


_known: dict[tuple[str, Ceiling], _Known] = {}
_recent: dict[str, tuple[float, Ceilings]] = {}
_lock = threading.Lock()
_counting = threading.Lock()  # one thread at a time counts beside requests


def read(tx: Tx) -> Ceilings:
    """The ceilings of the transaction's tenant."""
    return _complete(tx.scalar(select(Tenant.ceilings).where(Tenant.id == tx.tenant)))


def recent(tenant_id: str) -> Ceilings:
    """The ceilings as of a few seconds ago at most."""
    now = time.monotonic()
    known = _recent.get(tenant_id)
    if known is None or known[0] < now:
        with tenant_tx(tenant_id) as tx:
            known = (now + RECENT_S, read(tx))
        if len(_recent) >= MAX_REMEMBERED:
            _recent.clear()
        _recent[tenant_id] = known
    return known[1]


def change(tx: Tx, tenant_id: str, most: Ceilings) -> Ceilings:
    """Set some of them, as the owner; the rest stays."""
    changed = (
        update(Tenant)
        .where(Tenant.id == tenant_id, Tenant.deleted_at.is_(None))
        .values(ceilings=Tenant.ceilings.op("||")({ceiling.value: number for ceiling, number in most.items()}))
    )
    stored = tx.scalar(changed.returning(Tenant.ceilings))
    if stored is None:
        raise TenantNotFound(f"There is no tenant {tenant_id!r}")
    return _complete(stored)


def require(tx: Tx, ceiling: Ceiling, count: Count) -> None:
    """One more is about to be made."""
    if not room(tx, ceiling, 1, count):
        raise CeilingReached(ceiling, read(tx)[ceiling])


def room(tx: Tx, ceiling: Ceiling, wanted: int, count: Count) -> int:
    """How many of these may be made. The caller makes them."""
    most, key = read(tx)[ceiling], (tx.tenant, ceiling)
    known = _known.get(key)
    if known is None or known.until < time.monotonic():
        known = _count_now(tx, key, most, count)
    with _lock:
        granted = min(wanted, max(0, most - known.number))
        known.number += granted
    return granted


def count_values(table: str, column: str, *, scope: str) -> TextClause:
    """How many values a tenant has in an indexed column, or has had while boards of the scope were made; or `:most`.

    From one value to the next by the index, so that it costs as many steps as there are values.
    """
    return text(f"""
        WITH RECURSIVE found(value) AS (
            (SELECT {column} FROM {table} WHERE tenant_id = :tenant AND {column} IS NOT NULL ORDER BY {column} LIMIT 1)
            UNION ALL
            SELECT (SELECT t.{column} FROM {table} t WHERE t.tenant_id = :tenant AND t.{column} > found.value
                    ORDER BY t.{column} LIMIT 1)
            FROM found WHERE found.value IS NOT NULL
        )
        SELECT count(*) FROM (
            (SELECT value FROM found WHERE value IS NOT NULL LIMIT :most)
            UNION SELECT substr(scope, {len(scope) + 1}) FROM boards
                  WHERE tenant_id = :tenant AND starts_with(scope, '{scope}')
            LIMIT :most) every
    """)  # noqa: S608  names of ours


def _count_now(tx: Tx, key: tuple[str, Ceiling], most: int, count: Count) -> _Known:
    began = time.monotonic()
    timeout_ms = QUICKLY_SHARED_MS if tx.is_shared else QUICKLY_MS
    number = _count_within(tx, timeout_ms, lambda: count(tx, most + 1))
    if number is not None:
        return _remember(key, number, took_s=time.monotonic() - began)
    if _counting.acquire(blocking=False):
        threading.Thread(target=_count_beside, args=(key, most, count), name="count", daemon=True).start()
    before = _known.get(key)
    return _remember(key, before.number if before is not None else 0, took_s=TRY_AGAIN_AFTER_S / TRUSTED_TIMES)


def _count_beside(key: tuple[str, Ceiling], most: int, count: Count) -> None:
    """In a thread of its own."""
    began = time.monotonic()
    try:
        with tenant_tx(key[0]) as tx:
            tx.execute(text(f"SET LOCAL statement_timeout = {SLOWLY_MS}"))
            number = count(tx, most + 1)
        _remember(key, number, took_s=time.monotonic() - began)
    except Exception:
        log.exception("a count failed", action="ceilings.failed", tenantId=key[0], data={"ceiling": key[1].value})
    finally:
        _counting.release()


def _count_within(tx: Tx, timeout_ms: int, count: Callable[[], int]) -> int | None:
    """The count; None: it takes longer. Whatever happens, the transaction goes on with its own timeout."""
    tx.raw.exec_driver_sql(f"SAVEPOINT counting; SET LOCAL statement_timeout = {timeout_ms}")
    try:
        return count()
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) != "57014":
            raise
        return None
    finally:
        tx.raw.exec_driver_sql("ROLLBACK TO SAVEPOINT counting; RELEASE SAVEPOINT counting")


def _remember(key: tuple[str, Ceiling], number: int, *, took_s: float) -> _Known:
    known = _Known(number, time.monotonic() + TRUSTED_TIMES * took_s)
    with _lock:
        if len(_known) >= MAX_REMEMBERED:
            _known.clear()
        _known[key] = known
    return known


def _complete(stored: Mapping[str, Any] | None) -> Ceilings:
    return {ceiling: int((stored or {}).get(ceiling.value, default)) for ceiling, default in DEFAULTS.items()}
