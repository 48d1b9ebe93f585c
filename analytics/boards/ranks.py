"""The ranks of new values on a board of users, as its order is when a transaction commits.

A board (in Redis, or the saved numbers) is behind: users in the outbox have other rows by now, and so have those whom
the transaction itself pays. So a rank is one more than there are rows above on the board, without the rows of these
users, plus how many of these users are above by what they have now. Both are few, so a rank costs the same wherever it
is. Pure, but for the statement that reads who they are.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from analytics.boards.names import Board
from analytics.boards.user_numbers import member_of

# Users in the outbox, however often each (twice on average). With more, ranks are those of the board as it is.
MAX_PENDING = 32


class Entry(NamedTuple):
    """A row of a board of users, in its order: by value, then by member."""

    value: int
    member: str


def entry_of(user_id: UUID, value: int, reached_at: datetime | None) -> Entry:
    return Entry(value, member_of(user_id, reached_at))


@dataclass(frozen=True)
class RankQuestion:
    """Which ranks entries have on a board of users, beside those that its rows are not up to date with."""

    board: Board
    asked: Sequence[Entry] = ()
    # User id → the entry that this user has by now; None: not on the board.
    current: Mapping[str, Entry | None] = field(default_factory=dict)

    def ranks(self, above: Sequence[int | None], outdated: Iterable[Entry]) -> list[int | None]:
        """For each asked entry its rank. None: unknown.

        `above`: how many rows the board has at or above each asked entry (None: too many to count); `outdated`: the
        rows that it has of the users in `current`.
        """
        before = sorted(outdated)
        now = sorted(entry for entry in self.current.values() if entry is not None)
        return [
            None
            if rows is None
            else 1 + rows - (len(before) - bisect_left(before, entry)) + (len(now) - bisect_right(now, entry))
            for entry, rows in zip(self.asked, above, strict=True)
        ]


def pending_call(tenant_id: str, users: Iterable[UUID]) -> tuple[str, Sequence[Any]]:
    """The statement that reads these users and those in the outbox, as they are now: before the board is read."""
    return _PENDING, (tenant_id, list(users), MAX_PENDING)


def current_entries(rows: Iterable[Any]) -> dict[str, Entry | None]:
    """User id → entry, of the statement's rows."""
    return {
        str(row.user_id): entry_of(row.user_id, row.score, row.reached_at) if row.is_shown and row.score > 0 else None
        for row in rows
    }


_PENDING = "SELECT * FROM read_pending_users(%s, %s::uuid[], %s::int)"
