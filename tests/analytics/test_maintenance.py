"""What the owner does by the hour, for every tenant by itself."""

from datetime import timedelta

import pytest
from sqlalchemy import text

from analytics import maintenance
from analytics.ingest import pages
from tenants import db
from tenants.db import owner_tx, tenant_tx, utcnow
from tests.analytics.conftest import views_of


def test_a_tenants_locked_row_keeps_nobody_elses_history(
    tenant: str, other_tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tenant_id in (tenant, other_tenant):
        with tenant_tx(tenant_id) as tx:
            pages.put(tx, "a", space="s", title="t", url="/a", now=utcnow())
            tx.execute(
                text("""
                    INSERT INTO page_views_hour (tenant_id, page_id, bucket_hour, views)
                    SELECT tenant_id, id, date_trunc('hour', now()) - interval '2 years', 7 FROM pages
                """)
            )
    monkeypatch.setattr(db, "OWNER_OPENING", "SET LOCAL lock_timeout = 100")
    first, second = sorted([tenant, other_tenant])
    with tenant_tx(first, separate=True) as holding:
        holding.execute(text("SELECT FROM page_counters FOR UPDATE"))
        assert maintenance.purge_history(now=utcnow())["page_views_hour"] >= 1
        assert (views_of(first), views_of(second)) == (7, 0)
    maintenance.purge_history(now=utcnow() + timedelta(hours=1))
    with owner_tx() as tx:
        assert not tx.scalar(text("SELECT count(*) FROM page_views_hour WHERE tenant_id = :t"), {"t": first})
