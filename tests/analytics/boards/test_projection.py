"""P3 and P4: what the projection writes to Redis, and when."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from analytics.boards import checking, planning, projection, redis_store
from analytics.boards.board_writes import BoardWrites
from analytics.boards.names import Board
from analytics.ingest.writes import EventKind, Item
from analytics.metrics import VIEWS
from analytics.windows import HOUR, Window
from tenants import redis as tenants_redis
from tenants.db import tenant_tx, utcnow
from tenants.redis import RedisUnavailable
from tests.analytics.boards.conftest import MakeBoard, order, project, read
from tests.analytics.conftest import make_page, put_page, write_events
from tests.people import Caller
from tests.service import eventually


def test_after_a_chunk_that_failed_nothing_more_is_written_and_the_next_run_heals(
    sender: Caller, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        make_page(sender, name)
    projection.project_all(tenant, now=utcnow)
    for name in "abc":
        sender("POST", f"/api/v1/pages/{name}/views")
    written: list[BoardWrites] = []

    def fail(_client: Any, writes: BoardWrites, _versions: Any) -> list[Board]:
        written.append(writes)
        raise RedisUnavailable

    monkeypatch.setattr(planning, "MAX_MEMBERS_PER_CHUNK", 1)
    with monkeypatch.context() as broken:
        broken.setattr(redis_store, "write", fail)
        assert projection.project_step(tenant, now=utcnow()).in_redis is False
    assert len(written) == 1, "a later version would be without the chunk that failed"
    with tenant_tx(tenant) as tx:
        assert tx.scalar(text("SELECT count(*) FROM projecting")) == 3, "the intents stay"
    projection.project_all(tenant, now=utcnow)
    report = checking.check(tenant, now=utcnow())
    assert (report.differences, report.due) == ([], 0)


def test_moving_hiding_and_deleting_take_a_page_along_at_once(
    board: MakeBoard, app_client: Caller, tenant: str
) -> None:
    board(a=2)

    def boards_with_it() -> set[str]:
        project(tenant)
        scopes = ["tenant", "space:eng", "space:ops", "public", "public:eng", "public:ops"]
        return {s for s in scopes if read(app_client, f"/api/v1/leaderboards?scope={s}&metric=views")["items"]}

    assert boards_with_it() == {"tenant", "space:eng"}
    make_page(app_client, "a", space="ops", visibility="public")
    eventually(lambda: boards_with_it() == {"tenant", "space:ops", "public", "public:ops"})
    make_page(app_client, "a", space="ops", visibility="private")
    eventually(lambda: boards_with_it() == {"tenant", "space:ops"})
    app_client("DELETE", "/api/v1/pages/a")
    eventually(lambda: boards_with_it() == set())


def test_a_redis_that_came_back_with_old_boards_is_filled_anew(
    board: MakeBoard, app_client: Caller, tenant: str
) -> None:
    """A server restarted from an old dump has markers, and anything behind them."""
    expected = order(board(a=3, b=2))
    redis = tenants_redis.boards().redis
    redis.zadd(f"lb:{tenant}:tenant:7d:views", {"999999": 77})
    redis.set(f"lbr:{tenant}", "the run before")
    assert tenant in projection.stale_tenants(now=utcnow())
    project(tenant)
    assert tenant not in projection.stale_tenants(now=utcnow())
    eventually(lambda: order(read(app_client)) == expected)


def test_a_like_of_the_next_hour_that_is_taken_back_before_windows_slide_was_in_none(tenant: str) -> None:
    put_page(tenant, "a")
    now = utcnow()
    soon = now + HOUR
    for kind, user, at, projected_at in [
        (EventKind.LIKE, "eve", now, now),
        (EventKind.LIKE, "ada", soon, now),
        (EventKind.UNLIKE, "ada", soon + timedelta(seconds=1), soon),
    ]:
        write_events(tenant, Item(kind, "a", at, user=user))
        assert projection.project_step(tenant, now=projected_at).pages == 1
    report = checking.check(tenant, now=soon)
    assert (report.differences, report.due) == ([], 0)


def test_boards_that_were_written_in_another_redis_meanwhile_are_rebuilt_here(
    tenant: str, logged: Callable[[], list[dict[str, Any]]]
) -> None:
    """As with a node whose REDIS_URL is another one: its worker deletes rows of the outbox that this one never got."""
    page = put_page(tenant, "a")
    write_events(tenant, Item(EventKind.VIEW, "a", utcnow()))
    projection.project_all(tenant, now=utcnow)
    board = Board(tenant, "tenant", Window.WEEK, VIEWS)
    with tenant_tx(tenant) as tx:
        tx.execute(text("UPDATE projections SET redis_run = 'another' WHERE tenant_id = :t"), {"t": tenant})
    with tenants_redis.boards().client() as client:
        client.zadd(board.key, {str(page): 77})
        assert tenant in projection.stale_tenants(now=utcnow())
        projection.project_all(tenant, now=utcnow)
        assert client.zscore(board.key, str(page)) == 1
    assert tenant not in projection.stale_tenants(now=utcnow())
    (said,) = [line for line in logged() if line["action"] == "boards.elsewhere"]
    assert (said["tenantId"], "REDIS_URL" in said["message"]) == (tenant, True)
