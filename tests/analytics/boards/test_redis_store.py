"""Boards in Redis: valid only with their marker, which only a rebuild sets."""

from typing import Any

import orjson
import pytest
from redis import Redis

from analytics.boards import redis_store
from analytics.boards.board_writes import BoardWrites
from analytics.boards.filling import Filling
from analytics.boards.names import ALL_TENANTS, GLOBAL, Board, Version
from analytics.boards.redis_store import CHANNEL, RedisState
from analytics.boards.summaries import summary_key
from analytics.metrics import POINTS, VIEWS, Value
from analytics.windows import Window
from tenants import redis as tenants_redis
from tenants.db import utcnow
from tenants.redis import on_every_server
from tests.service import eventually

NOW = utcnow()


@pytest.fixture
def redis(connected: None) -> Redis:
    return tenants_redis.boards().redis


@pytest.fixture
def pages(tenant: str) -> Board:
    return Board(tenant, "tenant", Window.WEEK, VIEWS)


@pytest.fixture
def users(tenant: str) -> Board:
    return Board(tenant, "users", Window.WEEK, POINTS)


def rebuilt(redis: Redis, board: Board, **values: Value) -> None:
    """A valid board of version 1."""
    filling = Filling(redis, [board], anew=True)
    if board.is_users:
        filling.add_users({board: {user: (f"1:{user}", value) for user, value in values.items()}})
    else:
        filling.add_pages({board: values}, {})
    assert filling.finish({board: Version(1, NOW)}) == [board]


def stored(redis: Redis, board: Board) -> dict[str, float]:
    rows: Any = redis.zrange(board.key, 0, -1, withscores=True)
    return {member.decode(): value for member, value in rows}


def test_only_a_board_with_its_marker_is_written(redis: Redis, pages: Board) -> None:
    writes = BoardWrites(values={pages: {"a": 5}}, removed={pages: ["b"]})
    assert redis_store.write(redis, writes, {pages: Version(2, NOW)}) == [pages], "it needs a rebuild"
    assert (stored(redis, pages), redis_store.published_version(redis, pages)) == ({}, 0)
    rebuilt(redis, pages, a=1, b=2, c=3)
    for _ in range(2):  # absolute values: writing them twice changes nothing
        assert redis_store.write(redis, writes, {pages: Version(2, NOW)}) == []
        assert stored(redis, pages) == {"a": 5, "c": 3}
    assert redis_store.published_version(redis, pages) == 2


def test_a_user_has_one_member_however_often_it_changes(redis: Redis, users: Board) -> None:
    rebuilt(redis, users, ada=1, bob=2)
    changes: list[tuple[str, Value] | None] = [("2:ada", 7), ("2:ada", 8), None, None, ("3:ada", 9)]
    expected: list[dict[str, float]] = [{"2:ada": 7}, {"2:ada": 8}, {}, {}, {"3:ada": 9}]
    for entry, of_ada in zip(changes, expected, strict=True):
        redis_store.write(redis, BoardWrites(users={users: {"ada": entry}}), {users: Version(2, NOW)})
        assert stored(redis, users) == {"1:bob": 2, **of_ada}
        members: Any = redis.hvals(users.lookup)
        assert {member.decode() for member in members} == {"1:bob", *of_ada}


def test_summaries_are_written_and_deleted_with_the_boards(redis: Redis, tenant: str) -> None:
    name = summary_key(tenant, "7")
    redis_store.write(redis, BoardWrites(summaries={name: {"title": "Home"}}), {})
    assert redis.hgetall(name) == {b"title": b"Home"}
    redis_store.write(redis, BoardWrites(summaries={name: None}), {})
    assert not redis.exists(name)


def test_versions_are_announced_in_one_message_for_each_tenant(redis: Redis, pages: Board, users: Board) -> None:
    shared = Board(ALL_TENANTS, GLOBAL, Window.WEEK, VIEWS)
    with redis.pubsub(ignore_subscribe_messages=True) as pubsub:  # type: ignore[no-untyped-call]
        pubsub.subscribe(CHANNEL)
        eventually(lambda: any(found[0][1] for found in on_every_server(redis, "PUBSUB NUMSUB", CHANNEL)))
        redis_store.publish(redis, {pages: Version(3, NOW), users: Version(4, NOW), shared: Version(5, NOW)})
        messages = [orjson.loads(eventually(lambda: pubsub.get_message(timeout=1))["data"]) for _ in range(2)]
    assert messages == [
        {"tenant": pages.tenant_id, "versions": {"tenant:7d:views": 3, "users:7d:points": 4}},
        {"tenant": ALL_TENANTS, "versions": {"global:7d:views": 5}},
    ]


