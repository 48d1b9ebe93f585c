"""Windows, by their properties."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from analytics.windows import HOUR, LONGEST, SLIDING, Window, crossed, hour_of
from tenants.settings import RANGES

moments = st.integers(1_577_836_800, 2_051_222_400).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))
days = st.integers(0, 40 * 24 * 60).map(lambda minutes: timedelta(minutes=minutes))


@given(moments, days)
def test_a_window_is_this_hour_and_all_but_one_of_its_hours_before(now: datetime, ago: timedelta) -> None:
    then = now - ago
    hours_ago = (hour_of(now) - hour_of(then)) // HOUR
    for window in SLIDING:
        assert window.length is not None
        assert window.contains(then, at=now) is (hours_ago < window.length // HOUR)
    assert Window.ALL.contains(then, at=now)


@given(moments)
def test_a_later_hour_is_not_in_a_window_yet(now: datetime) -> None:
    for window in SLIDING:
        assert not window.contains(hour_of(now) + HOUR, at=now)
        assert window.contains(hour_of(now) + HOUR - timedelta(microseconds=1), at=now)


@given(moments, st.integers(0, 24 * 45), st.integers(-30, 24 * 45))
def test_whatever_enters_or_leaves_a_window_as_time_passes_is_in_a_crossed_span(
    now: datetime, hours_later: int, hours_ago: int
) -> None:
    """Nothing that enters or leaves a window is missed, however long nothing ran."""
    before, after = hour_of(now), hour_of(now) + hours_later * HOUR
    event = now - hours_ago * HOUR
    changed = any(window.contains(event, at=before) != window.contains(event, at=after) for window in SLIDING)
    if changed:
        assert any(span.start <= event < span.end for span in crossed(before, after))


@given(moments, st.integers(1, 24))
def test_what_is_crossed_follows_how_far_time_went_and_not_what_there_is(now: datetime, hours: int) -> None:
    spans = crossed(hour_of(now), hour_of(now) + hours * HOUR)
    assert len(spans) == 1 + len(SLIDING)
    assert all(span.end - span.start <= hours * HOUR for span in spans)


def test_the_points_of_a_trend_fill_their_window() -> None:
    for window in SLIDING:
        assert window.length is not None
        assert window.length % window.trend_step == timedelta(), window
        assert window.trend_step % HOUR == timedelta(), window


def test_hourly_counts_are_kept_for_longer_than_the_longest_window() -> None:
    minimum, _maximum = RANGES["retention.hourly_buckets_days"]
    assert minimum == LONGEST.days + 1
