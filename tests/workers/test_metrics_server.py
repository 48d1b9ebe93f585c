"""The metrics of machines without a web process: for operators, by one of the machine's processes."""

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock
from urllib.parse import urlsplit

import pytest
import requests

from app.run.ports import reserve_port
from app.settings import Settings
from tests.service import eventually
from workers import metrics_server
from workers.metrics_server import MetricsServer

TOKEN = "sesame-" * 5


@contextlib.contextmanager
def served(settings: Settings, **changes: Any) -> Iterator[str]:
    """The address of a machine's metrics."""
    port = reserve_port()
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
        assert "Send PLAUDIT_METRICS_TOKEN" in requests.get(f"{address}/metrics", timeout=10).text
        assert status(address, Authorization=f"Bearer {TOKEN}") == 200


def test_a_client_that_sends_slowly_is_given_up(
    settings: Settings, connected: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_server, "TIMEOUT_S", 0.3)
    with served(settings) as address, socket.create_connection(("127.0.0.1", urlsplit(address).port or 0)) as slow:
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):  # it was closed
            while time.monotonic() - began < 3:
                slow.sendall(b"G")
                time.sleep(0.1)
        assert time.monotonic() - began < 1
        assert requests.get(f"{address}/metrics", timeout=10).status_code == 200


def test_slow_clients_delay_no_other(settings: Settings, connected: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "TIMEOUT_S", 60)
    with served(settings) as address, contextlib.ExitStack() as stack:
        for _ in range(8):
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", urlsplit(address).port or 0)))
            slow.sendall(b"GET /met")
        assert requests.get(f"{address}/health/live", timeout=30).ok
        assert requests.get(f"{address}/metrics", timeout=30).ok


def test_a_process_without_free_files_tries_again(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    server = MagicMock()
    attempts = iter([OSError(errno.EMFILE, "Too many open files"), None, server])

    def listen(_settings: Settings) -> Any:
        if isinstance(attempt := next(attempts), OSError):
            raise attempt
        return attempt

    monkeypatch.setattr(metrics_server, "listen", listen)
    monkeypatch.setattr(metrics_server, "RETRY_S", 0.01)
    metrics_server._run(settings, None)
    server.serve_forever.assert_called_once()


def test_of_several_processes_one_listens_and_after_it_another(settings: Settings) -> None:
    settings = replace(settings, metrics_port=reserve_port())
    first = metrics_server.listen(settings)
    assert first is not None
    assert metrics_server.listen(settings) is None
    first.server_close()
    second = metrics_server.listen(settings)
    assert second is not None
    second.server_close()


class _Foreign(BaseHTTPRequestHandler):
    body = b"{}"

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.mark.parametrize("body", [b"<html>Grafana</html>", b'{"status": "down"}', b"[]", b"x" * 5000])
def test_another_program_at_the_port_is_said_once(
    body: bytes, settings: Settings, logged: Callable[[], list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Foreign, "body", body)
    monkeypatch.setattr(metrics_server, "RETRY_S", 0.01)
    foreign = HTTPServer(("127.0.0.1", 0), _Foreign)
    answering = threading.Thread(target=foreign.serve_forever, args=(0.05,))
    answering.start()
    metrics_server.start(replace(settings, metrics_port=foreign.server_port))
    eventually(logged)
    foreign.shutdown()
    answering.join()
    foreign.server_close()
    eventually(lambda: len(logged()) > 1)
    said = [(line["level"], line["action"], line["data"]["port"]) for line in logged()]
    port = foreign.server_port
    assert said == [("warning", "metrics.port_taken", port), ("info", "metrics.served", port)]


def test_a_program_that_says_nothing_is_not_ours_and_another_process_of_ours_is(
    settings: Settings, connected: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(settings) as address:
        assert metrics_server.is_served_by_us(replace(settings, metrics_port=urlsplit(address).port))
    assert metrics_server.is_served_by_us(replace(settings, metrics_port=reserve_port())), "it has just ended"
    monkeypatch.setattr(metrics_server, "TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert not metrics_server.is_served_by_us(replace(settings, metrics_port=silent.getsockname()[1]))


def test_without_a_port_nothing_listens_and_a_wrong_address_stops_the_start(settings: Settings, tmp_path: Path) -> None:
    before = threading.active_count()
    metrics_server.start(settings)
    assert threading.active_count() == before
    with pytest.raises(SystemExit, match="Cannot listen on PLAUDIT_METRICS_PORT 9"):
        metrics_server.start(replace(settings, host="192.0.2.1", metrics_port=9))
