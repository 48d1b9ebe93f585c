"""The rows of a board, and a part of a board as it was read.

The order is the same wherever a board is read: by value, then by member as text, both descending, which is a sorted
set's own order. A cursor is a position in that order, so continuing from it skips nobody who did not move.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from analytics.boards.names import Board, Version
from analytics.boards.user_numbers import user_of
from analytics.metrics import Value


class Source(StrEnum):
    REDIS = "redis"
    SNAPSHOT = "snapshot"
    POSTGRES = "postgres"


@dataclass(frozen=True, slots=True)
class Position:
    """A position in the order of a board."""

    value: Value
    member: str


class Row(NamedTuple):
    """One of many: a tuple is made in a third of the time of a dataclass."""

    rank: int
    member: str
    value: Value
    # The id of the page or user whose row it is.
    subject: str


@dataclass(frozen=True)
class Listing:
    """Some rows of a board, best first, and where they were read."""

    rows: Sequence[Row]
    total: int
    version: Version
    source: Source
    as_of: datetime
    # Whether PostgreSQL had no newer version when it was read: a live snapshot may be of up to a minute ago.
    is_newest: bool = True

    @property
    def next(self) -> Position | None:
        """Where it continues; None at the end."""
        if not self.rows or self.rows[-1].rank >= self.total:
            return None
        return Position(self.rows[-1].value, self.rows[-1].member)


def row_of(board: Board, rank: int, member: str, value: Any) -> Row:
    """A row from a value as Redis, a snapshot or PostgreSQL has it."""
    return Row(rank, member, board.metric.load(value), user_of(member) if board.is_users else member)
