"""After a failover with loss: boards are those of the server that has the truth now, under versions of their own."""

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text

from analytics.boards import checking, projection, rebuilding, redis_store, timeline, versions
from analytics.boards.names import ALL_TENANTS, GLOBAL, Board, Version, boards_in
from analytics.ingest.writes import EventKind, Item
from analytics.metrics import VIEWS
from analytics.windows import Window
from tenants import redis as tenants_redis
from tenants.db import owner_tx, platform_tx, tenant_tx, utcnow
from tests.analytics.boards.conftest import project
from tests.analytics.conftest import put_page, write_events
from tests.conftest import redis_unavailable

ANOTHER = "7000000000000000000/00000001"


@pytest.fixture
def board(tenant: str) -> Board:
    """A board whose last change, a space and their versions were lost: only Redis has them."""
    put_page(tenant, "a")
    write_events(tenant, Item(EventKind.VIEW, "a", utcnow()))
    project(tenant)
    board, lost = (Board(tenant, scope, Window.WEEK, VIEWS) for scope in ("tenant", "space:lost"))
    with tenant_tx(tenant) as tx:
        (member,) = tx.scalars(text("SELECT page_id::text FROM page_stats"))
        published = versions.read(tx, [board], now=utcnow())[board]
        tx.execute(text("UPDATE boards SET version = 2, reserved = 2"))
    redis = tenants_redis.boards().redis
    for one in (board, lost):
        redis.zadd(one.key, {member: 77, "999999": 78})
        redis.set(one.marker, published.dump())
    return board


@pytest.fixture
def global_boards(connected: None) -> Iterator[list[Board]]:
    rebuilding.rebuild_global(now=utcnow())
    yield boards_in(ALL_TENANTS, GLOBAL)
    rebuilding.rebuild_global(now=utcnow())


def set_server(tenant: str, server: str | None) -> None:
    with tenant_tx(tenant) as tx:
        tx.execute(text("UPDATE projections SET server = :server"), {"server": server})


def server_of(tenant: str) -> str | None:
    with tenant_tx(tenant) as tx:
        server: str | None = tx.scalar(text("SELECT server FROM projections"))
        return server


def in_redis(board: Board) -> tuple[int, dict[str, float]]:
    redis = tenants_redis.boards().redis
    marker = redis.get(board.marker)
    rows: Any = redis.zrange(board.key, 0, -1, withscores=True)
    members = {member.decode(): value for member, value in rows}
    return (Version.load(marker).number if marker is not None else 0), members


def is_behind(owner: str) -> bool:
    return owner in projection.stale_tenants(now=utcnow())


def test_the_server_is_known_to_every_role_and_the_same_in_all_transactions(tenant: str) -> None:
    found = set()
    for open_tx in (platform_tx, owner_tx, lambda: tenant_tx(tenant)):
        with open_tx() as tx:
            found.add(timeline.current(tx))
    (server,) = found
    assert server is not None
    system, _, number = server.partition("/")
    assert (len(system) > 15, int(number, 16) > 0) == (True, True)


def test_on_another_server_all_boards_are_rebuilt_under_versions_above_the_lost_ones(board: Board) -> None:
    tenant, (published, _) = board.tenant_id, in_redis(board)
    assert not is_behind(tenant)
    set_server(tenant, ANOTHER)
    assert is_behind(tenant)
    with redis_unavailable():
        assert projection.project_step(tenant, now=utcnow()).in_redis is False
    assert server_of(tenant) == ANOTHER, "Redis has not answered"
    with tenants_redis.boards().redis.pubsub(ignore_subscribe_messages=True) as listening:  # type: ignore[no-untyped-call]
        listening.subscribe(redis_store.CHANNEL)
        listening.get_message(timeout=5)
        assert board in projection.project_step(tenant, now=utcnow()).rebuilt
        messages = [listening.get_message(timeout=5)["data"] for _ in range(2)]
    version, members = in_redis(board)
    assert (version > published, list(members.values())) == (True, [1])
    assert str(version).encode() in messages[0]
    assert b'"resync":true' in messages[1]
    with tenant_tx(tenant) as tx:
        assert versions.read(tx, [board], now=utcnow())[board].number == version
        assert timeline.current(tx) == server_of(tenant)
    assert not is_behind(tenant)
    assert projection.project_step(tenant, now=utcnow()).rebuilt == []


