"""Tests of `plaudit check` on boards, beyond the pages that it asks about."""

import pytest
from sqlalchemy import text

from analytics import checks, outbox
from analytics.boards import checking, projection, rebuilding, redis_checking, redis_store
from analytics.outbox import Kind
from tenants import across
from tenants import redis as tenants_redis
from tenants.db import tenant_tx, utcnow
from tests.analytics.boards.conftest import MakeBoard
from tests.people import Caller


@pytest.fixture
def key(board: MakeBoard, tenant: str) -> str:
    """The key of a board of three pages."""
    board(a=1, b=2, c=3)
    return f"lb:{tenant}:space:eng:7d:views"


def test_a_page_that_moved_is_found_on_the_board_that_it_left(key: str, tenant: str) -> None:
    redis = tenants_redis.boards().redis
    (member, value), *_ = redis.zscan_iter(key)
    with tenant_tx(tenant) as tx:
        tx.execute(text("UPDATE pages SET space_key = 'new' WHERE id = :id"), {"id": int(member)})
        outbox.mark_stale(tx, Kind.PAGE, [int(member)])
    projection.project_all(tenant, now=utcnow)
    assert checking.check(tenant, now=utcnow()).differences == []
    redis.zadd(key, {member: value})
    (found,) = checking.check(tenant, now=utcnow()).differences
    assert (found.where, found.found, found.expected) == (key, value, None)
    assert found.member in {"page a", "page b", "page c"}, "by the tenant's own id"


def test_what_is_due_hides_no_member_that_should_not_be_there(key: str, tenant: str, app_client: Caller) -> None:
    tenants_redis.boards().redis.zadd(key, {"1": 5, "not a page": 7})
    app_client("POST", "/api/v1/pages/a/views")
    found = checking.check(tenant, now=utcnow()).differences
    assert {(one.where, one.member) for one in found} == {(key, "page number 1"), (key, "page number not a page")}


def test_a_large_board_is_read_in_parts(key: str, tenant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_checking, "MAX_MEMBERS_PER_COMMAND", 2)
    extra = {str(10**15 + number): 1 for number in range(1_000)}  # more than a small sorted set, which is read at once
    tenants_redis.boards().redis.zadd(key, extra)
    found = checking.check(tenant, now=utcnow()).differences
    assert {one.member for one in found} == {f"page number {number}" for number in extra}


def test_boards_that_are_all_lost_are_one_line(key: str, tenant: str) -> None:
    redis = tenants_redis.boards().redis
    redis.unlink(f"lbv:{{{key}}}")
    found = checking.check(tenant, now=utcnow()).differences
    assert [(one.where, one.found) for one in found] == [(key, "not complete")]
    redis_store.unlink(redis, list(redis.scan_iter(f"lbv:{{lb:{tenant}:*")))
    found = checking.check(tenant, now=utcnow()).differences
    assert [(one.where, one.member) for one in found] == [("Redis", "the boards")]


def test_a_page_of_no_tenant_is_found_on_the_global_boards(
    key: str, tenant: str, app_client: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "LOOK_AGAIN_AFTER_S", 0.0)
    assert app_client("PATCH", "/api/v1/settings", json={"share_public_pages": True}).status_code == 200
    app_client(
        "PUT",
        "/api/v1/pages/shown",
        json={"title": "x", "url": "https://e.org/shown", "space": "eng", "visibility": "public"},
    )
    app_client("POST", "/api/v1/pages/shown/views")
    projection.project_all(tenant, now=utcnow)
    rebuilding.rebuild_global(now=utcnow(), only_missing=False)
    redis = tenants_redis.boards().redis

    def found() -> set[tuple[str, str]]:
        report = checks.check_tenants(across.live_tenants(), [checks.GLOBAL], now=utcnow)
        return {(one.where, one.member) for one in report.differences}

    assert found() == set()
    redis.zadd("lb:_all:global:7d:views", {"999999999": 4})
    assert found() == {("lb:_all:global:7d:views", "page number 999999999")}
    rebuilding.rebuild_global(now=utcnow(), only_missing=False)
    assert found() == set()
