"""How long rows are kept after they stopped being of use (PRODUCT 29). Run by the owner, across tenants."""

import time
from datetime import datetime, timedelta

from sqlalchemy import text

from tenants.db import Tx, owner_tx

# table → (the column that says when, how long after it the row stays)
KEPT: dict[str, tuple[str, timedelta]] = {
    "sessions": ("expires_at", timedelta(hours=24)),
    "password_resets": ("expires_at", timedelta(hours=1)),
    "revoked_tokens": ("expires_at", timedelta(hours=1)),
    "consumed_tokens": ("expires_at", timedelta(hours=1)),
    "live_tickets": ("expires_at", timedelta(hours=1)),
    "idempotency_keys": ("created_at", timedelta(hours=24)),
    "ingest_rejections_hour": ("bucket_hour", timedelta(days=31)),
}
CHUNK = 10_000


def purge_expired(*, now: datetime, within_s: float = 300.0) -> dict[str, int]:
    """Delete what is over, a chunk and a commit at a time, until nothing is left or time is up. Safe to run twice."""
    deadline = time.monotonic() + within_s
    purged = dict.fromkeys(KEPT, 0)
    for table, (column, after) in KEPT.items():
        while time.monotonic() < deadline:
            with owner_tx() as tx:
                gone = _purge(tx, table, column, now - after)
            purged[table] += gone
            if gone < CHUNK:
                break
    return purged


def _purge(tx: Tx, table: str, column: str, before: datetime) -> int:
    gone = tx.execute(
        text(
            f"DELETE FROM {table} WHERE ctid = ANY (ARRAY("  # noqa: S608  names from the table above
            f"SELECT ctid FROM {table} WHERE {column} < :before LIMIT {CHUNK} FOR UPDATE SKIP LOCKED)) RETURNING 1"
        ),
        {"before": before},
    )
    return len(gone.all())