def test_after_an_upgrade_the_present_server_is_taken_over_without_a_rebuild(board: Board) -> None:
    set_server(board.tenant_id, None)
    assert not is_behind(board.tenant_id)
    assert projection.project_step(board.tenant_id, now=utcnow()).rebuilt == []
    assert server_of(board.tenant_id) is not None


def test_after_an_upgrade_the_global_boards_take_the_present_server_over_without_a_rebuild(
    board: Board, global_boards: list[Board]
) -> None:
    kept = in_redis(board)
    with owner_tx() as tx:
        tx.execute(text("UPDATE global_boards SET server = NULL"))
    assert is_behind(ALL_TENANTS)
    assert rebuilding.rebuild_global(now=utcnow()) == []
    assert in_redis(board) == kept, "nothing is deleted"
    assert not is_behind(ALL_TENANTS)
    with platform_tx() as tx:
        assert timeline.of_global_boards(tx) == timeline.current(tx)


@pytest.fixture(params=["pg_control_nothing()", "pg_ls_waldir() w(system_identifier)"], ids=["unknown", "revoked"])
def silent_server(connected: None, request: pytest.FixtureRequest) -> Iterator[None]:
    """As a managed one, which has taken its functions from everybody or has none."""
    with owner_tx() as tx:
        own: str = tx.scalar(text("SELECT pg_get_functiondef('current_server'::regproc)")) or ""
        assert "pg_control_system()" in own
        tx.raw.exec_driver_sql(own.replace("pg_control_system()", request.param))
    yield
    with owner_tx() as tx:
        tx.raw.exec_driver_sql(own)


def test_a_server_that_does_not_say_which_it_is_has_boards_all_the_same(
    board: Board, global_boards: list[Board], silent_server: None
) -> None:
    tenant = board.tenant_id
    with tenant_tx(tenant) as tx:
        assert timeline.current(tx) is None
    assert projection.project_step(tenant, now=utcnow()).rebuilt == []
    assert not is_behind(tenant)
    assert not is_behind(ALL_TENANTS)
    assert rebuilding.rebuild_global(now=utcnow()) == []
    with owner_tx() as tx:
        timeline.forget(tx)
    assert is_behind(tenant)
    assert is_behind(ALL_TENANTS)
    assert rebuilding.rebuild_global(now=utcnow()) == global_boards
    assert board in projection.project_step(tenant, now=utcnow()).rebuilt
    assert not {tenant, ALL_TENANTS} & {*timeline.owners_elsewhere()}, "a restore is noticed once"


def test_boards_that_only_the_lost_server_knew_are_deleted_with_the_global_boards_rebuild(
    board: Board, global_boards: list[Board]
) -> None:
    lost = Board(board.tenant_id, "space:lost", Window.WEEK, VIEWS)
    before, _ = in_redis(global_boards[0])
    with owner_tx() as tx:
        timeline.forget(tx)  # as a restore does
    assert is_behind(ALL_TENANTS)
    assert is_behind(board.tenant_id)
    assert rebuilding.rebuild_global(now=utcnow()) == global_boards
    assert in_redis(lost) == (0, {})
    assert in_redis(board) == (0, {}), "it is read from PostgreSQL, until its tenant's turn"
    assert in_redis(global_boards[0])[0] > before
    assert not is_behind(ALL_TENANTS)
    project(board.tenant_id)
    assert not is_behind(board.tenant_id)
    assert checking.check(board.tenant_id, now=utcnow()).differences == []
    rebuilding.rebuild_global(now=utcnow())
    assert in_redis(board)[1] != {}, "nothing is deleted twice"
