"""Reading boards from Redis: one order, positions in it, and nothing without a marker."""

import pytest

from analytics.boards import redis_reads
from analytics.boards.filling import Filling
from analytics.boards.names import Board, Version
from analytics.boards.rows import Listing, Position, Source
from analytics.metrics import POINTS, SCORE, VIEWS
from analytics.windows import Window
from tenants import redis as tenants_redis
from tenants.db import utcnow

VERSION = Version(3, utcnow())


@pytest.fixture
def pages(tenant: str) -> Board:
    """Four pages: 9 is first, 2 and 10 are equal and ordered as text, 1 is last."""
    board = Board(tenant, "tenant", Window.WEEK, SCORE)
    filling = Filling(tenants_redis.boards().redis, [board], anew=True)
    filling.add_pages({board: {"1": 0.5, "10": 1.5, "2": 1.5, "9": 7.25}}, {})
    filling.finish({board: VERSION})
    return board


@pytest.fixture
def users(tenant: str) -> Board:
    board = Board(tenant, "users", Window.WEEK, POINTS)
    filling = Filling(tenants_redis.boards().redis, [board], anew=True)
    filling.add_users({board: {"ada": ("2:ada", 5), "bob": ("1:bob", 5), "eve": ("3:eve", 4)}})
    filling.finish({board: VERSION})
    return board


def rows(listing: Listing | None) -> list[tuple[int, str]]:
    assert listing is not None
    assert (listing.version, listing.source, listing.as_of) == (VERSION, Source.REDIS, VERSION.changed_at)
    return [(row.rank, row.subject) for row in listing.rows]


def test_the_first_rows_are_by_value_then_by_member_as_text_descending(pages: Board, users: Board) -> None:
    top = redis_reads.read_top(pages, limit=3, after=None)
    assert rows(top) == [(1, "9"), (2, "2"), (3, "10")]
    assert top is not None
    assert (top.total, [row.value for row in top.rows]) == (4, [7.25, 1.5, 1.5])
    assert rows(redis_reads.read_top(users, limit=9, after=None)) == [(1, "ada"), (2, "bob"), (3, "eve")]


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (Position(1.5, "2"), [(3, "10"), (4, "1")]),
        (Position(1.5, "5"), [(2, "2"), (3, "10"), (4, "1")]),  # a member that left the board
        (Position(1.5, "1"), [(4, "1")]),  # "10" is above its beginning "1"
        (Position(1.5, "0"), [(4, "1")]),
        (Position(100.0, "x"), [(1, "9"), (2, "2"), (3, "10"), (4, "1")]),
        (Position(0.5, "1"), []),
    ],
)
def test_rows_after_a_position_skip_nobody(pages: Board, after: Position, expected: list[tuple[int, str]]) -> None:
    assert rows(redis_reads.read_top(pages, limit=9, after=after)) == expected
    assert rows(redis_reads.read_top(pages, limit=1, after=after)) == expected[:1]


def test_single_rows_and_neighbours_have_their_rank(pages: Board, users: Board) -> None:
    assert rows(redis_reads.read_subjects(pages, ["1", "9", "nobody"])) == [(1, "9"), (4, "1")]
    assert rows(redis_reads.read_subjects(users, ["eve", "ada"])) == [(1, "ada"), (3, "eve")]
    assert rows(redis_reads.read_around(pages, "9", 1)) == [(1, "9"), (2, "2")]
    assert rows(redis_reads.read_around(users, "bob", 1)) == [(1, "ada"), (2, "bob"), (3, "eve")]
    assert rows(redis_reads.read_around(users, "nobody", 1)) == []


def test_many_boards_are_read_at_once_without_those_that_are_missing(pages: Board, users: Board) -> None:
    missing = Board(pages.tenant_id, "tenant", Window.WEEK, VIEWS)
    first, second, third = redis_reads.read_tops([pages, missing, users], limit=2)
    assert (rows(first), second, rows(third)) == ([(1, "9"), (2, "2")], None, [(1, "ada"), (2, "bob")])


@pytest.mark.parametrize("why", ["no marker", "no redis"])
def test_there_is_no_answer_without_the_marker_or_without_redis(
    pages: Board, why: str, request: pytest.FixtureRequest
) -> None:
    if why == "no redis":
        request.getfixturevalue("no_redis")
    else:
        tenants_redis.boards().redis.delete(pages.marker)
    assert redis_reads.read_top(pages, limit=1, after=None) is None
    assert redis_reads.read_top(pages, limit=1, after=Position(1, "2")) is None
    assert redis_reads.read_tops([pages], limit=1) == [None]
    assert redis_reads.read_subjects(pages, ["9"]) is None
    assert redis_reads.read_around(pages, "9", 1) is None
