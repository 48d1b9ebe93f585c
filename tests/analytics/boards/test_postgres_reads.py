"""Reading boards from PostgreSQL: the same order and positions as in Redis."""

import pytest

from analytics.boards import postgres_reads, versions
from analytics.boards.names import Board
from analytics.boards.rows import Listing, Position, Source
from analytics.metrics import VIEWS
from analytics.windows import Window
from tenants.db import tenant_tx, utcnow
from tests.analytics.boards.conftest import save_page_numbers
from tests.analytics.conftest import put_page

NOW = utcnow()


@pytest.fixture
def board(tenant: str) -> Board:
    return Board(tenant, "tenant", Window.WEEK, VIEWS)


@pytest.fixture
def ids(tenant: str) -> list[str]:
    """The ids of five pages in the order of the board: three of them have equal values."""
    views = {put_page(tenant, name): number for name, number in zip("abcdef", (5, 5, 9, 5, 1, 0), strict=True)}
    for page_id, number in views.items():
        save_page_numbers(tenant, page_id, views_7d=number, views_all=9)
    ordered = sorted(views.items(), key=lambda row: (row[1], str(row[0])), reverse=True)
    return [str(page_id) for page_id, _ in ordered[:-1]]


def rows(listing: Listing) -> list[tuple[int, str]]:
    assert (listing.total, listing.source) == (5, Source.POSTGRES)
    return [(row.rank, row.subject) for row in listing.rows]


def test_rows_are_by_value_then_by_member_as_text_and_continue_at_a_position(board: Board, ids: list[str]) -> None:
    ranked = list(enumerate(ids, 1))
    with tenant_tx(board.tenant_id) as tx:
        assert rows(postgres_reads.read_top(tx, board, limit=9, after=None, now=NOW)) == ranked
        after, walked = None, []
        while True:
            listing = postgres_reads.read_top(tx, board, limit=2, after=after, now=NOW)
            walked += rows(listing)
            after = listing.next
            if after is None:
                break
        assert walked == ranked
        left_the_board = Position(5, "~")
        assert rows(postgres_reads.read_top(tx, board, limit=9, after=left_the_board, now=NOW)) == ranked[1:]


def test_single_rows_and_neighbours_have_their_rank(board: Board, ids: list[str]) -> None:
    ranked = list(enumerate(ids, 1))
    with tenant_tx(board.tenant_id) as tx:
        single = postgres_reads.read_subjects(tx, board, [ids[4], "999999999", ids[1]], now=NOW)
        assert rows(single) == [ranked[1], ranked[4]]
        assert rows(postgres_reads.read_around(tx, board, ids[0], 1, now=NOW)) == ranked[:2]
        assert rows(postgres_reads.read_around(tx, board, ids[3], 1, now=NOW)) == ranked[2:]
        assert rows(postgres_reads.read_around(tx, board, "999999999", 1, now=NOW)) == []


def test_a_listing_has_the_version_of_its_numbers(board: Board, ids: list[str]) -> None:
    with tenant_tx(board.tenant_id) as tx:
        raised = versions.advance(tx, [board], now=NOW)
        listing = postgres_reads.read_top(tx, board, limit=1, after=None, now=utcnow())
        assert (listing.version, listing.as_of) == (raised[board], NOW)
