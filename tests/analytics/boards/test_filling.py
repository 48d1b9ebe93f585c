"""Boards are filled step by step, by whoever continues, and have what was written to them meanwhile."""

from typing import Any

import pytest
from redis import Redis

from analytics.boards import redis_store
from analytics.boards.board_writes import BoardWrites
from analytics.boards.filling import Filling
from analytics.boards.names import Board, Version
from analytics.metrics import POINTS, VIEWS, Value
from analytics.windows import Window
from tenants import redis as tenants_redis
from tenants.db import utcnow

NOW = utcnow()
ONE, TWO, THREE = (Version(number, NOW) for number in (1, 2, 3))


@pytest.fixture
def redis(connected: None) -> Redis:
    return tenants_redis.boards().redis


@pytest.fixture
def pages(tenant: str) -> Board:
    return Board(tenant, "tenant", Window.WEEK, VIEWS)


@pytest.fixture
def users(tenant: str) -> Board:
    return Board(tenant, "users", Window.WEEK, POINTS)


@pytest.fixture(params=["pages", "users"])
def board(request: pytest.FixtureRequest) -> Board:
    board: Board = request.getfixturevalue(request.param)
    return board


def add(filling: Filling, board: Board, up_to: str, **values: Value) -> None:
    if board.is_users:
        filling.add_users({board: {user: (f"1:{user}", value) for user, value in values.items()}}, up_to=up_to)
    else:
        filling.add_pages({board: values}, {}, up_to=up_to)


def write(redis: Redis, board: Board, **values: Value) -> None:
    """As a projection does. 0: it is on the board no more."""
    if board.is_users:
        writes = BoardWrites(users={board: {user: (f"2:{user}", v) if v else None for user, v in values.items()}})
    else:
        removed = [member for member, value in values.items() if not value]
        writes = BoardWrites(values={board: {m: v for m, v in values.items() if v}}, removed={board: removed})
    redis_store.write(redis, writes, {board: TWO})


def stored(redis: Redis, board: Board) -> dict[str, float]:
    """By page or user."""
    rows: Any = redis.zrange(board.key, 0, -1, withscores=True)
    return {member.decode().rpartition(":")[2]: value for member, value in rows}


def test_a_board_is_replaced_when_it_is_finished(redis: Redis, board: Board) -> None:
    filling = Filling(redis, [board], anew=True)
    add(filling, board, "end", a=1, b=2, c=3)
    assert filling.finish({board: ONE}) == [board]
    assert stored(redis, board) == {"a": 1, "b": 2, "c": 3}
    filling = Filling(redis, [board], anew=True)
    assert stored(redis, board) == {"a": 1, "b": 2, "c": 3}
    assert filling.finish({board: TWO}) == [board]
    assert (stored(redis, board), redis.exists(board.lookup)) == ({}, 0)
    assert redis_store.published_version(redis, board) == 2, "an empty board is valid too"


def test_another_process_continues_after_the_last_row(redis: Redis, board: Board) -> None:
    first = Filling(redis, [board])
    assert first.position == ""
    add(first, board, "b", a=1, b=2)
    second = Filling(redis, [board])
    assert second.position == "b"
    add(second, board, "end", c=3)
    assert Filling(redis, [board]).finish({board: ONE}) == [board]
    assert stored(redis, board) == {"a": 1, "b": 2, "c": 3}
    assert (redis.ttl(board.key), redis.exists(board.unfinished, board.filled_to, board.unfinished_lookup)) == (-1, 0)
    if board.is_users:
        assert (redis.ttl(board.lookup), redis.hlen(board.lookup)) == (-1, 3)
    assert Filling(redis, [board]).position == "", "the next one begins with the first row"


def test_what_is_written_between_two_steps_is_on_the_board(redis: Redis, board: Board) -> None:
    filling = Filling(redis, [board])
    add(filling, board, "b", a=1, b=2)
    write(redis, board, a=7, b=0, c=3, d=4)
    assert stored(redis, board) == {}, "it has no marker yet"
    add(filling, board, "end", c=3, d=5)
    assert filling.finish({board: THREE}) == [board]
    assert stored(redis, board) == {"a": 7, "c": 3, "d": 5}
    assert redis.hlen(board.lookup) == (3 if board.is_users else 0)


def test_a_page_that_leaves_is_not_brought_back(redis: Redis, pages: Board) -> None:
    filling = Filling(redis, [pages])
    add(filling, pages, "b", a=1, b=2)
    assert redis_store.remove(redis, ["a", "c"], {pages: TWO}) == []
    assert filling.finish({pages: THREE}) == [pages]
    assert stored(redis, pages) == {"b": 2}


@pytest.mark.parametrize("lost", ["a member", "its position", "everything"])
def test_one_that_lost_something_leaves_the_old_board_and_is_filled_from_the_start(
    redis: Redis, board: Board, lost: str
) -> None:
    filling = Filling(redis, [board], anew=True)
    add(filling, board, "end", a=1)
    filling.finish({board: ONE})
    filling = Filling(redis, [board])
    add(filling, board, "b", a=1, b=2)
    if lost == "a member":
        redis.zpopmax(board.unfinished)
    else:
        redis.delete(board.filled_to, *([board.unfinished] if lost == "everything" else []))
    write(redis, board, b=9)
    add(filling, board, "end", c=3)
    assert filling.finish({board: THREE}) == []
    assert stored(redis, board) == {"a": 1, "b": 9}
    assert Filling(redis, [board]).position == ""


def test_boards_of_which_one_lost_its_position_are_filled_from_the_start_together(redis: Redis, tenant: str) -> None:
    boards = [Board(tenant, "tenant", window, VIEWS) for window in Window]
    filling = Filling(redis, boards)
    filling.add_pages({board: {"a": 1} for board in boards}, {}, up_to="a")
    redis.delete(boards[1].filled_to)
    again = Filling(redis, boards)
    assert again.position == ""
    again.add_pages({board: {"a": 2} for board in boards}, {})
    assert again.finish(dict.fromkeys(boards, ONE)) == boards
    assert [stored(redis, board) for board in boards] == [{"a": 2}] * len(boards)
