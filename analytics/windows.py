"""Sliding windows by the hour. Pure.

A window of N days at a moment is the hour of that moment and the N * 24 - 1 hours before it.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

HOUR = timedelta(hours=1)


class Window(StrEnum):
    DAY = "1d"
    WEEK = "7d"
    MONTH = "30d"
    ALL = "all"

    @property
    def length(self) -> timedelta | None:
        """None: for ever."""
        return None if self is Window.ALL else timedelta(days=int(self.value.removesuffix("d")))

    def start(self, hour: datetime) -> datetime | None:
        """The first hour that counts when the window ends with this one."""
        return None if self.length is None else hour - self.length + HOUR

    def contains(self, moment: datetime, *, at: datetime) -> bool:
        """Whether what happened at `moment` counts at `at`."""
        start, end = self.start(hour_of(at)), hour_of(at) + HOUR
        return start is None or start <= moment < end


SLIDING = tuple(window for window in Window if window.length is not None)
LONGEST = timedelta(days=30)


@dataclass(frozen=True)
class Span:
    """From one moment up to another, which it does not hold."""

    start: datetime
    end: datetime


def crossed(before: datetime, after: datetime) -> list[Span]:
    """The hours that left some window, or came into them all, as the newest hour went from `before` to `after`."""
    spans = [Span(before + HOUR, after + HOUR)]
    for window in SLIDING:
        old, new = window.start(before), window.start(after)
        if old is not None and new is not None:
            spans.append(Span(old, min(new, before + HOUR)))
    return spans


def hour_of(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)