def test_boards_that_the_tenant_does_not_have_are_deleted_with_what_belongs_to_them(
    redis: Redis, pages: Board, users: Board
) -> None:
    former = Board(pages.tenant_id, "users:former", Window.WEEK, POINTS)
    for board in (pages, users, former):
        rebuilt(redis, board, a=1)
    redis_store.delete_others(redis, pages.tenant_id, [pages, users])
    assert redis_store.without_marker(redis, [pages, former, users]) == [former]
    assert redis.exists(former.key, former.lookup) == 0
    assert redis.exists(users.key, users.lookup) == 2


def test_of_a_deleted_tenant_no_key_remains(redis: Redis, pages: Board, users: Board, other_tenant: str) -> None:
    other = Board(other_tenant, "tenant", Window.WEEK, VIEWS)
    for board in (pages, users, other):
        rebuilt(redis, board, a=1)
    redis_store.write(redis, BoardWrites(summaries={summary_key(pages.tenant_id, "7"): {"title": "Home"}}), {})
    Filling(redis, [users])
    complete(redis, pages.tenant_id)
    redis_store.delete_tenant(redis, pages.tenant_id)
    assert list(redis.scan_iter(f"*{pages.tenant_id}*")) == []
    assert stored(redis, other) == {"a": 1}


def complete(redis: Redis, tenant: str) -> None:
    run = redis_store.run_id(redis)
    redis_store.mark_rebuilding(redis, tenant, run=run)
    redis_store.mark_complete(redis, tenant, run=run)


def test_redis_is_ready_when_the_missing_boards_were_rebuilt(redis: Redis, tenant: str) -> None:
    assert redis_store.state(redis, tenant) is RedisState.RESTARTED, "nothing is known"
    run = redis_store.run_id(redis)
    redis_store.forget(redis, tenant, [], run=run)
    for _ in range(2):
        assert redis_store.state(redis, tenant) is RedisState.INCOMPLETE
        redis_store.mark_rebuilding(redis, tenant, run=run)
        assert redis_store.state(redis, tenant) is RedisState.INCOMPLETE
        redis_store.mark_complete(redis, tenant, run=run)
        assert redis_store.state(redis, tenant) is RedisState.READY
        redis_store.mark_incomplete(redis, tenant)


def test_boards_of_a_restarted_server_are_not_trusted_before_they_are_forgotten(redis: Redis, pages: Board) -> None:
    tenant = pages.tenant_id
    rebuilt(redis, pages, a=1)
    redis.set(redis_store.ready_key(tenant), "another run")
    assert redis_store.state(redis, tenant) is RedisState.RESTARTED
    redis_store.mark_incomplete(redis, tenant)
    assert redis_store.state(redis, tenant) is RedisState.RESTARTED, "somebody has found a board missing"
    redis.set(redis_store.ready_key(tenant), "!")
    assert redis_store.state(redis, tenant) is RedisState.RESTARTED, "a release before was rebuilding them"
    redis_store.forget(redis, tenant, [pages], run=redis_store.run_id(redis))
    assert redis_store.state(redis, tenant) is RedisState.INCOMPLETE
    assert redis_store.without_marker(redis, [pages]) == [pages]


def test_redis_is_not_ready_if_a_board_was_found_missing_meanwhile(redis: Redis, tenant: str) -> None:
    run = redis_store.run_id(redis)
    redis_store.mark_rebuilding(redis, tenant, run=run)
    redis_store.mark_incomplete(redis, tenant)
    redis_store.mark_complete(redis, tenant, run=run)
    assert redis_store.state(redis, tenant) is RedisState.INCOMPLETE


def test_boards_of_a_server_that_restarts_while_they_are_rebuilt_are_not_trusted(
    redis: Redis, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have loaded a dump with the key of the rebuild, and with boards from before."""
    complete(redis, tenant)
    monkeypatch.setattr(redis_store, "run_id", lambda _redis: "another")
    assert redis_store.state(redis, tenant) is RedisState.RESTARTED


def test_boards_that_are_invalidated_are_missing_and_others_are_not(redis: Redis, pages: Board, users: Board) -> None:
    for board in (pages, users):
        redis.set(board.marker, "1 2026-01-01T00:00:00+00:00")
    complete(redis, pages.tenant_id)
    redis_store.invalidate(redis, [pages])
    assert redis_store.without_marker(redis, [pages, users]) == [pages]
    assert redis_store.state(redis, pages.tenant_id) is RedisState.INCOMPLETE
