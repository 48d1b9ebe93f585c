"""`plaudit check` finds whatever is wrong, and nothing else."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from flask.testing import FlaskClient
from sqlalchemy import text

from analytics import outbox
from analytics.boards import checking, projection, recomputing
from analytics.outbox import Kind
from tenants import redis as tenants_redis
from tenants.db import tenant_tx, utcnow
from tests.analytics.conftest import make_page
from tests.people import Caller, client_of


@pytest.fixture
def busy(client: FlaskClient, tenant: str) -> Caller:
    """A tenant with pages that have likes and views, now and earlier."""
    caller = client_of(client, tenant)
    for number in range(6):
        make_page(caller, f"p{number}", visibility="public" if number % 2 else "private")
        late = (utcnow() - timedelta(days=number * 5)).isoformat()
        events = [{"type": "view", "page": f"p{number}"}] * (number + 1)
        events += [{"type": "view", "page": f"p{number}", "occurred_at": late}]
        events += [{"type": "like", "page": f"p{number}", "user": "u"}]
        answer = caller("POST", "/api/v1/events", json={"events": events})
        assert answer.get_json()["rejected"] == []
    projection.project_all(tenant, now=utcnow)
    return caller


def test_nothing_is_found_when_nothing_is_wrong(busy: Caller) -> None:
    report = checking.check(busy.tenant, now=utcnow())
    assert report.differences == []
    assert (report.pages, report.due) == (6, 0)
    assert report.boards >= 48


def key_of(tenant: str) -> str:
    return f"lb:{tenant}:space:eng:7d:views"


def alter_a_score(tenant: str) -> None:
    redis = tenants_redis.boards().redis
    (member, value), *_ = redis.zscan_iter(key_of(tenant))
    redis.zadd(key_of(tenant), {member: value + 1})


def drop_a_member(tenant: str) -> None:
    redis = tenants_redis.boards().redis
    redis.zpopmin(key_of(tenant))


def add_a_member(tenant: str) -> None:
    tenants_redis.boards().redis.zadd(key_of(tenant), {"1": 5})


def lose_a_board(tenant: str) -> None:
    redis = tenants_redis.boards().redis
    redis.delete(key_of(tenant), f"lbv:{{{key_of(tenant)}}}")


def leave_a_board_of_a_space_that_is_gone(tenant: str) -> None:
    redis = tenants_redis.boards().redis
    redis.zadd(f"lb:{tenant}:space:gone:7d:views", {"1": 5})
    redis.set(f"lbv:{{lb:{tenant}:space:gone:7d:views}}", "1 2026-01-01T00:00:00+00:00")


def alter_a_cell(tenant: str) -> None:
    with tenant_tx(tenant) as tx:
        tx.execute(
            text("""
                UPDATE page_stats SET likes_30d = likes_30d + 1 WHERE page_id = (SELECT min(page_id) FROM page_stats)
            """)
        )


def miscount(tenant: str) -> None:
    with tenant_tx(tenant) as tx:
        tx.execute(
            text("UPDATE page_counters SET views = views + 1 WHERE page_id = (SELECT min(page_id) FROM page_counters)")
        )
        outbox.mark_selected_stale(tx, Kind.PAGE, "SELECT id::text FROM pages WHERE tenant_id = :tenant", {})
    projection.project_all(tenant, now=utcnow)


@pytest.mark.parametrize(
    ("spoil", "where", "at_least"),
    [
        (alter_a_score, "lb:", 1),
        (drop_a_member, "lb:", 1),
        (add_a_member, "lb:", 1),
        (lose_a_board, "lb:", 1),
        (leave_a_board_of_a_space_that_is_gone, "lb:", 1),
        (alter_a_cell, "page_stats.likes_30d", 1),
        (miscount, "page_stats.views_all", 2),
    ],
)
def test_each_wrong_thing_is_found_and_rebuilding_heals_it(
    busy: Caller, spoil: Callable[[str], None], where: str, at_least: int
) -> None:
    spoil(busy.tenant)
    found = checking.check(busy.tenant, now=utcnow()).differences
    assert len(found) >= at_least
    assert any(difference.where.startswith(where) for difference in found), found
    if at_least == 1:
        assert len(found) == 1, "that one thing, and nothing else"
    recomputing.recompute_tenant(busy.tenant, now=utcnow, progress=lambda _: None)
    assert checking.check(busy.tenant, now=utcnow()).differences == []


def test_what_is_still_due_is_late_and_not_wrong(busy: Caller) -> None:
    busy("POST", "/api/v1/pages/p1/views")
    report = checking.check(busy.tenant, now=utcnow())
    assert (report.differences, report.due) == ([], 1)
