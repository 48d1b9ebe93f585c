"""Addresses of pages that an older release wrote are filled in by a job, a step at a time."""

import pytest
from sqlalchemy import text

from analytics.ingest import page_addresses, pages
from tenants.db import owner_tx, tenant_tx
from tests.analytics.conftest import put_page
from workers import jobs


def missing(tenant: str) -> int:
    with tenant_tx(tenant) as tx:
        return int(tx.scalar(text("SELECT count(*) FROM pages WHERE address IS NULL")) or 0)


def test_what_is_missing_is_filled_in_bounded_steps_without_waiting_and_found_by_its_url_before(
    tenant: str, other_tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_addresses, "MAX_PER_STEP", 2)
    for name in "abcde":
        put_page(tenant, name)
    put_page(other_tenant, "f")
    with owner_tx() as tx:
        forget = text("UPDATE pages SET address = NULL WHERE tenant_id IN (:one, :other)")
        tx.execute(forget, {"one": tenant, "other": other_tenant})
    with tenant_tx(tenant) as tx:
        assert pages.find_by_address(tx, ["https://wiki.example/a?x=1#top"], []) == "a", "by its very url"
        assert pages.find_by_address(tx, ["http://wiki.example/a"], []) is None
    assert page_addresses.fill(tenant, is_over=lambda: True) == 2, "one step"
    with tenant_tx(tenant, separate=True) as tx:
        tx.execute(text("SELECT FROM pages WHERE tenant_id = :t AND external_id = 'e' FOR UPDATE"), {"t": tenant})
        assert page_addresses.fill(tenant, is_over=lambda: False) == 2, "a page that is being written is left"
    while missing(tenant) or missing(other_tenant):  # it makes way for jobs that wait, such as those of other tests
        jobs.fill_page_addresses()
    with tenant_tx(tenant) as tx:
        assert pages.find_by_address(tx, ["http://www.wiki.example/e/"], []) == "e"
