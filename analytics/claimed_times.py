"""Which times an event or action may claim to have happened at. Pure."""

from datetime import datetime, timedelta

MAX_AGE = timedelta(days=7)
# How far a sender's clock may be ahead.
MAX_AHEAD = timedelta(minutes=5)


def is_plausible(at: datetime, *, now: datetime) -> bool:
    return now - MAX_AGE <= at <= now + MAX_AHEAD
