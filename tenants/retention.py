"""How long rows are kept after they have expired. Run by the owner, for one tenant after the other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import text

from tenants import across
from tenants.db import Tx, owner_tx


@dataclass(frozen=True)
class Kept:
    """How long a table's rows are kept after the time in a column. `key` is their primary key without the tenant."""

    key: tuple[str, ...]
    column: str
    after: timedelta
    has_tenant: bool = True


RETENTION = {
    "sessions": Kept(("id",), "expires_at", timedelta(hours=24)),
    "password_resets": Kept(("token_hash",), "expires_at", timedelta(hours=1)),
    # What is null is left out of the least, and nothing is less than null: valid tokens without an end stay.
    "static_tokens": Kept(("id",), "LEAST(revoked_at, expires_at)", timedelta(days=30)),
    "revoked_tokens": Kept(("jti",), "expires_at", timedelta(hours=1)),
    "consumed_tokens": Kept(("token_id",), "expires_at", timedelta(hours=1)),
    "live_tickets": Kept(("ticket_hash",), "expires_at", timedelta(hours=1)),
    "idempotency_keys": Kept(("request",), "created_at", timedelta(hours=24)),
    "ingest_rejections_hour": Kept(("bucket_hour", "reason"), "bucket_hour", timedelta(days=31)),
    "unknown_addresses": Kept(("address",), "last_seen", timedelta(days=7)),
    "auto_pages_day": Kept(("day",), "day", timedelta(days=2)),
    "credential_changes": Kept(("id",), "at", timedelta(hours=1)),
    "visitor_salts": Kept(("day",), "day", timedelta(days=2), has_tenant=False),
    "processes": Kept(("id",), "seen_at", timedelta(hours=1), has_tenant=False),
}
MAX_ROWS_PER_CHUNK = 2_000


def purge_expired(*, now: datetime, is_over: Callable[[], bool]) -> dict[str, int]:
    """Delete expired rows, one chunk per commit, until none are left or `is_over`. Safe to run twice."""
    purged = dict.fromkeys(RETENTION, 0)
    for table, kept in RETENTION.items():
        before = now - kept.after
        for tenant_id in _owners(table, kept, before) if kept.has_tenant else [None]:
            deleted = MAX_ROWS_PER_CHUNK
            while deleted == MAX_ROWS_PER_CHUNK:
                with owner_tx() as tx:
                    deleted = _purge(tx, table, kept, tenant_id, before)
                purged[table] += deleted
                if deleted and is_over():
                    return purged
    return purged


def _owners(table: str, kept: Kept, before: datetime) -> Sequence[str]:
    """The tenants that have expired rows."""
    found = text(f"""
        SELECT DISTINCT tenant_id FROM {table} WHERE {kept.column} < :before
        AND {across.of_one("tenant_id")} ORDER BY tenant_id
    """)  # noqa: S608  names from the table above
    return [row.tenant_id for row in across.read(found, {"before": before}, tx=owner_tx)]


def _purge(tx: Tx, table: str, kept: Kept, tenant_id: str | None, before: datetime) -> int:
    """Delete a chunk of a tenant's rows: by their keys, since a distributed table has no ctid of its own."""
    key = ", ".join(kept.key)
    old_key = ", ".join(f"old.{column}" for column in kept.key)
    in_tenant = "tenant_id = :tenant AND" if kept.has_tenant else ""
    deleted = tx.execute(
        text(f"""
            WITH old AS MATERIALIZED (
                SELECT {key} FROM {table} WHERE {in_tenant} {kept.column} < :before
                LIMIT {MAX_ROWS_PER_CHUNK} FOR UPDATE SKIP LOCKED
            )
            DELETE FROM {table} WHERE {in_tenant} ({key}) IN (SELECT {old_key} FROM old) RETURNING 1
        """),  # noqa: S608  names from the table above
        {"before": before} | ({"tenant": tenant_id} if kept.has_tenant else {}),
    )
    return len(deleted.all())
