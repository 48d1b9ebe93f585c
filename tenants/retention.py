"""How long rows are kept after they have expired. Run by the owner, across tenants."""

import time
from datetime import datetime, timedelta

from sqlalchemy import text

from tenants.db import Tx, owner_tx

# table → (a time column, how long after that time the row is kept)
RETENTION: dict[str, tuple[str, timedelta]] = {
    "sessions": ("expires_at", timedelta(hours=24)),
    "password_resets": ("expires_at", timedelta(hours=1)),
    "revoked_tokens": ("expires_at", timedelta(hours=1)),
    "consumed_tokens": ("expires_at", timedelta(hours=1)),
    "live_tickets": ("expires_at", timedelta(hours=1)),
    "idempotency_keys": ("created_at", timedelta(hours=24)),
    "ingest_rejections_hour": ("bucket_hour", timedelta(days=31)),
    "credential_changes": ("at", timedelta(hours=1)),
    "processes": ("seen_at", timedelta(hours=1)),
}
MAX_ROWS_PER_CHUNK = 10_000


def purge_expired(*, now: datetime, within_s: float = 300.0) -> dict[str, int]:
    """Delete expired rows, one chunk per commit, until none are left or time is up. Safe to run twice."""
    deadline = time.monotonic() + within_s
    purged = dict.fromkeys(RETENTION, 0)
    for table, (column, after) in RETENTION.items():
        while time.monotonic() < deadline:
            with owner_tx() as tx:
                deleted = _purge(tx, table, column, now - after)
            purged[table] += deleted
            if deleted < MAX_ROWS_PER_CHUNK:
                break
    return purged


def _purge(tx: Tx, table: str, column: str, before: datetime) -> int:
    deleted = tx.execute(
        text(
            f"DELETE FROM {table} WHERE ctid = ANY (ARRAY("  # noqa: S608  names from the table above
            f"SELECT ctid FROM {table} WHERE {column} < :before LIMIT {MAX_ROWS_PER_CHUNK}"
            " FOR UPDATE SKIP LOCKED)) RETURNING 1"
        ),
        {"before": before},
    )
    return len(deleted.all())
