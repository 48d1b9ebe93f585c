"""Lists in slices: each row once, whatever the limit."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.http import cursors
from app.http.paging import Slice, slice_of

START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Row:
    id: int
    at: datetime


ROWS = [Row(number, START + timedelta(hours=number)) for number in range(7)]


def read(asked: Slice) -> list[Row]:
    """As a query does it: what comes after a position, and no more rows than were asked for."""
    wanted = [row for row in ROWS if asked.after is None or (row.at, row.id) > asked.after]
    return wanted[: asked.fetch]


@pytest.mark.parametrize("limit", [1, 3, 6, 7, 8])
def test_the_slices_of_a_list_have_every_row_once(limit: int) -> None:
    seen: list[Row] = []
    query: dict[str, Any] = {"limit": limit}
    while True:
        asked = slice_of(query, at=datetime, id=int)
        answer = asked.answer(read(asked))
        seen += answer["items"]
        assert len(answer["items"]) <= limit
        if answer["next_cursor"] is None:
            break
        query["cursor"] = answer["next_cursor"]
    assert seen == ROWS


def test_a_list_with_one_key_gets_the_value_itself() -> None:
    answer = slice_of({"limit": 2}, id=int).answer(ROWS[:3])
    assert slice_of({"limit": 2, "cursor": answer["next_cursor"]}, id=int).after == 1


def test_only_the_rows_of_the_slice_are_shown() -> None:
    answer = slice_of({"limit": 2}, id=int).answer(ROWS[:3], show=lambda rows: [row.id for row in rows])
    assert answer["items"] == [0, 1]


def test_a_cursor_of_another_list_is_refused() -> None:
    cursor = slice_of({"limit": 2}, id=int).answer(ROWS[:3])["next_cursor"]
    with pytest.raises(cursors.BadCursor):
        slice_of({"limit": 2, "cursor": cursor}, at=datetime, id=int)
