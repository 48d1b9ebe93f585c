"""While PostgreSQL accepts no writes, as a standby after a failover: writes are refused for the moment, reads go on."""

from dataclasses import replace

import pytest
from flask.testing import FlaskClient
from sqlalchemy import text

from app.settings import Settings
from tenants.db import platform_tx
from tests.app.conftest import with_settings
from tests.app.http.conftest import assert_problem
from tests.outages import read_only
from tests.people import Caller, client_of

PAGE = {"space": "docs", "title": "Home", "url": "https://wiki.example/home"}
VIEW = {"type": "view", "page": "home", "user": "ann"}


@pytest.fixture
def caller(client: FlaskClient, settings: Settings, tenant: str) -> Caller:
    """Of a tenant with a page, once its service has got to a read-only server."""
    known = client_of(client, tenant)
    assert known("PUT", "/api/v1/pages/home", json=PAGE).status_code == 201
    assert known("POST", "/api/v1/pages/home/views", json={}).status_code == 202
    url = read_only(settings.service_database_url or settings.database_url)
    return replace(known, http=with_settings(settings, service_database_url=url, database_pool=1))


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/api/v1/pages/home", PAGE),
        ("POST", "/api/v1/pages/home/views", {}),
        ("POST", "/api/v1/events", {"events": [VIEW]}),
        ("PUT", "/api/v1/pages/home/likes/ann", None),
    ],
)
def test_a_write_is_503_and_its_connection_dropped(
    caller: Caller, method: str, path: str, body: dict[str, object] | None
) -> None:
    before = server_process()
    answer = caller(method, path, json=body)
    assert "read-only" in assert_problem(answer, 503, "database_unavailable")["detail"]
    assert answer.headers["Retry-After"] == "1"
    assert server_process() != before, "the next connection may lead to another server"


def server_process() -> int:
    """At the other end of the pool's only connection."""
    with platform_tx() as tx:
        return int(tx.scalar(text("SELECT pg_backend_pid()")) or 0)


def test_reads_go_on_and_readiness_says_why_it_is_not(caller: Caller) -> None:
    assert caller("GET", "/api/v1/pages/home").get_json()["title"] == "Home"
    assert caller("GET", "/api/v1/leaderboards?metric=views").status_code == 200
    ready = caller.http.get("/health/ready")
    assert (ready.status_code, ready.get_json()["checks"]["database"]) == (503, "read-only")


def test_readiness_says_it_too_if_none_of_several_servers_accepts_writes(settings: Settings) -> None:
    url = f"{read_only(settings.service_database_url or settings.database_url)}&target_session_attrs=read-write"
    ready = with_settings(settings, service_database_url=url).get("/health/ready")
    assert (ready.status_code, ready.get_json()["checks"]["database"]) == (503, "read-only")
