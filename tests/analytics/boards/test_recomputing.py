"""Recomputing: counters, numbers and boards of a tenant from what was counted, whatever they were before."""

import orjson
import pytest
from sqlalchemy import text

from analytics.boards import checking, projection, recomputing, redis_reads, redis_store, versions
from analytics.boards.names import Board
from analytics.ingest.writes import EventKind, Item
from analytics.metrics import POINTS, VIEWS
from analytics.windows import Window
from tenants import redis as tenants_redis
from tenants import users
from tenants.db import tenant_tx, utcnow
from tests.analytics.boards.conftest import save_page_numbers
from tests.analytics.conftest import Jobs, put_page, write_events
from tests.analytics.scores.conftest import pay


def top(board: Board) -> list[tuple[str, float]]:
    listing = redis_reads.read_top(board, limit=10, after=None)
    assert listing is not None
    return [(row.subject, row.value) for row in listing.rows]


def test_wrong_counters_numbers_and_boards_are_repaired(
    tenant: str, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recomputing, "MAX_ROWS_PER_STEP", 2)
    ids = [put_page(tenant, name) for name in "abc"]
    write_events(tenant, *[Item(EventKind.VIEW, "a", utcnow())] * 3, Item(EventKind.VIEW, "c", utcnow()))
    with tenant_tx(tenant) as tx:
        user = str(users.ensure_external(tx, "ada", now=utcnow()))
    pay(tenant, user, 10, utcnow())
    for page_id in ids:
        save_page_numbers(tenant, page_id, views_7d=77, views_all=77)
    with tenant_tx(tenant) as tx:
        tx.execute(text("UPDATE page_counters SET views = 99"))
    redis = tenants_redis.boards().redis
    redis.zadd(f"lb:{tenant}:space:former:7d:views", {"1": 5})
    before = jobs()
    counted: list[int] = []
    done = recomputing.recompute_tenant(tenant, now=utcnow, progress=counted.append)
    assert (done.pages, sum(counted) >= 3, jobs()) == (3, True, before)
    for window in (Window.WEEK, Window.ALL):
        assert top(Board(tenant, "tenant", window, VIEWS)) == [(str(ids[0]), 3), (str(ids[2]), 1)]
        assert top(Board(tenant, "users", window, POINTS)) == [(user, 10)]
    assert not redis.exists(f"lb:{tenant}:space:former:7d:views")
    assert checking.check(tenant, now=utcnow()).differences == []


def test_versions_do_not_go_back_after_commits_were_lost(tenant: str) -> None:
    """As after a failover that nobody noticed: Redis has a later version than PostgreSQL, and readers may have it."""
    put_page(tenant, "a")
    write_events(tenant, Item(EventKind.VIEW, "a", utcnow()))
    projection.project_all(tenant, now=utcnow)
    board = Board(tenant, "tenant", Window.WEEK, VIEWS)
    with tenant_tx(tenant) as tx:
        seen = versions.read(tx, [board], now=utcnow())[board].number
        tx.execute(text("UPDATE boards SET version = 1, reserved = 1 WHERE tenant_id = :t"), {"t": tenant})
    with tenants_redis.boards().client() as client, client.pubsub() as messages:  # type: ignore[no-untyped-call]
        messages.subscribe(redis_store.CHANNEL)
        recomputing.recompute_tenant(tenant, now=utcnow, progress=lambda _: None)
        assert redis_store.published_version(client, board) > seen
        received = [
            each["data"] for each in iter(lambda: messages.get_message(timeout=1), None) if each["type"] == "message"
        ]
    assert any(message["tenant"] == tenant and message.get("resync") for message in map(orjson.loads, received))
