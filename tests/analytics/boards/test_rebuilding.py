"""Rebuilding: boards in Redis from the saved numbers."""

from uuid import uuid4

import pytest
from sqlalchemy import text

from analytics import checks
from analytics.boards import caught_up, projection, rebuilding, redis_reads, redis_store
from analytics.boards.names import ALL_TENANTS, GLOBAL, Board, boards_in
from analytics.boards.redis_store import is_complete
from analytics.boards.summaries import summary_key
from analytics.ingest.writes import EventKind, Item
from analytics.metrics import LIKES, VIEWS
from analytics.windows import Window
from tenants import redis as tenants_redis
from tenants.db import tenant_tx, utcnow
from tests.analytics.boards.conftest import save_page_numbers
from tests.analytics.conftest import put_page, write_events


def top(board: Board) -> list[tuple[str, float]]:
    listing = redis_reads.read_top(board, limit=1000, after=None)
    assert listing is not None, "it has a marker"
    return [(row.subject, row.value) for row in listing.rows]


def views_board(tenant: str, scope: str) -> Board:
    return Board(tenant, scope, Window.WEEK, VIEWS)


def test_boards_are_filled_in_steps_with_the_rows_of_their_scope(tenant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuilding, "MAX_ROWS_PER_QUERY", 2)
    ids = [put_page(tenant, name, space=space) for name, space in zip("abc", ("eng", "ops", "eng"), strict=True)]
    for views, page_id in enumerate(ids, 1):
        save_page_numbers(tenant, page_id, views_7d=views, views_all=9)
    counted: list[int] = []
    wanted = [*boards_in(tenant, "tenant"), *boards_in(tenant, "space:eng")]
    with tenant_tx(tenant) as tx, tenants_redis.boards().client() as client:
        assert set(rebuilding.rebuild(tx, client, wanted, progress=counted.append)) == set(wanted)
        assert client.hgetall(summary_key(tenant, str(ids[0])))[b"title"] == b"Page a"
    a, b, c = map(str, ids)
    assert top(views_board(tenant, "tenant")) == [(c, 3), (b, 2), (a, 1)]
    assert top(views_board(tenant, "space:eng")) == [(c, 3), (a, 1)]
    assert sum(counted) == 5
    assert max(counted) == 2


def test_a_tenant_has_the_boards_of_its_present_and_former_spaces_and_segments(tenant: str) -> None:
    save_page_numbers(tenant, put_page(tenant, "a", space="eng"), views_all=1)
    with tenant_tx(tenant) as tx:
        tx.execute(
            text("""
                INSERT INTO boards (tenant_id, scope, time_window, metric, reserved, changed_at)
                SELECT t.id, s.scope, '7d', 'views', 1, :now
                FROM tenants t CROSS JOIN unnest(ARRAY['space:old', 'users:former']) s(scope) WHERE t.id = :tenant
            """),
            {"tenant": tenant, "now": utcnow()},
        )
        scopes = {board.scope for board in rebuilding.all_boards(tx)}
    spaces = {"space:eng", "public:eng", "space:old", "public:old"}
    assert scopes == {"tenant", "public", "users", "users:former"} | spaces


def test_global_boards_are_rebuilt_from_every_tenant_that_shares(tenant: str, other_tenant: str) -> None:
    ids = [put_page(one, "a", visibility="public") for one in (tenant, other_tenant)]
    save_page_numbers(tenant, ids[0], shared=True, views_7d=5)
    save_page_numbers(other_tenant, ids[1], shared=False, views_7d=5)
    board = views_board(ALL_TENANTS, GLOBAL)
    rebuilding.rebuild_global(now=utcnow(), only_missing=False)
    assert dict(top(board)).get(str(ids[0])) == 5
    assert str(ids[1]) not in dict(top(board))
    assert rebuilding.rebuild_global(now=utcnow()) == [], "none is missing"
    redis = tenants_redis.boards().redis
    redis.delete(board.marker)
    redis_store.mark_incomplete(redis, ALL_TENANTS)
    assert rebuilding.rebuild_global(now=utcnow()) == [board]


@pytest.fixture
def one_row_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuilding, "MAX_ROWS_PER_QUERY", 1)
    monkeypatch.setattr(rebuilding, "MIN_STEP_S", 0.0)


def like(tenant: str, page: str) -> None:
    write_events(tenant, Item(EventKind.LIKE, page, utcnow(), user=f"u{uuid4()}"))


@pytest.mark.usefixtures("one_row_a_step")
@pytest.mark.parametrize("lost", ["everything", "a restart", "another server"])
def test_lost_boards_are_filled_in_steps_each_valid_when_it_is_whole(tenant: str, lost: str) -> None:
    page_ids = {name: str(put_page(tenant, name, space=f"s{name}")) for name in "abc"}
    for name in page_ids:
        like(tenant, name)
    projection.project_all(tenant, now=utcnow)
    redis = tenants_redis.boards().redis
    board = Board(tenant, "tenant", Window.WEEK, LIKES)
    expected = dict(top(board))
    if lost == "another server":
        with tenant_tx(tenant) as tx:
            tx.execute(text("UPDATE projections SET server = 'another'"))
    elif lost == "a restart":
        redis.set(redis_store.ready_key(tenant), "another-run")
        redis.zadd(board.key, {"999999": 7})
    else:
        redis_store.unlink(redis, list(redis.scan_iter(f"*:{tenant}*")))
    steps, more = 0, True
    while more:
        done = projection.project_step(tenant, now=utcnow(), is_over=lambda: True)
        steps, more = steps + 1, done.more
        is_whole = redis.exists(board.marker)
        assert is_complete(redis.get(redis_store.ready_key(tenant))) is not more
        assert caught_up.is_trusted(board)
        if is_whole:
            assert dict(top(board)) == expected
        else:
            assert redis_reads.read_top(board, limit=1000, after=None) is None
        if steps == 3:
            like(tenant, "b")
            expected[page_ids["b"]] += 1
    assert steps > 12
    assert checks.check(tenant, now=utcnow()).differences == []
    assert projection.project_step(tenant, now=utcnow()).rebuilt == []


@pytest.mark.usefixtures("one_row_a_step")
def test_lost_global_boards_are_filled_in_steps(tenant: str) -> None:
    page_ids = [put_page(tenant, name, visibility="public") for name in "abc"]
    for page_id in page_ids:
        save_page_numbers(tenant, page_id, shared=True, views_7d=5)
    rebuilding.rebuild_global(now=utcnow(), only_missing=False)
    board, redis = views_board(ALL_TENANTS, GLOBAL), tenants_redis.boards().redis
    redis_store.unlink(redis, list(redis.scan_iter("*:_all*")))
    done = projection.bring_up_to_date(ALL_TENANTS, now=utcnow, is_over=lambda: True)
    assert (done.more, done.rebuilt) == (True, [])
    assert ALL_TENANTS in projection.stale_tenants(now=utcnow())
    assert not redis.exists(board.marker)
    assert board in projection.bring_up_to_date(ALL_TENANTS, now=utcnow).rebuilt
    assert {str(page_id): 5.0 for page_id in page_ids}.items() <= dict(top(board)).items()
