"""What every answer has."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from app.api import health
from app.http import edge
from app.http.edge import MAX_QUIET_LINES_PER_S, quiet
from app.http.rights import public
from app.settings import Settings
from app.web import create_app
from tenants import logs
from tests.app.conftest import with_settings


def test_a_request_id_is_echoed_or_made(client: FlaskClient) -> None:
    assert client.get("/health/live", headers={"X-Request-Id": "abc-1"}).headers["X-Request-Id"] == "abc-1"
    for hostile in ("", "a b", "x" * 129, "ü"):
        made = client.get("/health/live", headers={"X-Request-Id": hostile}).headers["X-Request-Id"]
        assert made != hostile
        assert len(made) == 32


def test_security_headers(client: FlaskClient) -> None:
    headers = client.get("/health/live").headers
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["Cache-Control"] == "no-store"
    assert "Strict-Transport-Security" not in headers


def test_https_is_insisted_on_where_it_is_public(settings: Settings) -> None:
    client = with_settings(settings, public_url="https://plaudit.example")
    assert "Strict-Transport-Security" in client.get("/health/live").headers


def test_a_preflight_is_answered_without_credentials(client: FlaskClient) -> None:
    answer = client.options(
        "/api/v1/anything", headers={"Origin": "https://wiki.example", "Access-Control-Request-Method": "POST"}
    )
    assert answer.status_code == 204
    assert answer.headers["Access-Control-Allow-Origin"] == "*"
    assert "Access-Control-Allow-Credentials" not in answer.headers
    assert "Idempotency-Key" in answer.headers["Access-Control-Allow-Headers"]


DEMO = "demo-secret-" * 4


@pytest.mark.parametrize(
    ("secret", "headers", "is_logged"),
    [
        (DEMO, {"X-Plaudit-Demo": DEMO}, False),
        (DEMO, {"X-Plaudit-Demo": DEMO[:-1]}, True),
        (DEMO, {"X-Plaudit-Demo": "\xe9"}, True),
        (DEMO, {"X-Plaudit-Demo": ""}, True),
        (DEMO, {}, True),
        (None, {"X-Plaudit-Demo": DEMO}, True),
        (None, {"X-Plaudit-Demo": ""}, True),
    ],
)
def test_nothing_but_the_demos_own_traffic_stays_out_of_the_log(
    settings: Settings,
    logged: Callable[[], list[dict[str, Any]]],
    secret: str | None,
    headers: dict[str, str],
    is_logged: bool,
) -> None:
    with_settings(settings, demo_secret=secret).get("/nothing-here", headers=headers)
    assert [line["message"] for line in logged()] == (["GET '/nothing-here' 404"] if is_logged else [])


def test_an_error_of_ours_is_logged_whoever_sent_the_request(
    settings: Settings, logged: Callable[[], list[dict[str, Any]]]
) -> None:
    def broken() -> str:
        raise RuntimeError("broken")

    client = create_app(replace(settings, demo_secret=DEMO)).test_client()
    assert isinstance(client.application, Flask)
    client.application.add_url_rule("/broken", view_func=public(broken))
    assert client.get("/broken", headers={"X-Plaudit-Demo": DEMO}).status_code == 500
    assert "GET '/broken' 500" in [line["message"] for line in logged()]


def test_up_is_told_that_the_service_is_not_ready_without_a_line_in_the_log(
    settings: Settings, logged: Callable[[], list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks several times a second; anyone else's probe is logged."""
    monkeypatch.setattr(health, "check_database", lambda: ("unavailable", "unknown"))
    client = with_settings(settings, demo_secret=DEMO)
    for headers in ({"X-Plaudit-Demo": DEMO}, {}):
        assert client.get("/health/ready", headers=headers).status_code == 503
    assert [line["message"] for line in logged()] == ["GET '/health/ready' 503"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of quiet lines."""
    now = [1000.0]
    monkeypatch.setattr(edge, "quiet_lines", logs.Sampled(MAX_QUIET_LINES_PER_S, clock=lambda: now[0]))
    return now


def add_routes(app: Flask) -> None:
    app.add_url_rule("/busy/<int:status>", view_func=quiet(public(lambda status: ("", status))), endpoint="busy")
    app.add_url_rule("/seldom/<int:status>", view_func=public(lambda status: ("", status)), endpoint="seldom")


def test_of_a_quiet_route_some_successes_are_logged_and_every_failure(
    own_app: Flask, logged: Callable[[], list[dict[str, Any]]], clock: list[float]
) -> None:
    add_routes(own_app)
    client = own_app.test_client()
    for number in range(MAX_QUIET_LINES_PER_S + 2 * logs.SAMPLED):
        client.get("/busy/200", headers={"X-Request-Id": f"request-{number}"})
    for path in ("/busy/404", "/seldom/200"):
        client.get(path)
    lines = [line for line in logged() if line["action"] == "request"]
    quiet_lines = [line for line in lines if line["message"] == "GET '/busy/<int:status>' 200"]
    assert [line["data"].get("sampled", 1) for line in quiet_lines] == [1] * MAX_QUIET_LINES_PER_S + [logs.SAMPLED] * 2
    assert [line["requestId"] for line in quiet_lines[:2]] == ["request-0", "request-1"]
    failed, seldom = lines[-2:]
    assert failed["message"] == "GET '/busy/<int:status>' 404"
    assert seldom["message"] == "GET '/seldom/<int:status>' 200"
    clock[0] += 1
    client.get("/busy/200", headers={"X-Request-Id": "later"})
    assert logged()[-1]["requestId"] == "later"


def test_probes_that_succeed_are_not_logged(client: FlaskClient, logged: Callable[[], list[dict[str, Any]]]) -> None:
    for path in ("/health/live", "/health/ready", "/metrics"):
        assert client.get(path).status_code == 200
    assert [line for line in logged() if line["action"] == "request"] == []


def test_the_demos_own_calls_of_quiet_routes_are_not_logged(
    settings: Settings, logged: Callable[[], list[dict[str, Any]]], clock: list[float]
) -> None:
    client = create_app(replace(settings, demo_secret=DEMO)).test_client()
    add_routes(client.application)
    for headers in ({"X-Plaudit-Demo": DEMO}, {}):
        client.get("/busy/200", headers=headers)
    assert len([line for line in logged() if line["action"] == "request"]) == 1
