"""Load at a fixed rate: nothing waits for an earlier answer, and each is measured from when it was due."""

import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from loadtests.blast import request
from loadtests.open_loop import offer, percentile

SLOW_S = 0.3


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/slow":
            time.sleep(SLOW_S)
        if self.path == "/gone":
            self.close_connection = True
            return
        self.send_response(HTTPStatus.SERVICE_UNAVAILABLE if self.path == "/refused" else HTTPStatus.OK)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield server.server_port
        server.shutdown()
        serving.join()


def test_all_are_sent_although_the_server_is_slow(port: int) -> None:
    outcome = offer(port, lambda _: request("GET", "/slow"), per_second=100, seconds=0.5)
    assert outcome.statuses == {200: 50}
    assert outcome.accepted[0] >= SLOW_S * 1000
    assert percentile(outcome.accepted, 0.5) < 50 * SLOW_S * 1000, "they did not wait for each other"


def test_refusals_and_missing_answers_are_counted_apart(port: int) -> None:
    paths = ["/", "/refused", "/gone"]
    outcome = offer(port, lambda number: request("GET", paths[number % 3]), per_second=30, seconds=1)
    assert outcome.statuses == {200: 10, 503: 10}
    assert (len(outcome.accepted), len(outcome.refused), outcome.unanswered, outcome.unsent) == (10, 10, 10, 0)


def test_what_is_sent_before_it_settles_is_not_measured(port: int) -> None:
    outcome = offer(port, lambda number: request("GET", "/refused" if number < 20 else "/"), per_second=40, seconds=1)
    settled = offer(
        port,
        lambda number: request("GET", "/refused" if number < 20 else "/"),
        per_second=40,
        seconds=1,
        settle_s=0.5,
    )
    assert outcome.statuses == {200: 20, 503: 20}
    assert settled.statuses == {200: 40}
    assert len(settled.late_ms) == 40, "how late each was sent"
