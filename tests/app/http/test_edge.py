"""What every answer has."""

from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from openapi_spec_validator import validate

from app.http.auth import caller_address
from app.http.edge import quiet
from app.http.rights import public
from app.settings import Settings
from app.web import create_app


def test_health(client: FlaskClient) -> None:
    assert client.get("/health/live").get_json()["status"] == "ok"
    ready = client.get("/health/ready")
    assert ready.status_code == 200
    assert ready.get_json() == {
        "status": "ok",
        "checks": {"database": "ok", "migrations": "ok", "redis": "ok", "queue": "ok"},
    }


def with_settings(settings: Settings, **changes: object) -> FlaskClient:
    from dataclasses import replace

    return create_app(replace(settings, **changes)).test_client()  # type: ignore[arg-type]


def test_without_redis_it_is_degraded_and_ready(settings: Settings) -> None:
    ready = with_settings(settings, redis_url="redis://127.0.0.1:1/0", queue_redis_url="redis://127.0.0.1:1/0").get(
        "/health/ready"
    )
    assert ready.status_code == 200
    assert ready.get_json()["status"] == "degraded"


def test_without_the_database_it_is_not_ready_but_alive(settings: Settings) -> None:
    nowhere = "postgresql://x@127.0.0.1:1/x"
    client = with_settings(settings, database_url=nowhere, service_database_url=nowhere)
    assert client.get("/health/ready").status_code == 503
    assert client.get("/health/live").status_code == 200


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


@pytest.mark.parametrize(
    ("hops", "forwarded", "seen"),
    [(0, "6.6.6.6", "127.0.0.1"), (1, "6.6.6.6, 7.7.7.7", "7.7.7.7"), (2, "6.6.6.6, 7.7.7.7", "6.6.6.6")],
)
def test_the_callers_address_is_taken_from_as_many_proxies_as_are_ours(
    settings: Settings, hops: int, forwarded: str, seen: str
) -> None:
    client = with_settings(settings, proxy_hops=hops)
    assert isinstance(client.application, Flask)
    client.application.add_url_rule("/whoami", view_func=public(lambda: str(caller_address())), endpoint="whoami")
    assert client.get("/whoami", headers={"X-Forwarded-For": forwarded}).text == seen


def test_an_odd_address_is_never_redirected(client: FlaskClient) -> None:
    for path in ("/api//v1/me", "//api/v1/me", "/api/v1/me/", "/health//live"):
        answer = client.get(path, base_url="http://evil.example")
        assert answer.status_code in {401, 404}, path
        assert "Location" not in answer.headers


@pytest.mark.parametrize(
    "forwarded", ["", "\xff, 8.8.8.8", "junk", "1.2.3.4:5678", "[2001:db8::1]:80", "fe80::1%eth0", ","]
)
def test_a_garbled_forwarded_address_never_passes_for_the_proxy(settings: Settings, forwarded: str) -> None:
    for hops in (0, 1, 2):
        answer = with_settings(settings, proxy_hops=hops).get("/metrics", headers={"X-Forwarded-For": forwarded})
        assert answer.status_code == 403, (hops, forwarded)


def test_metrics_are_for_this_machine_or_the_token(settings: Settings) -> None:
    client = with_settings(settings)
    client.get("/health/live")
    assert 'plaudit_http_requests_total{method="GET",route="/health/live",status="200"}' in client.get("/metrics").text
    assert client.get("/metrics", environ_base={"REMOTE_ADDR": "10.1.2.3"}).status_code == 403
    assert client.get("/metrics", headers={"X-Forwarded-For": "127.0.0.1"}).status_code == 403
    for behind_a_proxy in ({"proxy_hops": 1}, {"has_public_url": True}):
        proxied = with_settings(settings, **behind_a_proxy)
        assert proxied.get("/metrics").status_code == 403, "a proxy that does not say for whom"
        assert proxied.get("/metrics", headers={"X-Forwarded-For": "127.0.0.1"}).status_code == 403
        proxied = with_settings(settings, metrics_token="sesame-" * 5, **behind_a_proxy)
        assert proxied.get("/metrics", headers={"Authorization": "Bearer " + "sesame-" * 5}).status_code == 200
    locked = with_settings(settings, metrics_token="sesame-" * 5)
    assert locked.get("/metrics").status_code == 200, "from loopback, or with the token"
    away = {"REMOTE_ADDR": "10.1.2.3"}
    assert locked.get("/metrics", environ_base=away).status_code == 403
    assert (
        locked.get("/metrics", environ_base=away, headers={"Authorization": "Bearer " + "sesame-" * 5}).status_code
        == 200
    )


def test_the_contract_is_valid_openapi_and_readable(client: FlaskClient) -> None:
    spec = client.get("/api/openapi.json").get_json()
    assert spec["openapi"].startswith("3.1")
    validate(spec)
    assert spec["paths"]["/api/v1/clients"]["get"]["security"] == [{"client": ["admin"]}, {"user": []}]
    assert spec["paths"]["/api/v1/beacon"]["post"]["security"] == [{"key": []}]
    assert spec["paths"]["/health/live"]["get"]["security"] == []
    page = client.get("/api/docs")
    assert page.content_type.startswith("text/html")
    for path in spec["paths"]:
        assert path in page.text


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

    client = with_settings(settings, demo_secret=DEMO)
    assert isinstance(client.application, Flask)
    client.application.add_url_rule("/broken", view_func=public(broken))
    assert client.get("/broken", headers={"X-Plaudit-Demo": DEMO}).status_code == 500
    assert "GET '/broken' 500" in [line["message"] for line in logged()]


def test_a_quiet_route_is_logged_only_when_it_fails(own_app: Flask, logged: Callable[[], list[dict[str, Any]]]) -> None:
    own_app.add_url_rule("/busy/<int:status>", view_func=quiet(public(lambda status: ("", status))), endpoint="busy")
    own_app.add_url_rule("/seldom/<int:status>", view_func=public(lambda status: ("", status)), endpoint="seldom")
    for path in ("/busy/200", "/busy/404", "/seldom/200"):
        own_app.test_client().get(path)
    requests = [line["message"] for line in logged() if line["action"] == "request"]
    assert requests == ["GET '/busy/<int:status>' 404", "GET '/seldom/<int:status>' 200"]
