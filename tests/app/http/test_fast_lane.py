"""Nobody can tell the fast lane from the route but by its speed."""

import gzip
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from prometheus_client import REGISTRY
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from analytics.ingest import page_writes
from app.http import edge, errors, request_counts
from app.http.services import services_of
from tenants import liveness, logs, sessions, shares, users, waiting
from tenants.db import tenant_tx, utcnow
from tenants.errors import DomainError
from tests.analytics.conftest import views_of
from tests.app.http.lanes import answer_of, paths_at_the_routes
from tests.people import Caller, client_of, user_of
from tests.secrets_seen import SEEN
from tests.service import eventually

VIEWS = "/api/v1/pages/a/views"
GZIP = {"Content-Encoding": "gzip"}


@pytest.fixture
def flask_routes(app: Flask) -> Iterator[list[str]]:
    """The paths that came as far as Flask."""
    with paths_at_the_routes(app) as seen:
        yield seen


@pytest.fixture
def sender(client: FlaskClient, tenant: str) -> Caller:
    with tenant_tx(tenant) as tx:
        page_writes.put(tx, "a", space="s", title="t", url="/a", now=utcnow())
    return client_of(client, tenant, "events:write")


def test_a_plain_view_never_comes_as_far_as_flask(sender: Caller, tenant: str, flask_routes: list[str]) -> None:
    labels = {"method": "POST", "route": "/api/v1/pages/<external_id>/views", "status": "202"}
    request_counts.write()
    before = REGISTRY.get_sample_value("plaudit_http_requests_total", labels) or 0
    flask_routes.clear()
    assert sender("POST", VIEWS, json={"id": "1"}).get_json() == {"accepted": 1, "duplicates": 0, "rejected": []}
    assert sender("POST", VIEWS, json={"id": "1"}).get_json() == {"accepted": 0, "duplicates": 1, "rejected": []}
    assert flask_routes == []
    assert views_of(tenant) == 1
    request_counts.write()
    assert REGISTRY.get_sample_value("plaudit_http_requests_total", labels) == before + 2, "measured all the same"


@pytest.mark.parametrize(
    "options",
    [
        {"json": {}},
        {"json": {"user": "u"}},
        {"json": {"occurred_at": "2001-01-01T00:00:00Z"}},
        {"json": {"type": "view"}},
        {"json": []},
        {"data": b"{", "content_type": "application/json"},
        {"data": b"{}", "content_type": "text/plain"},
        {"headers": {"Authorization": "Bearer nonsense"}},
        {"headers": {"Authorization": ""}},
        {"headers": {"X-Request-Id": "mine"}},
        {"data": b"{}", "content_type": "application/json", "headers": {"Content-Encoding": "br"}},
        {"data": b"no", "content_type": "application/json", "headers": {"Content-Encoding": "gzip"}},
        {"data": gzip.compress(b" " * 2_000_000), "content_type": "application/json", "headers": GZIP},
        {"data": b"x" * 1_048_577 + b"{}", "content_type": "application/json"},
    ],
)
def test_both_lanes_answer_alike(sender: Caller, flask_routes: list[str], options: dict[str, Any]) -> None:
    def ask_both() -> tuple[Any, Any] | None:
        """In the same second: a refusal may name a time."""
        second = int(time.time())
        lane = answer_of(sender, "POST", VIEWS, **options)
        flask_routes.clear()
        route = answer_of(sender, "POST", f"{VIEWS}?around", **options)
        return (lane, route) if int(time.time()) == second else None

    lane, route = eventually(ask_both)
    assert route == lane
    assert flask_routes == [VIEWS], "a query takes the way through Flask"
    assert lane[0] < 500


def test_what_the_lane_wrote_or_was_refused_is_not_tried_again(
    client: FlaskClient, sender: Caller, tenant: str, flask_routes: list[str]
) -> None:
    flask_routes.clear()
    assert sender("POST", "/api/v1/pages/nowhere/views").status_code == 404
    assert flask_routes == ["/api/v1/pages/nowhere/views"]
    admin = client_of(client, tenant, "admin")
    assert admin("GET", "/api/v1/ingest/rejections").get_json()["reasons"] == {"unknown_page": 1}


def test_the_request_id_is_the_callers_or_a_new_one(sender: Caller) -> None:
    assert sender("POST", VIEWS, headers={"X-Request-Id": "mine"}).headers["X-Request-Id"] == "mine"
    first, second = (sender("POST", VIEWS).headers["X-Request-Id"] for _ in range(2))
    assert first != second


