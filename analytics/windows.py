"""The table of windows: the sliding periods that every metric is kept for. Pure.

A window of N days at a moment is the hour of that moment and the N * 24 - 1 hours before it. Board names, columns, API
enums and labels follow from this table: to add a window, add an entry here and a migration (see CONTRIBUTING.md).
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Self

HOUR = timedelta(hours=1)


class Window(StrEnum):
    """Name, label, and the length of one point of a trend over the window."""

    label: str
    trend_step: timedelta

    def __new__(cls, name: str, label: str, trend_step: timedelta) -> Self:
        window = str.__new__(cls, name)
        window._value_ = name
        window.label = label
        window.trend_step = trend_step
        return window

    DAY = "1d", "24 hours", timedelta(hours=1)
    WEEK = "7d", "7 days", timedelta(hours=6)
    MONTH = "30d", "30 days", timedelta(days=1)
    ALL = "all", "All time", timedelta(days=3)

    @property
    def length(self) -> timedelta | None:
        """None: all time."""
        return None if self is Window.ALL else timedelta(days=int(self.value.removesuffix("d")))

    def start(self, hour: datetime) -> datetime | None:
        """The first hour in the window that ends with this one; None: all time."""
        return None if self.length is None else hour - self.length + HOUR

    def contains(self, moment: datetime, *, at: datetime) -> bool:
        """Whether `moment` is in the window at `at`."""
        start, end = self.start(hour_of(at)), hour_of(at) + HOUR
        return start is None or start <= moment < end


WINDOWS = {window.value: window for window in Window}
SLIDING = tuple(window for window in Window if window.length is not None)
LONGEST = max(window.length for window in Window if window.length is not None)
SHORTEST = min(window.length for window in Window if window.length is not None)


@dataclass(frozen=True)
class Span:
    """From `start` up to `end`, which is excluded."""

    start: datetime
    end: datetime


def bounds(now: datetime) -> dict[str, datetime | None]:
    """SQL parameters: the start of each sliding window (`start_7d`), the oldest and newest of them, and their end."""
    hour = hour_of(now)
    starts = {f"start_{window}": window.start(hour) for window in SLIDING}
    return {**starts, "oldest": hour - LONGEST + HOUR, "newest": hour - SHORTEST + HOUR, "end": hour + HOUR}


def crossed(before: datetime, after: datetime) -> list[Span]:
    """The hours that left some window, or entered them all, as the newest hour went from `before` to `after`."""
    spans = [Span(before + HOUR, after + HOUR)]
    for window in SLIDING:
        old, new = window.start(before), window.start(after)
        if old is not None and new is not None:
            spans.append(Span(old, min(new, before + HOUR)))
    return spans


def hour_of(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)
