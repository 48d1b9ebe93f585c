"""Ranks at a commit: those of a board, corrected by the users whose rows on it are out of date."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text

from analytics.boards import postgres_reads, ranks, redis_reads
from analytics.boards.filling import Filling
from analytics.boards.names import Board, Version
from analytics.boards.ranks import Entry, RankQuestion
from analytics.metrics import POINTS
from analytics.windows import Window
from tenants import redis as tenants_redis
from tenants import users
from tenants.db import tenant_tx, utcnow

PEOPLE = [UUID(int=number << 100) for number in range(8)]
# Few values and times, so that many are equal.
ENTRY = st.none() | st.tuples(st.integers(1, 4), st.integers(0, 3))
BOARD = st.lists(ENTRY, min_size=len(PEOPLE), max_size=len(PEOPLE))


def at(second: float) -> datetime:
    return datetime.fromtimestamp(1_000 + second, UTC)


def entries(drawn: list[tuple[int, int] | None]) -> dict[str, Entry]:
    return {
        str(person): ranks.entry_of(person, one[0], at(one[1]))
        for person, one in zip(PEOPLE, drawn, strict=True)
        if one is not None
    }


@given(before=BOARD, now=BOARD)
def test_a_rank_is_that_of_the_order_of_now_whatever_the_board_has(
    before: list[tuple[int, int] | None], now: list[tuple[int, int] | None]
) -> None:
    on_board, truth = entries(before), entries(now)
    stale = [str(person) for person in PEOPLE if on_board.get(str(person)) != truth.get(str(person))]
    wanted = [truth[name] for name in stale if name in truth]  # who is paid is stale
    question = RankQuestion(Board("t1", "users", Window.ALL, POINTS), wanted, {name: truth.get(name) for name in stale})
    at_or_above = [sum(other >= entry for other in on_board.values()) for entry in wanted]
    outdated = [on_board[name] for name in stale if name in on_board]
    right = [1 + sum(other > entry for other in truth.values()) for entry in wanted]
    assert question.ranks(at_or_above, outdated) == right


@pytest.fixture
def full(tenant: str) -> Board:
    """A board of 3,000 users, of whom 2,000 have 5 points and were there one second after the other."""
    board = Board(tenant, "users", Window.ALL, POINTS)
    people = {
        str(user_id): ranks.entry_of(user_id, 5 if number < 2_000 else number, at(number))
        for number, user_id in enumerate(UUID(int=number << 64 | 1) for number in range(1, 3_001))
    }
    filling = Filling(tenants_redis.boards().redis, [board], anew=True)
    filling.add_users({board: {name: (entry.member, entry.value) for name, entry in people.items()}})
    filling.finish({board: Version(1, utcnow())})
    return board


def test_a_rank_among_thousands_of_equals_takes_a_few_commands(full: Board) -> None:
    def commands() -> int:
        return sum(
            int(stats.get(f"cmdstat_{name}", {}).get("calls", 0))
            for stats in tenants_redis.on_every_server(tenants_redis.boards().redis, "INFO", "commandstats")
            for name in ("zcount", "zrevrange", "zscore")
        )

    newcomer = UUID(int=9)
    # After all others, in the middle, before them: 1,000 have more points.
    for second, rank, most in ((9_000.0, 3_001, 3), (100.5, 1_102, 15), (-1.0, 1_001, 15)):
        asked = ranks.entry_of(newcomer, 5, at(second))
        before = commands()
        answer = redis_reads.ranks_together([RankQuestion(full, [asked], {str(newcomer): asked})])
        assert (answer, commands() - before <= most) == ([[rank]], True)


def test_more_pending_users_than_are_corrected_are_not_read(tenant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "MAX_PENDING", 3)
    with tenant_tx(tenant) as tx:
        people = [users.ensure_external(tx, f"u{number}", now=utcnow()) for number in range(5)]

        def read_after(person: UUID, rows: int) -> list[Any]:
            """With so many more rows of this one in the outbox."""
            marked = "INSERT INTO outbox (tenant_id, kind, member) VALUES (:t, 'user', :u), (:t, 'page', '1')"
            tx.execute(text(marked), [{"t": tenant, "u": str(person)}] * rows)
            return tx.call(*ranks.pending_call(tenant, [people[4]]))

        for number, (person, rows) in enumerate(zip(people, (1, 3, 1, 1), strict=False)):
            pending = people[: number + 1] if number < 3 else []
            read = read_after(person, rows)
            assert {row.user_id for row in read} == {*pending, people[4]}, "users count, not their rows"
        tx.execute(text("DELETE FROM outbox WHERE tenant_id = :t"), {"t": tenant})
        assert {row.user_id for row in read_after(people[0], 6)} == {people[0], people[4]}
        assert {row.user_id for row in read_after(people[0], 1)} == {people[4]}, "rows are read up to a bound too"
        assert ranks.current_entries(read) == {str(people[4]): None}, "without points nobody is on the board"


def test_without_redis_rows_are_counted_up_to_a_bound(tenant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    board = Board(tenant, "users", Window.ALL, POINTS)
    with tenant_tx(tenant) as tx:
        people = [users.ensure_external(tx, f"u{number}", now=utcnow()) for number in range(4)]
        saved = [ranks.entry_of(person, 10, utcnow()) for person in people]
        for person, entry in zip(people, saved, strict=True):
            tx.execute(
                text("""
                    INSERT INTO user_stats (tenant_id, user_id, metric, computed_at,
                        value_1d, value_7d, value_30d, value_all, member_1d, member_7d, member_30d, member_all)
                    VALUES (:t, :u, 'points', now(), :v, :v, :v, :v, :m, :m, :m, :m)
                """),
                {"t": tenant, "u": person, "v": entry.value, "m": entry.member},
            )
        asked = [ranks.entry_of(uuid4(), value, utcnow()) for value in (11, 10, 9)]
        assert postgres_reads.ranks_for(tx, RankQuestion(board, asked)) == [1, 5, 5]
        gone = {str(people[0]): None, str(people[1]): saved[1]._replace(value=20)}
        assert postgres_reads.ranks_for(tx, RankQuestion(board, asked, gone)) == [2, 4, 4]
        monkeypatch.setattr(postgres_reads, "MAX_COUNTED_ROWS", 3)
        assert postgres_reads.ranks_for(tx, RankQuestion(board, asked)) == [1, None, None]
