"""A job's turn: how long it may work before it makes way for other jobs and tenants, or for a stop.

A worker runs one job after the other, and one tenant's work may take minutes. So a job that works in steps asks after
each step whether its turn is over, leaves the rest, and enqueues itself again behind the jobs that wait: tenants take
turns, those that wait longest first. A stop is obeyed in the same way, after the step.
"""

import contextlib
import time

from tenants import queue
from tenants.redis import RedisUnavailable

# Longer only costs whoever begins to wait at once, and a stop.
MAX_TURN_S = 1.0
# Of a job that visits each tenant, and finds nothing to do at most of them.
MIN_TURN_S = 0.1

_stop_requested = False


def request_stop() -> None:
    """This process was told to stop: every turn is over. Called by signal handlers."""
    global _stop_requested  # noqa: PLW0603  a process stops once
    _stop_requested = True


def is_stop_requested() -> bool:
    return _stop_requested


class Turn:
    """The turn of a job, from now on. `at_least_s`: it does not make way sooner, but for a stop."""

    def __init__(self, at_most_s: float = MAX_TURN_S, *, at_least_s: float = 0.0) -> None:
        self._makes_way_at = time.monotonic() + at_least_s
        self._ends_at = time.monotonic() + at_most_s
        # Whether the job was told that it is over, and so has left something.
        self.was_ended = False

    def is_over(self) -> bool:
        """Whether the job must end now: asked after each step that leaves something."""
        now = time.monotonic()
        makes_way = now >= self._makes_way_at and (now >= self._ends_at or _others_wait())
        self.was_ended = is_stop_requested() or makes_way
        return self.was_ended


def _others_wait() -> bool:
    with contextlib.suppress(RedisUnavailable):
        return queue.has_waiting()
    return False
