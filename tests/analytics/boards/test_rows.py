"""Rows of a board: typed values, and where a listing continues."""

from datetime import UTC, datetime

from analytics.boards.names import Board, Version
from analytics.boards.rows import Listing, Position, Row, Source, row_of
from analytics.metrics import POINTS, SCORE, VIEWS
from analytics.windows import Window

NOW = datetime(2026, 3, 10, tzinfo=UTC)


def test_a_row_has_a_value_of_its_metrics_type_and_the_id_of_its_page_or_user() -> None:
    for metric, stored, value in ((VIEWS, b"3", 3), (VIEWS, 3.0, 3), (SCORE, b"2.5", 2.5), (SCORE, 2, 2.0)):
        row = row_of(Board("demo", "tenant", Window.WEEK, metric), 1, "17", stored)
        assert row == Row(1, "17", value, subject="17")
        assert type(row.value) is type(value)
    of_user = row_of(Board("demo", "users", Window.WEEK, POINTS), 2, "0123:ada", "10")
    assert (of_user.subject, of_user.value) == ("ada", 10)


def test_a_listing_continues_after_its_last_row_unless_that_is_the_boards_last() -> None:
    rows = [Row(3, "b", 5, "b"), Row(4, "a", 5, "a")]

    def following(rows: list[Row], total: int) -> Position | None:
        return Listing(rows, total, Version(1, NOW), Source.REDIS, NOW).next

    assert following(rows, 5) == Position(5, "a")
    assert following(rows, 4) is None
    assert following([], 4) is None
