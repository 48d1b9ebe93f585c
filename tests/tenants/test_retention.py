"""Retention: expired rows are deleted, after their time and in chunks."""

from datetime import datetime, timedelta

import pytest
from sqlalchemy import text

from tenants import retention
from tenants.db import owner_tx, utcnow
from tenants.retention import RETENTION


def keys_of(tenant: str) -> set[str]:
    with owner_tx() as tx:
        rows = text("SELECT request FROM idempotency_keys WHERE tenant_id = :tenant")
        return set(tx.scalars(rows, {"tenant": tenant}))


def insert(tenant: str, **ages: timedelta) -> datetime:
    now = utcnow()
    with owner_tx() as tx:
        for request, age in ages.items():
            tx.execute(
                text("""
                    INSERT INTO idempotency_keys (tenant_id, request, body_hash, status, headers, created_at)
                    VALUES (:tenant, :request, '', 200, '{}', :at)
                """),
                {"tenant": tenant, "request": request, "at": now - age},
            )
    return now


def purge(now: datetime) -> dict[str, int]:
    return retention.purge_expired(now=now, is_over=lambda: False)


def test_rows_are_deleted_when_their_time_is_over_and_not_before(tenant: str) -> None:
    kept_for, moment = RETENTION["idempotency_keys"].after, timedelta(seconds=1)
    now = insert(tenant, old=kept_for + moment, kept=kept_for - moment)
    assert purge(now)["idempotency_keys"] >= 1
    assert keys_of(tenant) == {"kept"}
    assert purge(now)["idempotency_keys"] == 0, "a second run finds nothing"


def test_more_rows_than_a_chunk_are_deleted_too_and_only_a_chunk_once_the_turn_is_over(
    tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "MAX_ROWS_PER_CHUNK", 2)
    now = insert(tenant, **{f"k{number}": timedelta(days=3) for number in range(5)})
    retention.purge_expired(now=now, is_over=lambda: True)
    assert len(keys_of(tenant)) >= 3, "at most a chunk, of some table"
    purge(now)
    assert keys_of(tenant) == set()


def test_a_static_token_is_kept_a_month_after_it_ends_and_for_ever_while_it_is_valid(tenant: str) -> None:
    now, kept_for = utcnow(), RETENTION["static_tokens"].after
    old, recent, ahead = now - kept_for - timedelta(hours=1), now - kept_for + timedelta(hours=1), now + kept_for
    ends = {
        "valid": (None, None),
        "limited": (None, ahead),
        "revoked": (recent, ahead),
        "expired": (None, recent),
        "revoked long ago": (old, ahead),
        "expired long ago": (None, old),
        "both": (recent, old),
    }
    with owner_tx() as tx:
        for name, (revoked_at, expires_at) in ends.items():
            tx.execute(
                text("""
                    INSERT INTO static_tokens
                        (tenant_id, id, token_hash, name, scopes, created_at, revoked_at, expires_at)
                    VALUES (:tenant, :name, '', :name, '{}', :old, :revoked_at, :expires_at)
                """),
                {"tenant": tenant, "name": name, "old": old, "revoked_at": revoked_at, "expires_at": expires_at},
            )
    purge(now)
    with owner_tx() as tx:
        left = set(tx.scalars(text("SELECT name FROM static_tokens WHERE tenant_id = :tenant"), {"tenant": tenant}))
    assert left == {"valid", "limited", "revoked", "expired"}


def test_every_table_of_the_list_has_its_time_column_and_its_key(connected: None) -> None:
    assert purge(utcnow() - timedelta(days=4000)).keys() == RETENTION.keys()
    with owner_tx() as tx:
        keys = {row.table: row.columns for row in tx.execute(_PRIMARY_KEYS)}
    assert {table: ["tenant_id"] * kept.has_tenant + [*kept.key] for table, kept in RETENTION.items()} == {
        table: keys[table] for table in RETENTION
    }


_PRIMARY_KEYS = text("""
    SELECT c.relname::text AS "table", array_agg(a.attname::text ORDER BY a.attnum) AS columns
    FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY(i.indkey)
    WHERE i.indisprimary AND c.relnamespace = 'public'::regnamespace GROUP BY c.relname
""")
