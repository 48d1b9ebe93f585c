"""One writer for each tenant's boards: an advisory lock that the transaction holds to its end."""

from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from tenants.db import Tx
from tenants.errors import Unavailable


class Busy(Unavailable):
    """Another has the lock for too long."""

    code = "projection_busy"
    title = "Another process is bringing these boards up to date just now: try again in a moment"


def try_hold(tx: Tx, tenant_id: str) -> None:
    """Have it now, or be Busy."""
    if not tx.scalar(text("SELECT pg_try_advisory_xact_lock(hashtextextended('project:' || :t, 0))"), {"t": tenant_id}):
        raise Busy


def hold(tx: Tx, tenant_id: str, *, shared: bool = False) -> None:
    """Wait for it, as long as statements may wait for a lock. Shared: with others who only look."""
    function = "pg_advisory_xact_lock_shared" if shared else "pg_advisory_xact_lock"
    try:
        tx.execute(text(f"SELECT {function}(hashtextextended('project:' || :tenant, 0))"), {"tenant": tenant_id})
    except OperationalError as error:
        if getattr(error.orig, "sqlstate", None) == "55P03":
            raise Busy from None
        raise
