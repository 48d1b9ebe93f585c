"""How long rows are kept after they stopped being of use (PRODUCT 29). Run by the owner, across tenants."""

from datetime import datetime, timedelta

from sqlalchemy import text

from tenants.db import Tx

# table → (the column that says when, how long after it the row stays)
KEPT: dict[str, tuple[str, timedelta]] = {
    "sessions": ("expires_at", timedelta(hours=24)),
    "password_resets": ("expires_at", timedelta(hours=1)),
    "revoked_tokens": ("expires_at", timedelta(hours=1)),
    "idempotency_keys": ("created_at", timedelta(hours=24)),
    "seen_events": ("seen_on", timedelta(days=40)),
    "ingest_rejections_hour": ("bucket_hour", timedelta(days=31)),
}
CHUNK = 10_000


def purge_expired(tx: Tx, *, now: datetime) -> dict[str, int]:
    """Delete up to CHUNK rows of each table; the next run goes on. Safe to run twice."""
    return {table: _purge(tx, table, column, now - after) for table, (column, after) in KEPT.items()}


def _purge(tx: Tx, table: str, column: str, before: datetime) -> int:
    gone = tx.execute(
        text(
            f"DELETE FROM {table} WHERE ctid = ANY (ARRAY("  # noqa: S608  names from the table above
            f"SELECT ctid FROM {table} WHERE {column} < :before LIMIT {CHUNK} FOR UPDATE SKIP LOCKED)) RETURNING 1"
        ),
        {"before": before},
    )
    return len(gone.all())
