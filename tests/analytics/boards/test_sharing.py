"""Whether a tenant's public pages are on the global boards follows its setting, at a bounded cost."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from flask.testing import FlaskClient
from sqlalchemy import text

from analytics.boards import checking, planning, progress, projection, rebuilding, recomputing
from analytics.boards.names import ALL_TENANTS, GLOBAL, board_of
from analytics.metrics import VIEWS
from analytics.windows import Window
from tenants import redis as tenants_redis
from tenants.db import tenant_tx, utcnow
from tests.analytics.boards.conftest import MakeBoard, project, read
from tests.analytics.conftest import make_page
from tests.people import Caller, client_of
from tests.service import eventually

PAGES = 5


@pytest.fixture
def publisher(client: FlaskClient, tenant: str) -> Caller:
    """A tenant with public pages that have views."""
    rebuilding.rebuild_global(now=utcnow())
    caller = client_of(client, tenant)
    for number in range(PAGES):
        make_page(caller, f"p{number}", visibility="public")
        caller("POST", f"/api/v1/pages/p{number}/views")
    projection.project_all(tenant, now=utcnow)
    return caller


def share(caller: Caller, shared: bool) -> None:
    answer = caller("PATCH", "/api/v1/settings", json={"share_public_pages": shared})
    assert answer.status_code == 200, answer.text


def outbox_rows(tenant: str) -> int:
    with tenant_tx(tenant) as tx:
        return int(tx.scalar(text("SELECT count(*) FROM outbox WHERE tenant_id = :t"), {"t": tenant}) or 0)


def shared_in_stats(tenant: str) -> int:
    with tenant_tx(tenant) as tx:
        return int(
            tx.scalar(text("SELECT count(*) FROM page_stats WHERE tenant_id = :t AND is_shared"), {"t": tenant}) or 0
        )


def on_global_board(tenant: str) -> int:
    with tenant_tx(tenant) as tx:
        own = set(tx.scalars(text("SELECT id::text FROM pages WHERE tenant_id = :t"), {"t": tenant}))
    board = board_of(tenant, GLOBAL, Window.ALL, VIEWS.name)
    return len(own & {member.decode() for member, _ in tenants_redis.boards().redis.zscan_iter(board.key)})


def test_only_a_real_change_of_sharing_is_marked_and_as_one_row(publisher: Caller) -> None:
    share(publisher, False)
    assert outbox_rows(publisher.tenant) == 0, "it was not shared before"
    share(publisher, True)
    assert outbox_rows(publisher.tenant) == 1
    for _ in range(3):
        share(publisher, True)
    assert outbox_rows(publisher.tenant) == 1


def test_every_public_page_follows_a_change_of_sharing_in_bounded_steps(
    publisher: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "MAX_PAGES_PER_STEP", 2)
    make_page(publisher, "private")
    publisher("POST", "/api/v1/pages/private/views")
    projection.project_all(publisher.tenant, now=utcnow)
    for shared, expected in ((True, PAGES), (False, 0)):
        share(publisher, shared)
        first = projection.project_step(publisher.tenant, now=utcnow())
        assert (first.pages, first.more, outbox_rows(publisher.tenant)) == (2, True, 1)
        projection.project_all(publisher.tenant, now=utcnow)
        found = (shared_in_stats(publisher.tenant), on_global_board(publisher.tenant), outbox_rows(publisher.tenant))
        assert found == (expected, expected, 0)
        assert checking.check(publisher.tenant, now=utcnow()).differences == []


@pytest.mark.parametrize("before", [True, False])
def test_a_change_of_sharing_that_commits_during_a_projection_is_not_lost(
    publisher: Caller, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    share(publisher, True)
    projection.project_all(publisher.tenant, now=utcnow)
    assert on_global_board(publisher.tenant) == PAGES
    publisher("POST", "/api/v1/pages/p0/views")
    read_stale, reads = planning._read_stale, []

    def stop_sharing_around(*args: Any, **kwargs: Any) -> Any:
        reads.append("")
        with ThreadPoolExecutor(1) as another:
            if before:
                another.submit(share, publisher, False).result()
            rows = read_stale(*args, **kwargs)
            if not before:
                another.submit(share, publisher, False).result()
        return rows

    with monkeypatch.context() as hooking:
        hooking.setattr(planning, "_read_stale", stop_sharing_around)
        projection.project_step(publisher.tenant, now=utcnow())
    assert reads, "the change was made"
    projection.project_all(publisher.tenant, now=utcnow)
    assert (shared_in_stats(publisher.tenant), on_global_board(publisher.tenant)) == (0, 0)
    assert checking.check(publisher.tenant, now=utcnow()).differences == []


def test_pages_that_follow_a_change_of_sharing_later_are_due_and_not_wrong(publisher: Caller) -> None:
    share(publisher, True)
    report = checking.check(publisher.tenant, now=utcnow())
    assert (report.differences, report.due) == ([], PAGES)


def test_check_finds_a_page_that_is_shared_against_the_setting(publisher: Caller) -> None:
    with tenant_tx(publisher.tenant) as tx:
        tx.execute(
            text("""
                UPDATE page_stats SET is_shared = true WHERE tenant_id = :t
                AND page_id = (SELECT min(page_id) FROM page_stats WHERE tenant_id = :t)
            """),
            {"t": publisher.tenant},
        )
    (found,) = checking.check(publisher.tenant, now=utcnow()).differences
    assert (found.where, found.found, found.expected) == ("page_stats.is_shared", True, False)
    recomputing.recompute_tenant(publisher.tenant, now=utcnow, progress=lambda _: None)
    assert checking.check(publisher.tenant, now=utcnow()).differences == []


def test_check_of_one_tenant_finds_its_pages_on_the_global_boards_that_do_not_belong_there(publisher: Caller) -> None:
    with tenant_tx(publisher.tenant) as tx:
        page = tx.scalar(text("SELECT min(id)::text FROM pages WHERE tenant_id = :t"), {"t": publisher.tenant})
    board = board_of(publisher.tenant, GLOBAL, Window.ALL, VIEWS.name)
    tenants_redis.boards().redis.zadd(board.key, {str(page): 5})
    (found,) = checking.check(publisher.tenant, now=utcnow()).differences
    assert (found.where, found.found, found.expected) == (board.key, 5, None)
    rebuilding.rebuild_global(now=utcnow(), only_missing=False)
    assert checking.check(publisher.tenant, now=utcnow()).differences == []
    share(publisher, True)
    projection.project_all(publisher.tenant, now=utcnow)
    tenants_redis.boards().redis.zrem(board.key, str(page))
    (found,) = checking.check(publisher.tenant, now=utcnow()).differences
    assert found.found is None
    rebuilding.rebuild_global(now=utcnow(), only_missing=False)
    assert checking.check(publisher.tenant, now=utcnow()).differences == []


def test_the_global_board_lists_public_pages_of_tenants_that_share_them(
    board: MakeBoard, app_client: Caller, tenant: str
) -> None:
    board(a=2, b=1)
    make_page(app_client, "b", visibility="public")
    projection.bring_up_to_date(ALL_TENANTS, now=utcnow)

    def on_it() -> list[str]:
        project(tenant)
        rows = read(app_client, "/api/v1/leaderboards?scope=global&metric=views&limit=1000")["items"]
        return [row["page"]["external_id"] for row in rows if row["page"]["tenant"] == tenant]

    assert on_it() == []
    app_client("PATCH", "/api/v1/settings", json={"share_public_pages": True})
    eventually(lambda: on_it() == ["b"])
    make_page(app_client, "b", visibility="private")
    eventually(lambda: on_it() == [])
    make_page(app_client, "b", visibility="public")
    eventually(lambda: on_it() == ["b"])
    app_client("PATCH", "/api/v1/settings", json={"share_public_pages": False})
    eventually(lambda: on_it() == [])
