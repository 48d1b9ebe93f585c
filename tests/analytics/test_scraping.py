"""The gauges of the whole service: what an alert needs, also while the servers hang."""

import os
import platform
import socket
import threading
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.parser import text_string_to_metric_families

from analytics import outbox
from analytics.outbox import Kind
from app.settings import Settings
from tenants import queue
from tenants.db import tenant_tx
from tenants.metrics import MetricsFile
from tenants.platform_calls import NodeLost, PlatformCalls
from tests import citus
from tests.app.conftest import with_settings

Labels = tuple[str, ...]


def scrape(client: FlaskClient) -> dict[tuple[str, Labels], float]:
    """The value of each sample, by its name and the values of its labels."""
    families = text_string_to_metric_families(client.get("/metrics").text)
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_a_scrape_says_whether_the_servers_answer_what_waits_and_which_release_this_is(
    client: FlaskClient, tenant: str
) -> None:
    with tenant_tx(tenant) as tx:
        outbox.mark_selected_stale(tx, Kind.PAGE, "SELECT '7'", {})
    before = scrape(client)
    queue.enqueue("workers.jobs.nothing", ttl_s=60)
    queue.enqueue("workers.jobs.nothing", ttl_s=60)
    after = scrape(client)
    assert after["plaudit_postgres_up", ()] == 1
    assert (after["plaudit_redis_up", ("boards",)], after["plaudit_redis_up", ("queue",)]) == (1, 1)
    assert after["plaudit_queue_depth", ()] == before["plaudit_queue_depth", ()] + 2
    assert after["plaudit_board_lag_seconds", ()] > before["plaudit_board_lag_seconds", ()] >= 0
    assert after["plaudit_build_info", (platform.python_version(), metadata.version("plaudit"))] == 1


def test_while_a_node_is_lost_the_lag_is_that_of_the_tenants_on_the_others(
    client: FlaskClient, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tenant_tx(tenant) as tx:
        outbox.mark_selected_stale(tx, Kind.PAGE, "SELECT '7'", {})
    run = PlatformCalls.run

    def run_while_a_node_is_lost(calls: PlatformCalls, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        if sql == outbox.LAG:
            raise NodeLost
        return run(calls, sql, values) if citus.URL else run(calls, outbox.LAG)  # which has no shards to ask

    monkeypatch.setattr(PlatformCalls, "run", run_while_a_node_is_lost)
    found = scrape(client)
    assert found["plaudit_postgres_up", ()] == 1
    assert found["plaudit_board_lag_seconds", ()] > 0


def test_servers_that_hang_are_down_and_do_not_hang_the_scrape(settings: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hung:  # takes connections, and never answers
        port = hung.getsockname()[1]
        database, redis = f"postgresql://x@127.0.0.1:{port}/x", f"redis://127.0.0.1:{port}/0"
        client = with_settings(
            settings, database_url=database, service_database_url=database, redis_url=redis, queue_redis_url=redis
        )
        took_s: list[float] = []
        waiting: list[set[threading.Thread]] = []
        for _ in range(2):
            began = time.monotonic()
            found = scrape(client)
            took_s.append(time.monotonic() - began)
            waiting.append({thread for thread in threading.enumerate() if thread.name == "scrape"})
            assert found["plaudit_postgres_up", ()] == 0
            assert (found["plaudit_redis_up", ("boards",)], found["plaudit_redis_up", ("queue",)]) == (0, 0)
            unknown = {("plaudit_board_lag_seconds", ()), ("plaudit_queue_depth", ())}
            assert unknown.isdisjoint(found), "nobody knows, so no alert may take it for 0"
        assert min(took_s) < 1.9, "a connection is given up after two seconds; a scrape does not wait for that"
        assert waiting[1] <= waiting[0], "the second scrape did not ask again what had not been answered"


def test_connections_of_a_process_that_was_killed_are_not_counted(settings: Settings, tmp_path: Path) -> None:
    name = "plaudit_live_connections"
    of_process: Any = MmapedDict  # which has no types
    of_killed = of_process(str(tmp_path / "gauge_livesum_7.db"))
    of_ours = MetricsFile(str(tmp_path / f"gauge_livesum_{os.getpid()}.db"))
    for file, connections in ((of_killed, 300), (of_ours, 4)):
        file.write_value(mmap_key(name, name, ["kind"], ["socket"], "Open."), connections, 0)
        file.close()
    assert scrape(with_settings(settings, metrics_dir=tmp_path))[name, ("socket",)] == 4
