"""Reading boards from PostgreSQL: the same order and positions as in Redis."""

from functools import partial
from uuid import UUID

import pytest
from sqlalchemy import text

from analytics.boards import postgres_reads, versions
from analytics.boards.names import Board
from analytics.boards.rows import Listing, Position, Source
from analytics.metrics import POINTS, VIEWS
from analytics.windows import Window
from tenants.db import owner_tx, tenant_tx, utcnow
from tests.analytics.boards.conftest import save_page_numbers
from tests.analytics.conftest import put_page
from tests.plans import plans_of

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


def test_a_page_of_users_looks_only_at_those_who_wait_for_whether_they_were_erased(tenant: str) -> None:
    named = {"t": tenant, "all": 3_000, "waiting": 300}
    with owner_tx() as tx:
        tx.execute(
            text("""
                INSERT INTO users (tenant_id, id, external_id, role, erased_at, created_at, updated_at)
                SELECT :t, lpad(to_hex(n), 32, '0')::uuid, 'u' || n, 'member',
                       CASE WHEN n IN (2, 3, :all) THEN now() END, now(), now()
                FROM generate_series(1, :all) n
            """),
            named,
        )
        tx.execute(
            text("""
                INSERT INTO user_stats (tenant_id, user_id, metric, computed_at,
                    value_1d, value_7d, value_30d, value_all, member_1d, member_7d, member_30d, member_all)
                SELECT :t, id, 'points', now(), 5, 5, 5, 5, 'm' || id, 'm' || id, 'm' || id, 'm' || id
                FROM users WHERE tenant_id = :t
            """),
            named,
        )
        tx.execute(
            text("""
                INSERT INTO outbox (tenant_id, kind, member)
                SELECT :t, 'user', id FROM users WHERE tenant_id = :t ORDER BY id LIMIT :waiting
            """),
            named,
        )
        for table in ("users", "user_stats", "outbox"):
            tx.execute(text(f"ANALYZE {table}"))
    users = Board(tenant, "users", Window.ALL, POINTS)
    with tenant_tx(tenant) as tx:
        positions = [Position(1, ""), Position(5, f"m{UUID(int=2)}"), Position(9, "")]
        assert postgres_reads.count_leaving(tx, users, above=positions) == [2, 1, 0]
        (plan,) = plans_of(tx, partial(postgres_reads.count_leaving, tx, users, above=positions[:1]))
    assert "Seq Scan on users" not in plan, plan
    assert "pk_user_stats" in plan, plan
