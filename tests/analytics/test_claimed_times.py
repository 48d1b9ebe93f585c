"""Which times a sender may claim."""

from datetime import UTC, datetime, timedelta

import pytest

from analytics.claimed_times import MAX_AGE, MAX_AHEAD, is_plausible

NOW = datetime(2026, 3, 10, 12, tzinfo=UTC)
MOMENT = timedelta(milliseconds=1)


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        (NOW, True),
        (NOW - MAX_AGE, True),
        (NOW - MAX_AGE - MOMENT, False),
        (NOW + MAX_AHEAD, True),
        (NOW + MAX_AHEAD + MOMENT, False),
    ],
)
def test_a_time_is_plausible_for_a_week_and_five_minutes_ahead(at: datetime, expected: bool) -> None:
    assert is_plausible(at, now=NOW) is expected
    assert (timedelta(days=7), timedelta(minutes=5)) == (MAX_AGE, MAX_AHEAD)
