"""A data set is what a service would have made of the same history, and is kept for as long as it is of use."""

import os
import secrets
from pathlib import Path

import psycopg
import pytest

from analytics.boards import checking, projection
from app.run.data_folder import Addresses
from loadtests import dataset, rows
from loadtests.dataset import COMPLETE, MAX_AGE_S, TenantSize, cache_folder, fill, is_fresh
from migrations.head import head_revision
from tenants.db import utcnow
from tests import citus

pytestmark = pytest.mark.long


@pytest.fixture
def filled(connected: None, addresses: Addresses) -> TenantSize:
    """A small tenant: 200 pages, 300 users, 100 entries in the ledger."""
    tenant = TenantSize(f"t{secrets.token_hex(6)}", 200, 300, entries=100)
    advanced: list[float] = []
    with psycopg.connect(addresses.database_url, autocommit=True) as owner:
        fill(owner, tenant, now=utcnow(), advance=advanced.append)
    assert sum(advanced) == tenant.pages
    return tenant


def test_check_finds_no_difference(filled: TenantSize, addresses: Addresses) -> None:
    done = projection.project_all(filled.id, now=utcnow)
    assert done.rebuilt
    report = checking.check(filled.id, now=utcnow())
    assert report.differences == []
    assert (report.pages, report.due) == (200, 0)
    with psycopg.connect(addresses.database_url) as owner:
        found = {
            table: owner.execute(f"SELECT count(*) FROM {table} WHERE tenant_id = %s", [filled.id]).fetchone()
            for table in ("score_ledger", "user_stats", "users", "oauth_clients", "action_catalog")
        }
    assert [*found.values()] == [(100,), (20,), (300,), (1,), (1,)]


def test_a_few_pages_have_most_of_the_views(filled: TenantSize, addresses: Addresses) -> None:
    with psycopg.connect(addresses.database_url) as owner:
        views = owner.execute(
            """
            SELECT p.external_id, count(*), min(now() - bucket_hour) < interval '30 days', sum(views)
            FROM page_views_hour v JOIN pages p ON p.tenant_id = v.tenant_id AND p.id = v.page_id
            WHERE v.tenant_id = %s GROUP BY 1 ORDER BY 1
            """,
            [filled.id],
        ).fetchall()
    assert len(views) == 200
    assert views[0][1] == 30 * 24
    assert 1 <= views[-1][1] < 30
    assert 20 < sum(row[1] for row in views) / 200 < 50
    assert all(is_recent for _, _, is_recent, _ in views)


@pytest.mark.skipif(citus.URL is not None, reason="they are written for one server, whose floor they measure")
def test_the_raw_statements_keep_the_numbers_right(filled: TenantSize, addresses: Addresses) -> None:
    projection.project_all(filled.id, now=utcnow)
    scripts = [rows.raw_views(filled.id, filled.pages, with_ids=with_ids) for with_ids in (True, False)]
    with psycopg.connect(addresses.database_url, autocommit=True) as owner:
        for script in [*scripts, rows.raw_actions(filled.id, filled.users)]:
            owner.execute(script)
    done = projection.project_all(filled.id, now=utcnow)
    assert done.pages > 1
    assert done.users > 1
    assert checking.check(filled.id, now=utcnow()).differences == []


def test_old_other_or_unfinished_data_is_filled_again(tmp_path: Path) -> None:
    assert not is_fresh(tmp_path, dataset.QUICK, now_s=0)
    complete = tmp_path / COMPLETE
    complete.write_text(dataset.fingerprint(dataset.QUICK))
    os.utime(complete, (1_000, 1_000))
    assert is_fresh(tmp_path, dataset.QUICK, now_s=1_000 + MAX_AGE_S - 1)
    assert not is_fresh(tmp_path, dataset.QUICK, now_s=1_000 + MAX_AGE_S)
    assert not is_fresh(tmp_path, dataset.FULL, now_s=1_000)  # other sizes


def test_data_sets_are_kept_outside_the_repository_for_each_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = cache_folder()
    assert folder.name == head_revision()
    assert folder.parent in {tmp_path / "plaudit-bench", Path("/var/cache/plaudit-bench")}


def test_the_data_is_as_large_as_promised() -> None:
    assert [(tenant.pages, tenant.users, tenant.days) for tenant in dataset.FULL.tenants] == [
        (100_000, 100_000, 30)
    ] * 3
    assert max(dataset.PAGES_OF.values()) == 1_000_000
    assert len(dataset.BY_TENANTS.tenants) == 1_000
