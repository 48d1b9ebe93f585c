"""How many requests were answered, and how fast: gathered in memory, and added to the metrics a few times a second.

The metrics of several processes are in files behind one lock. Writing to them for every request took as long as the
quickest answers, and threads queued for the lock.
"""

import atexit
import os
import threading
import time
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Sequence
from itertools import pairwise

import structlog

from tenants.metrics import Counter as Metric
from tenants.metrics import Histogram

log = structlog.get_logger()

WRITE_EVERY_S = 0.25
# A thread that answers requests writes them itself when so many wait.
MAX_WAITING = 50_000


class Timings(Histogram):
    """A histogram to which many observations are added at once."""

    def add(self, seconds: Sequence[float]) -> None:
        ordered = sorted(seconds)
        up_to = [0, *(bisect_right(ordered, bound) for bound in self._upper_bounds)]
        for bucket, (before, now) in zip(self._buckets, pairwise(up_to), strict=True):
            if now > before:
                bucket.inc(now - before)
        self._sum.inc(sum(ordered))


REQUESTS = Metric("plaudit_http_requests_total", "Requests answered.", ["method", "route", "status"])
SECONDS = Timings(
    "plaudit_http_request_seconds",
    "Time to answer.",
    ["route"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
)


class _Waiting:
    """The requests that are not in the metrics yet."""

    def __init__(self) -> None:
        self._requests: deque[tuple[str, str, int, float]] = deque()
        self._events: deque[Metric] = deque()
        self._writing = threading.Lock()
        self._pid = 0

    def add(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests.append((method, route, status, seconds))
        if self._pid != os.getpid():  # nothing is started before a fork
            self._pid = os.getpid()
            atexit.register(self._try_to_write)
            threading.Thread(target=self._run, name="request-counts", daemon=True).start()
        if len(self._requests) > MAX_WAITING:
            self._try_to_write()

    def count(self, counter: Metric) -> None:
        self._events.append(counter)

    def write(self) -> None:
        with self._writing:
            for counter, count in Counter(self._events.popleft() for _ in range(len(self._events))).items():
                counter.inc(count)
            counts: Counter[tuple[str, str, int]] = Counter()
            seconds_of: dict[str, list[float]] = {}
            for _ in range(len(self._requests)):
                method, route, status, seconds = self._requests.popleft()
                counts[method, route, status] += 1
                seconds_of.setdefault(route, []).append(seconds)
            for (method, route, status), requests in counts.items():
                REQUESTS.labels(method, route, str(status)).inc(requests)
            for route, seconds_ in seconds_of.items():
                SECONDS.labels(route).add(seconds_)

    def _run(self) -> None:
        while True:
            time.sleep(WRITE_EVERY_S)
            if self._requests:
                self._try_to_write()

    def _try_to_write(self) -> None:
        """No request fails because it cannot be counted, such as without space in the metrics' folder."""
        try:
            self.write()
        except Exception:
            log.exception("requests cannot be counted", action="metrics.unwritten")


_waiting = _Waiting()


def add(method: str, route: str, status: int, seconds: float) -> None:
    """Count an answered request."""
    _waiting.add(method, route, status, seconds)


def count(counter: Metric) -> None:
    """Add one to a counter, in the course of a request that is then counted too."""
    _waiting.count(counter)


def write() -> None:
    """Add what was counted in this process to its metrics: before they are read."""
    _waiting.write()
