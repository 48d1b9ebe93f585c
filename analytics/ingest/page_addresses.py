"""Fills in the addresses of pages that an older release wrote: a job, in bounded steps, and never a migration."""

from collections.abc import Callable

from sqlalchemy import text

from analytics.ingest import addresses
from tenants.db import Tx, tenant_tx

MAX_PER_STEP = 1000


def fill(tenant_id: str, *, is_over: Callable[[], bool]) -> int:
    """Fill in what a tenant's pages lack, a step and a commit at a time, until `is_over`. Returns how many pages."""
    filled, step = 0, MAX_PER_STEP
    while step == MAX_PER_STEP:
        with tenant_tx(tenant_id) as tx:
            step = _fill_step(tx)
        filled += step
        if step and is_over():
            break
    return filled


def _fill_step(tx: Tx) -> int:
    """Waits for no other writer: a page that is being written gets its address there, or in the next run."""
    rows = tx.run(_MISSING, {"tenant": tx.tenant, "limit": MAX_PER_STEP})
    if rows:
        ids, keys = [row.id for row in rows], [addresses.key_of(row.url) for row in rows]
        tx.run(_FILL, {"tenant": tx.tenant, "ids": ids, "addresses": keys})
    return len(rows)


_MISSING = text("""
    SELECT id, url FROM pages WHERE tenant_id = :tenant AND address IS NULL LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED
""")
_FILL = text("""
    UPDATE pages p SET address = w.address
    FROM unnest(CAST(:ids AS bigint[]), CAST(:addresses AS text[])) AS w(id, address)
    WHERE p.tenant_id = :tenant AND p.id = w.id
""")
