"""Whether the processes of `plaudit up` are ready: how often they are asked, and what is said if they are not."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from app.run import readiness
from app.run.ports import reserve_port
from app.run.readiness import Readiness, problems_in

CHECKS = {
    "database": "ok",
    "migrations": "ok",
    "settings": "PLAUDIT_SECRET_KEY is not that of web 7 on a",
    "redis": "ok",
}


class Service(HTTPServer):
    """Answers /health/ready as told, and remembers who asked."""

    checks: dict[str, str]

    def __init__(self) -> None:
        self.asked: list[str | None] = []
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/health/ready"


class _Handler(BaseHTTPRequestHandler):
    server: Service

    def do_GET(self) -> None:
        self.server.asked.append(self.headers["X-Plaudit-Demo"])
        self.send_response(200 if set(self.server.checks.values()) == {"ok"} else 503)
        self.end_headers()
        self.wfile.write(json.dumps({"status": "", "checks": self.server.checks}).encode())

    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_service_that_is_not_ready_is_asked_seldom_and_its_checks_are_known(service: Service) -> None:
    service.checks = CHECKS
    asking = Readiness(service.url, headers={"X-Plaudit-Demo": "secret"})
    began = time.monotonic()
    for _ in range(1000):
        assert not asking.is_ready()
    took_s = time.monotonic() - began
    assert service.asked == ["secret"] * len(service.asked)
    assert len(service.asked) <= 1 + took_s / readiness.PROBE_EVERY_S
    assert asking.problems == "settings: PLAUDIT_SECRET_KEY is not that of web 7 on a"
    service.checks = dict.fromkeys(CHECKS, "ok")
    deadline = time.monotonic() + 60
    while not asking.is_ready():
        assert time.monotonic() < deadline


def test_all_must_be_ready(service: Service) -> None:
    service.checks = dict.fromkeys(CHECKS, "ok")
    nobody = f"http://127.0.0.1:{reserve_port()}/"
    assert Readiness(service.url, service.url, headers={}).is_ready()
    asking = Readiness(service.url, nobody, headers={})
    assert not asking.is_ready()
    assert asking.problems == "", "nobody answers: the lines of its log say why"


def test_an_answer_that_does_not_come_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        asking = Readiness(f"http://127.0.0.1:{silent.getsockname()[1]}/health/ready", headers={})
        assert not asking.is_ready()
    assert asking.problems == "no answer within 0 s"


@pytest.mark.parametrize(
    ("body", "problems"),
    [
        (
            {"checks": {"database": "unavailable", "migrations": "unknown", "settings": "unknown"}},
            "database: unavailable",
        ),
        (
            {"checks": {"migrations": "at 0001, needs 0002", "redis": "unavailable"}},
            "migrations: at 0001, needs 0002; redis: unavailable",
        ),
        ({"status": "unavailable"}, ""),
        ([], ""),
    ],
)
def test_only_what_is_not_ok_is_said(body: object, problems: str) -> None:
    assert problems_in(json.dumps(body).encode()) == problems
    assert problems_in(b"<html>") == ""
