"""Health checks: alive whatever is down; ready only with a migrated database."""

import pytest
from flask.testing import FlaskClient

from app.settings import Settings
from tenants import engines, liveness
from tenants.fingerprints import Difference
from tests.app.conftest import with_settings
from tests.outages import silent_pooler
from tests.people import client_of


def test_health(client: FlaskClient) -> None:
    assert client.get("/health/live").get_json()["status"] == "ok"
    ready = client.get("/health/ready")
    assert ready.status_code == 200
    assert ready.get_json() == {
        "status": "ok",
        "checks": {"database": "ok", "migrations": "ok", "settings": "ok", "redis": "ok", "queue": "ok"},
    }


def test_without_redis_it_is_degraded_and_ready(settings: Settings) -> None:
    ready = with_settings(settings, redis_url="redis://127.0.0.1:1/0", queue_redis_url="redis://127.0.0.1:1/0").get(
        "/health/ready"
    )
    assert ready.status_code == 200
    assert ready.get_json()["status"] == "degraded"


def test_behind_a_pooler_without_a_server_it_says_so_soon(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "CONNECT_TIMEOUT_S", 0.2)
    with silent_pooler() as address:
        client = with_settings(settings, database_url=address, service_database_url=address)
        ready = client.get("/health/ready")
        assert (ready.status_code, ready.get_json()["checks"]["database"]) == (503, "unavailable")
        login = {"tenant": "acme", "username": "somebody", "password": "correct horse battery"}
        answer = client.post("/api/v1/auth/login", json=login)
        assert (answer.status_code, answer.get_json()["code"]) == (503, "database_unavailable")


def test_without_the_database_it_is_not_ready_but_alive(settings: Settings) -> None:
    nowhere = "postgresql://x@127.0.0.1:1/x"
    client = with_settings(settings, database_url=nowhere, service_database_url=nowhere)
    assert client.get("/health/ready").status_code == 503
    assert client.get("/health/live").status_code == 200


def test_a_process_that_differs_from_the_others_is_not_ready_and_answers_nothing_else(
    client: FlaskClient, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = client_of(client, tenant, "stats:read")
    board = "/api/v1/leaderboards?scope=tenant&window=7d&metric=views"
    assert caller("GET", board).status_code == 200
    # Its thread would compare, and remember a difference for a while.
    monkeypatch.setattr(liveness._feed, "_compared", lambda _difference: None)
    monkeypatch.setattr(liveness._feed, "_acknowledge", lambda: None)
    monkeypatch.setattr(liveness._feed, "difference", Difference("PLAUDIT_SECRET_KEY", "node-a", 4711))
    refused = [caller("GET", board), caller("PUT", "/api/v1/pages/p", json={}), client.get("/dashboard")]
    assert {(answer.status_code, answer.get_json()["code"]) for answer in refused} == {(503, "settings_differ")}
    assert "node-a" not in refused[0].text, "nobody outside learns of machines by asking for a board"
    ready = client.get("/health/ready")
    assert (ready.status_code, ready.get_json()["status"]) == (503, "unavailable")
    why = "PLAUDIT_SECRET_KEY is not the one of the processes that were started before"
    assert ready.get_json()["checks"]["settings"] == why
    assert client.get("/health/live").status_code == client.get("/metrics").status_code == 200
