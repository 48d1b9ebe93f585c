"""A deleted tenant's rows go in small steps, which any process may continue."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text

from tenants import purging, registry
from tenants.db import owner_tx, tenant_tx, utcnow

PAGES = 1_000


def fill(tenant: str) -> None:
    """Pages with hours and likes of users: tables that refer to each other."""
    with tenant_tx(tenant) as tx:
        for statement in (
            """INSERT INTO pages (tenant_id, external_id, title, url, space_key, created_at, updated_at)
               SELECT :tenant, 'p' || n, 'x', 'https://e.example/' || n, 'eng', now(), now()
               FROM generate_series(1, :pages) n""",
            "INSERT INTO page_counters (tenant_id, page_id) SELECT :tenant, id FROM pages WHERE tenant_id = :tenant",
            """INSERT INTO page_views_hour (tenant_id, page_id, bucket_hour, views)
               SELECT :tenant, id, date_trunc('hour', now()) - n * interval '1 hour', 1
               FROM pages CROSS JOIN generate_series(1, 3) n WHERE tenant_id = :tenant""",
            """INSERT INTO users (id, tenant_id, username, role, created_at, updated_at)
               SELECT gen_random_uuid(), :tenant, 'u' || n, 'member', now(), now() FROM generate_series(1, 10) n""",
            """INSERT INTO page_likes (tenant_id, page_id, user_id, liked_at, decided_at)
               SELECT :tenant, p.id, u.id, now(), now() FROM pages p CROSS JOIN users u
               WHERE p.tenant_id = :tenant AND u.tenant_id = :tenant AND u.username = 'u1'""",
        ):
            tx.execute(text(statement), {"tenant": tenant, "pages": PAGES})


def mark(tenant: str) -> None:
    with owner_tx() as tx:
        registry.mark_deleted(tx, tenant, now=utcnow())


def test_all_rows_are_deleted_in_steps_and_none_of_another_tenant(
    tenant: str, other_tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purging, "MAX_ROWS_PER_STEP", 300)
    fill(tenant)
    fill(other_tenant)
    others = purging.count(other_tenant)
    mark(tenant)
    rows, told = purging.count(tenant) or 0, list[int]()
    assert rows >= 6 * PAGES
    purged = purging.purge(tenant, watch=told.append)
    assert (purged.rows, purged.is_gone) == (rows, True)
    assert purged.bytes > 20 * rows
    assert (told[-1], max(now - before for before, now in zip([0, *told], told, strict=False))) == (rows, 300)
    assert (purging.count(tenant), purging.count(other_tenant)) == (0, others)
    with owner_tx() as tx:
        assert tenant not in registry.deleted(tx)


def test_rows_that_take_long_to_count_are_deleted_all_the_same(tenant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purging, "MAX_COUNT_S", 0.2)
    fill(tenant)
    mark(tenant)
    with owner_tx() as tx, ThreadPoolExecutor(1) as another:
        tx.execute(text("LOCK TABLE page_views_hour IN ACCESS EXCLUSIVE MODE"))  # as long as many rows take
        assert another.submit(purging.count, tenant).result() is None
    assert purging.purge(tenant).is_gone


def test_what_was_interrupted_is_continued_by_any_other(tenant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purging, "MAX_ROWS_PER_STEP", 300)
    fill(tenant)
    mark(tenant)
    rows = purging.count(tenant) or 0

    def die(done: int) -> None:
        if done > 1_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        purging.purge(tenant, watch=die)
    left = purging.count(tenant) or 0
    assert 0 < left < rows - 1_000 + 1
    stopped = purging.purge(tenant, is_over=lambda: True)
    assert (0 < stopped.rows <= 300, stopped.is_gone) == (True, False)
    assert purging.purge(tenant).is_gone
    again = purging.purge(tenant)
    assert (again.rows, again.is_gone) == (0, False), "a second run finds nothing to do"


def test_a_tenant_that_is_not_marked_loses_nothing_and_two_purges_do_not_wait_for_each_other(
    tenant: str, other_tenant: str
) -> None:
    fill(tenant)
    assert purging.purge(tenant).rows == 0
    assert purging.count(tenant)
    mark(tenant)
    with owner_tx() as tx, ThreadPoolExecutor(1) as process:
        assert purging._lock(tx, tenant)
        assert process.submit(purging.purge, tenant).result(timeout=60).rows == 0, "another one is at it: nobody waits"
    with ThreadPoolExecutor(1) as process:
        tables: list[str] = []

        def another_begins(_rows: int) -> None:
            tables.append("")
            process.submit(purging.purge, tenant).result(timeout=60)

        purging.purge(tenant, watch=another_begins)
        assert tables
    with owner_tx() as tx:
        assert tenant not in registry.deleted(tx)
