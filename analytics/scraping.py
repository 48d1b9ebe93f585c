"""What Prometheus reads, and who may: the counters of this machine's processes, and gauges of the whole service.

The gauges are what an alert needs, computed when they are read. PostgreSQL and both clients of Redis are asked at once,
each in a thread of its own, and given one second together. A server that hangs counts as down, costs a scrape that
second, and keeps one thread: it is not asked again until that has ended. What cannot be known without an answer (lag,
queue) is then left out, so that no alert takes it for 0.
"""

import contextlib
import hmac
import platform
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from prometheus_client import REGISTRY as THIS_PROCESS
from prometheus_client import CollectorRegistry, generate_latest, multiprocess
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from analytics import outbox
from tenants import metrics, queue, redis
from tenants.platform_calls import CallFailed, ConnectionLost, NodeLost, PlatformCalls

DEADLINE_S = 1.0


class ServiceGauges(Collector):
    """Whether the servers answer, how far the boards are behind, how many jobs wait, and which release this is."""

    def __init__(self) -> None:
        self._questions: dict[str, Callable[[], Any]] = {
            "postgres": _lag,
            "boards": lambda: redis.boards().is_up(),
            "queue": queue.depth,
        }
        self._asked: dict[str, _Asked] = {}
        self._starting = threading.Lock()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        answers = self._ask_all()
        is_up, seconds = answers["postgres"] or (False, None)
        yield GaugeMetricFamily("plaudit_postgres_up", "Whether PostgreSQL answers.", value=is_up)
        lag = GaugeMetricFamily("plaudit_board_lag_seconds", "Age of the oldest change that no board shows yet.")
        if seconds is not None:
            lag.add_metric([], seconds)
        yield lag
        up = GaugeMetricFamily("plaudit_redis_up", "Whether Redis answers.", labels=["server"])
        up.add_metric(["boards"], bool(answers["boards"]))
        up.add_metric(["queue"], answers["queue"] is not None)
        yield up
        depth = GaugeMetricFamily("plaudit_queue_depth", "Jobs that wait for a worker.")
        if answers["queue"] is not None:
            depth.add_metric([], answers["queue"])
        yield depth
        build = GaugeMetricFamily("plaudit_build_info", "Which release answers.", labels=["version", "python"])
        build.add_metric([version("plaudit"), platform.python_version()], 1)
        yield build

    def _ask_all(self) -> dict[str, Any]:
        until = time.monotonic() + DEADLINE_S
        asked = {name: self._ask(name) for name in self._questions}
        for one in asked.values():
            one.join(max(0.0, until - time.monotonic()))
        return {name: one.answer for name, one in asked.items()}

    def _ask(self, name: str) -> "_Asked":
        with self._starting:
            asked = self._asked.get(name)
            if asked is None or not asked.is_alive():
                asked = self._asked[name] = _Asked(self._questions[name])
                asked.start()
            return asked


class _Asked(threading.Thread):
    """A question on its way; `answer` is None until it has been answered, and if that failed."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        super().__init__(name="scrape", daemon=True)
        self._ask = ask
        self.answer: Any = None

    def run(self) -> None:
        with contextlib.suppress(Exception):  # no answer is what a scrape reports
            self.answer = self._ask()


def _lag() -> tuple[bool, float | None]:
    """Whether PostgreSQL answers, and how far the boards are behind, unless that takes too long.

    On a connection of its own: one from the pool may be old, and a busy pool does not mean that the server is down.
    """
    calls = PlatformCalls(max_connections=1)
    try:
        return True, _read_lag(calls)
    except ConnectionLost:
        return False, None
    except CallFailed:
        return True, None
    finally:
        calls.close()


def _read_lag(calls: PlatformCalls) -> float:
    """In seconds. On a Citus, a lost node hides its own tenants only."""
    try:
        rows = calls.run(outbox.LAG)
    except NodeLost:
        rows = calls.run(outbox.LAG_OF_REACHABLE, [outbox.LAG_OF_SHARDS])
    return float(rows[0][0])


_whole_service = CollectorRegistry()
_whole_service.register(ServiceGauges())


def metrics_text(metrics_dir: Path | None) -> bytes:
    """Everything, in Prometheus's text format. With a folder: of all processes that keep their metrics there."""
    registry = THIS_PROCESS
    if metrics_dir is not None:
        registry = CollectorRegistry()
        registry.register(_Shared(metrics_dir))
    return generate_latest(registry) + generate_latest(_whole_service)


class _Shared(Collector):
    """Collects the metrics that the processes of this machine have written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterable[Metric]:
        files = [str(file) for file in metrics.files_in(self._folder) if metrics.is_readable(file)]
        merged: Iterable[Metric] = multiprocess.MultiProcessCollector.merge(files)  # type: ignore[no-untyped-call]
        return merged


def may_scrape(*, token: str | None, authorization: str, address: str | None, is_behind_proxy: bool) -> bool:
    """With the token; or from this machine, unless a proxy is in front of it, through which everybody comes from it."""
    given = authorization.removeprefix("Bearer ")
    if token is not None and hmac.compare_digest(given.encode(), token.encode()):
        return True
    return not is_behind_proxy and address is not None and ip_address(address).is_loopback
