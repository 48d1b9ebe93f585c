"""A worker uses one connection at a time: a pool of one is enough for everything that writes or checks boards."""

import pytest

from analytics.boards import checking, projection, rebuilding, recomputing, retiring, snapshots
from analytics.ingest.writes import EventKind, Item
from app.settings import Settings
from tenants import db, engines
from tenants import settings as tenant_settings
from tenants.db import tenant_tx, utcnow
from tests.analytics.conftest import put_page, write_events


@pytest.fixture
def one_connection(tenant: str, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "POOL_TIMEOUT_S", 0.2)
    db.configure(
        service_url=settings.service_database_url or settings.database_url, owner_url=settings.database_url, pool_size=1
    )


def test_a_worker_needs_one_connection(tenant: str, one_connection: None) -> None:
    put_page(tenant, "a", visibility="public")
    with tenant_tx(tenant) as tx:
        tenant_settings.change(tx, {"share_public_pages": True}, now=utcnow())
    write_events(tenant, Item(EventKind.VIEW, "a", utcnow()), Item(EventKind.LIKE, "a", utcnow(), user="u"))
    assert projection.project_all(tenant, now=utcnow).pages == 1
    assert snapshots.refresh_all(now=utcnow()).boards > 0
    assert recomputing.recompute_tenant(tenant, now=utcnow, progress=lambda _: None).rebuilt
    assert rebuilding.rebuild_global(now=utcnow(), only_missing=False)
    assert checking.check(tenant, now=utcnow()).differences == []
    assert tenant not in projection.stale_tenants(now=utcnow())
    retiring.retire(tenant, now=utcnow())
