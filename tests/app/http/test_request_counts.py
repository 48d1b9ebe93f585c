"""Requests that were counted in memory are in the metrics as if each had been written there at once."""

import threading
import uuid

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, Histogram

from app.http import request_counts
from app.http.request_counts import Timings
from tests.service import eventually

SECONDS = [0.0, 0.0005, 0.001, 0.0011, 0.05, 0.3, 4.9, 5.0, 5.1, 60.0]
BOUNDS = (0.001, 0.05, 5)


def samples(registry: CollectorRegistry) -> dict[tuple[str, str], float]:
    return {
        (sample.name, sample.labels.get("le", "")): sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if not sample.name.endswith("_created")
    }


def counted(route: str) -> float:
    return REGISTRY.get_sample_value("plaudit_http_request_seconds_count", {"route": route}) or 0


def test_many_observations_at_once_are_the_same_as_one_after_the_other() -> None:
    one_by_one, at_once = CollectorRegistry(), CollectorRegistry()
    histogram = Histogram("h", "h", registry=one_by_one, buckets=BOUNDS)
    for seconds in SECONDS:
        histogram.observe(seconds)
    Timings("h", "h", registry=at_once, buckets=BOUNDS).add(SECONDS)
    assert samples(at_once) == pytest.approx(samples(one_by_one))
    assert samples(at_once)["h_count", ""] == len(SECONDS)


def test_what_is_counted_is_in_the_metrics_a_moment_later_without_anybody_reading_them() -> None:
    route = uuid.uuid4().hex
    request_counts.add("GET", route, 200, 0.01)
    assert eventually(lambda: counted(route) == 1)


def test_threads_that_count_at_once_lose_nothing() -> None:
    route = uuid.uuid4().hex

    def count() -> None:
        for number in range(2_000):
            request_counts.add("GET", route, 200, 0.01)
            if number % 100 == 0:
                request_counts.write()

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    request_counts.write()
    assert counted(route) == 8_000
    assert (
        REGISTRY.get_sample_value("plaudit_http_requests_total", {"method": "GET", "route": route, "status": "200"})
        == 8_000
    )


def test_more_than_may_wait_are_written_by_who_counts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    route = uuid.uuid4().hex
    monkeypatch.setattr(request_counts, "MAX_WAITING", 0)
    request_counts.add("GET", route, 200, 0.01)
    assert counted(route) == 1
