"""One writer for each tenant's boards: an advisory lock that is held until the transaction ends."""

from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from tenants.db import Tx
from tenants.errors import Unavailable


class Busy(Unavailable):
    """Another process holds the lock."""

    code = "projection_busy"
    title = "Another process is bringing these boards up to date just now: try again in a moment"


def try_lock_boards(tx: Tx, tenant_id: str) -> None:
    """Take the lock at once, or raise Busy."""
    if not tx.scalar(text("SELECT pg_try_advisory_xact_lock(hashtextextended('project:' || :t, 0))"), {"t": tenant_id}):
        raise Busy


def lock_boards(tx: Tx, tenant_id: str, *, shared: bool = False) -> None:
    """Wait for the lock, as long as statements may wait for one. Shared: with others who only read."""
    function = "pg_advisory_xact_lock_shared" if shared else "pg_advisory_xact_lock"
    try:
        tx.execute(text(f"SELECT {function}(hashtextextended('project:' || :tenant, 0))"), {"tenant": tenant_id})
    except OperationalError as error:
        if getattr(error.orig, "sqlstate", None) == "55P03":
            raise Busy from None
        raise
