"""The metrics of machines without a web process: for operators, by one of the machine's processes."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests

from app.settings import Settings
from tests.service import free_port
from workers import metrics_server
from workers.metrics_server import MetricsServer

TOKEN = "sesame-" * 5


@contextlib.contextmanager
def served(settings: Settings, **changes: Any) -> Iterator[str]:
    """The address of a machine's metrics."""
    port = free_port()
    with MetricsServer(replace(settings, metrics_port=port, **changes)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{port}"
        server.shutdown()
        thread.join()


def test_metrics_are_for_this_machine_or_the_token_as_those_of_the_api(settings: Settings, connected: None) -> None:
    def status(address: str, **headers: str) -> int:
        return requests.get(f"{address}/metrics", headers=headers, timeout=10).status_code

    with served(settings) as address:
        assert (status(address), status(address, **{"X-Forwarded-For": "127.0.0.1"})) == (200, 403)
        assert requests.get(f"{address}/health/live", timeout=10).json() == {"status": "ok", "checks": {}}
        assert requests.get(f"{address}/dashboard", timeout=10).status_code == 404
    with served(settings, metrics_token=TOKEN, has_public_url=True) as address:
        assert (status(address), status(address, Authorization="Bearer x")) == (403, 403)
        assert status(address, Authorization=f"Bearer {TOKEN}") == 200


def test_of_several_processes_one_listens_and_after_it_another(settings: Settings) -> None:
    settings = replace(settings, metrics_port=free_port())
    first = metrics_server.listen(settings)
    assert first is not None
    assert metrics_server.listen(settings) is None
    first.server_close()
    second = metrics_server.listen(settings)
    assert second is not None
    second.server_close()


def test_without_a_port_nothing_listens_and_a_wrong_address_stops_the_start(settings: Settings, tmp_path: Path) -> None:
    before = threading.active_count()
    metrics_server.start(settings)
    assert threading.active_count() == before
    with pytest.raises(SystemExit, match="Cannot listen on PLAUDIT_METRICS_PORT 9"):
        metrics_server.start(replace(settings, host="192.0.2.1", metrics_port=9))
