"""Counters: exact totals, which a recount repairs."""

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from analytics import counters
from analytics.ingest.writes import EventKind, Item
from tenants.db import Tx, tenant_tx, utcnow
from tests.analytics.conftest import put_page, write_events


@pytest.fixture
def pages(tenant: str) -> list[int]:
    """Two pages: one with three views and two likes, one with nothing."""
    ids = [put_page(tenant, name) for name in ("busy", "idle")]
    now = utcnow()
    views = [Item(EventKind.VIEW, "busy", now)] * 3
    write_events(tenant, *views, *(Item(EventKind.LIKE, "busy", now, user=user) for user in ("ada", "bob")))
    return ids


def totals(tx: Tx) -> list[tuple[int, int]]:
    return [
        (row.views, row.likes) for row in tx.execute(text("SELECT views, likes FROM page_counters ORDER BY page_id"))
    ]


def test_a_lock_keeps_others_out(pages: list[int], tenant: str) -> None:
    with tenant_tx(tenant, separate=True) as tx:
        counters.lock(tx, [*pages, 10**12])
        with tenant_tx(tenant, separate=True) as second:
            second.execute(text("SET LOCAL lock_timeout = 10"))
            with pytest.raises(OperationalError, match="lock timeout"):
                counters.lock(second, pages[1:])


def test_a_recount_sets_totals_to_the_rows_and_what_was_purged_of_them(pages: list[int], tenant: str) -> None:
    with tenant_tx(tenant) as tx:
        assert totals(tx) == [(3, 2), (0, 0)]
        tx.execute(text("UPDATE page_counters SET views = 99, likes = 99, views_purged = 40"))
        counters.recount(tx, pages[:1])
        assert totals(tx) == [(43, 2), (99, 99)], "of these pages only"
        counters.recount(tx, pages)
        assert totals(tx) == [(43, 2), (40, 0)]
