"""The lock on a tenant's boards: whoever has it until the transaction ends is the only one to write them (P4).

And what an error says of any lock (`is_timeout`, `is_deadlock`).
"""

from typing import Any

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, OperationalError

from tenants.db import Query, Tx
from tenants.errors import Unavailable

# The advisory lock's number, from a tenant's id.
_LOCK_ID = "hashtextextended('project:' || :tenant, 0)"
_TRY_LOCK = text(f"SELECT pg_try_advisory_xact_lock({_LOCK_ID}) AS is_locked")


class Busy(Unavailable):
    """Another process holds the lock."""

    code = "projection_busy"
    title = "Another process is bringing these boards up to date just now: try again in a moment"


def try_lock_boards(tx: Tx, tenant_id: str, *then: Query) -> list[list[Any]]:
    """Take the lock at once, or raise Busy. Returns the rows of queries that follow it in the same round trip."""
    locked, *rows = tx.run_in_one_trip((_TRY_LOCK, {"tenant": tenant_id}), *then)
    if not locked[0].is_locked:
        raise Busy
    return rows


def lock_boards(tx: Tx, tenant_id: str, *, shared: bool = False) -> None:
    """Wait for the lock, as long as statements may wait for one. Shared: with others who only read boards."""
    function = "pg_advisory_xact_lock_shared" if shared else "pg_advisory_xact_lock"
    try:
        tx.execute(text(f"SELECT {function}({_LOCK_ID})"), {"tenant": tenant_id})
    except OperationalError as error:
        if is_timeout(error):
            raise Busy from None
        raise


def is_timeout(error: DBAPIError) -> bool:
    """Whether a statement gave up waiting for a lock, or took too long."""
    return getattr(error.orig, "sqlstate", None) in {"55P03", "57014"}


def is_deadlock(error: DBAPIError) -> bool:
    """Whether the transaction was rolled back so that others, who waited for it as it did for them, can go on."""
    return getattr(error.orig, "sqlstate", None) == "40P01"