def test_what_a_thread_of_the_lane_wrote_keeps_its_share_until_the_route_has_answered(
    app: Flask, sender: Caller, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, in_use = services_of(app).threads, list[int]()

    def look_and_answer(error: DomainError) -> Any:
        in_use.append(threads._tenants[tenant].total)
        return errors.answer_domain_error(error)

    monkeypatch.setitem(app.error_handler_spec[None][None], DomainError, look_and_answer)
    assert sender("PUT", "/api/v1/pages/nowhere/likes/ada").status_code == 404
    assert in_use == [1], "and takes no second one"
    assert threads._tenants == {}


@pytest.fixture
def caller_of(app: Flask) -> Callable[..., shares.Caller]:
    """Whose a request is, as the loop sees it: it may not wait."""
    lane: Any = app.wsgi_app

    def find(**environ: str) -> shares.Caller:
        with ThreadPoolExecutor(1, initializer=waiting.forbid_in_this_thread) as loop:
            try:
                found: shares.Caller = loop.submit(lane.caller_of, {"REMOTE_ADDR": "192.0.2.1", **environ}).result()
                return found
            finally:
                loop.submit(waiting.allow_in_this_thread).result()

    return find


NOBODY = shares.Caller(shares.NOBODY, "192.0.2.1")


def test_a_request_is_its_tenants_once_its_token_is_known_or_if_we_signed_its_cookie(
    client: FlaskClient,
    sender: Caller,
    tenant: str,
    caller_of: Callable[..., shares.Caller],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    authorization = f"Bearer {sender.token}"
    assert caller_of() == caller_of(HTTP_AUTHORIZATION=authorization) == NOBODY
    assert sender("POST", VIEWS, json={"id": "1"}).status_code == 202
    assert caller_of(HTTP_AUTHORIZATION=authorization) == shares.Caller(tenant, f"client:{sender.id}")
    with monkeypatch.context() as unread:
        unread.setattr(liveness, "is_current", lambda _: False)
        assert caller_of(HTTP_AUTHORIZATION=authorization) == shares.Caller(tenant, f"client:{sender.id}")
    signer = services_of(client.application).signer
    with tenant_tx(tenant) as tx:
        user = users.find(tx, user_of(client, tenant).id)
        cookie = sessions.start_in_browser(tx, user, signer=signer, ip=None, agent=None, now=utcnow()).value
    SEEN.add(cookie)
    for name in ("plaudit_session", "__Host-plaudit_session"):
        assert caller_of(HTTP_COOKIE=f"a=b; {name}={cookie}") == shares.Caller(tenant, f"user:{user.id}")
        assert caller_of(HTTP_COOKIE=f"{name}={cookie[:-1]}x") == NOBODY


def test_a_made_up_name_is_its_networks_and_never_the_named_tenants(
    client: FlaskClient, tenant: str, caller_of: Callable[..., shares.Caller]
) -> None:
    admin = client_of(client, tenant)
    key = admin("POST", "/api/v1/keys", json={"origins": ["https://a.example"]}).get_json()["key"]
    assert caller_of(HTTP_X_PLAUDIT_KEY=key) == NOBODY, "nobody has looked it up yet"

    def is_known() -> bool:
        assert client.get(f"/api/v1/leaderboards?key={key}").status_code == 200
        return caller_of(HTTP_X_PLAUDIT_KEY=key) != NOBODY

    eventually(is_known)
    assert caller_of(QUERY_STRING=f"a=b&key={key}") == shares.Caller(f"{tenant} by key", "192.0.2.1")
    for made_up in (f"pk_{tenant}_AAAAAAAAAAAA", "pk_", "x" * 500):
        assert client.get(f"/api/v1/leaderboards?key={made_up}").status_code == 401
        assert caller_of(HTTP_X_PLAUDIT_KEY=made_up) == caller_of(QUERY_STRING=f"key={made_up}") == NOBODY
    for cookie in (f"ds_{tenant}_{'0' * 32}_{'0' * 32}_x_y", f"ds_{tenant}", "ds"):
        assert caller_of(HTTP_COOKIE=f"plaudit_session={cookie}") == NOBODY
    assert caller_of(HTTP_AUTHORIZATION=f"Bearer {tenant}", HTTP_X_PLAUDIT_KEY=key) == NOBODY


def test_whatever_goes_wrong_in_the_lane_is_answered_by_the_route(
    app: Flask, sender: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: Any, **_more: Any) -> None:
        raise PoolTimeoutError

    monkeypatch.setattr("app.http.fast_writes.view_request", fail)
    assert sender("POST", VIEWS).status_code == 202, "the route knows nothing of it"
    monkeypatch.setattr("app.api.events.view_request", fail)
    answer = sender("POST", VIEWS)
    assert (answer.status_code, answer.headers["Content-Type"]) == (503, "application/problem+json")


@pytest.mark.parametrize(("sent", "is_logged"), [("demo-secret", False), ("another", True)])
def test_a_slow_view_is_logged_unless_the_demo_sent_it(
    app: Flask,
    sender: Caller,
    flask_routes: list[str],
    logged: Callable[[], list[dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
    sent: str,
    is_logged: bool,
) -> None:
    monkeypatch.setattr(app.wsgi_app, "_demo_secret", "demo-secret")
    monkeypatch.setattr(edge, "SLOW_S", 0)
    before = len(logged())
    flask_routes.clear()
    assert sender("POST", VIEWS, json={}, headers={"X-Plaudit-Demo": sent}).status_code == 202
    assert flask_routes == []
    assert len(logged()) - before == int(is_logged)


def test_some_plain_views_are_logged_with_their_ids(
    sender: Caller,
    tenant: str,
    flask_routes: list[str],
    logged: Callable[[], list[dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(edge, "quiet_lines", logs.Sampled(2, clock=lambda: 0.0))
    sender("POST", VIEWS, json={})  # who is unknown may be looked up by the route
    before = len(logged())
    flask_routes.clear()
    for number in range(logs.SAMPLED + 1):
        assert sender("POST", VIEWS, json={}, headers={"X-Request-Id": f"view-{number}"}).status_code == 202
    assert flask_routes == []
    first, sampled = logged()[before:]
    assert (first["requestId"], first["tenantId"], first["data"].get("sampled")) == ("view-0", tenant, None)
    assert (sampled["requestId"], sampled["data"]["sampled"]) == (f"view-{logs.SAMPLED}", logs.SAMPLED)
    assert sampled["message"] == "POST '/api/v1/pages/<external_id>/views' 202"
