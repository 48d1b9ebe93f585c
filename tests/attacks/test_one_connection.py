"""No request ever uses two connections: a process that has only one answers everything."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from flask import Flask
from flask.testing import FlaskClient

from app.http.services import services_of
from app.settings import Settings
from app.web import connect, create_app
from tenants import db, liveness
from tenants.users import Role
from tests.analytics.conftest import make_page
from tests.people import Caller, client_of, log_in, user_of


@pytest.fixture
def app(settings: Settings) -> Iterator[Flask]:
    """An application whose pool has one connection."""
    flask = create_app(replace(settings, web_threads=1))
    yield flask
    services_of(flask).boards.close()
    connect(settings)  # the pool that other tests expect


def requests_of_every_kind(app: Caller, member: Caller, admin: Caller) -> Iterator[Any]:
    """With cold caches each, and with an Idempotency-Key where one is taken."""
    board = "/api/v1/leaderboards"
    events = [
        {"type": "view", "page": "home"},
        {"type": "like", "page": "home", "user": "u1"},
        {"type": "action", "user": "u2", "action_type": "post", "id": str(uuid4())},
    ]
    claim = {"actionId": str(uuid4()), "actionType": "post", "timestamp": db.utcnow().isoformat()}
    page = {"space": "s", "title": "t", "url": "/t", "owner": "u3"}
    for headers in ({}, {"Idempotency-Key": "k"}):
        yield app("POST", "/api/v1/events", json={"events": events}, headers=headers)
        if not headers:
            yield app("POST", "/api/v1/events", json={"events": events[:2]})
        yield app("POST", "/api/v1/pages/home/views", json={}, headers=headers)
        yield app("PUT", "/api/v1/pages/home/likes/u4", headers=headers)
        yield member("PUT", "/api/v1/pages/home/like", headers=headers)
        yield member("POST", "/api/v1/scores/update", json=claim, headers=headers)
        yield app("PUT", "/api/v1/pages/other", json=page, headers=headers)
        yield admin("PATCH", "/api/v1/settings", json={"share_public_pages": True}, headers=headers)
        yield admin("PATCH", f"/api/v1/users/{member.id}", json={"segment": "north"}, headers=headers)
        weights = {"likes": 2, "views": 1}
        yield admin("PUT", "/api/v1/settings/weights", json=weights, headers=headers)
    for scope in ("tenant", "space:s", "public", "global", "users", "users:north"):
        yield admin("GET", f"{board}?scope={scope}")
        yield admin("GET", f"{board}/export.csv?scope={scope}")
    yield admin("GET", f"{board}/rank?member=home&around=3")
    yield admin("GET", f"{board}?members=home&scope=tenant")
    yield admin("GET", f"{board}?explain=true")
    for path in ("overview", "spaces", "pages", "pages/home/stats", "pages/home/series", "me", "users", "settings"):
        yield admin("GET", f"/api/v1/{path}")
    yield admin("POST", "/api/v1/settings/weights/preview", json={"likes": 9, "views": 1})
    yield member("POST", "/api/v1/live/tickets")
    yield admin("DELETE", f"/api/v1/users/{member.id}", headers={"Idempotency-Key": "k"})


@pytest.mark.parametrize("redis", ["up", "down"])
def test_a_process_with_one_connection_answers_requests_of_every_kind(
    client: FlaskClient, tenant: str, redis: str, request: pytest.FixtureRequest
) -> None:
    admin = user_of(client, tenant, role=Role.ADMIN, username="admin_user")
    sender, member = client_of(client, tenant), user_of(client, tenant)
    assert sender("PUT", "/api/v1/actions/catalog/post", json={"points": 10}).status_code == 200
    make_page(sender, "home", visibility="public")
    if redis == "down":
        request.getfixturevalue("no_redis")
    for answer in requests_of_every_kind(sender, member, admin):
        assert answer.status_code < 400, f"{answer.request.method} {answer.request.path}: {answer.text}"
        answer.get_data()
        liveness._answers.drop_all()
    assert log_in(client, tenant, "admin_user")["refresh_token"]
