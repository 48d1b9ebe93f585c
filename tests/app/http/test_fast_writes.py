"""Writes of the fast lane: the same answers as the routes give, and nothing written twice."""

from typing import Any
from uuid import uuid4

import orjson
import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import text

from analytics.ingest.group_commit import GroupCommit, Overloaded
from tenants.db import tenant_tx, utcnow
from tests.analytics.conftest import likes_of, make_page
from tests.app.http.lanes import answer_of, by_the_route, paths_at_the_routes
from tests.people import Caller, client_of, user_of

UPDATE = "/api/v1/scores/update"


@pytest.fixture
def admin(client: FlaskClient, tenant: str) -> Caller:
    admin = client_of(client, tenant)
    make_page(admin, "a")
    assert admin("PUT", "/api/v1/actions/catalog/post", json={"points": 10, "daily_limit": 1000}).status_code == 200
    settings = {"limits": {"score_updates_per_minute": 1000}}
    assert admin("PATCH", "/api/v1/settings", json=settings).status_code == 200
    return admin


@pytest.fixture
def player(client: FlaskClient, tenant: str, admin: Caller) -> Caller:
    return user_of(client, tenant)


def claim(**changes: Any) -> dict[str, Any]:
    return {"actionId": str(uuid4()), "actionType": "post", "timestamp": utcnow().isoformat(), **changes}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/api/v1/pages/a/likes/ada"),
        ("DELETE", "/api/v1/pages/a/likes/ada"),
        ("PUT", "/api/v1/pages/nowhere/likes/ada"),
        ("PUT", "/api/v1/pages/a%00b/likes/ada"),
        ("PUT", "/api/v1/pages/a%00b/like"),
        ("PUT", "/api/v1/pages/a/likes/not%20a%20user"),
        ("PUT", "/api/v1/pages/a/like"),
        ("POST", "/api/v1/pages/a/like"),
        ("PUT", "/api/v1/pages/a/views"),
    ],
)
@pytest.mark.parametrize("kind", ["client", "player", "stranger"])
def test_both_lanes_answer_likes_alike(
    client: FlaskClient, tenant: str, admin: Caller, player: Caller, method: str, path: str, kind: str
) -> None:
    callers = {"client": admin, "player": player, "stranger": user_of(client, tenant, sees_private=False)}
    assert answer_of(callers[kind], method, path) == by_the_route(callers[kind], method, path)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"scoreDelta": 3},
        {"scoreDelta": 11},
        {"scoreDelta": 0},
        {"scoreDelta": -1},
        {"scoreDelta": None},
        {"actionType": "a\u0000b"},
        {"scoreDelta": 1.5},
        {"scoreDelta": "3"},
        {"actionType": "fly"},
        {"actionType": ""},
        {"actionType": "x" * 65},
        {"actionId": "1"},
        {"timestamp": "2001-01-01T00:00:00Z"},
        {"timestamp": "2999-01-01T00:00:00Z"},
        {"timestamp": "2026-01-01T00:00:00"},
        {"timestamp": "yesterday"},
        {"timestamp": 12},
        {"userId": "another"},
        {"object": "page:1", "metadata": {"a": 1}},
        {"unknown": True},
    ],
)
def test_both_lanes_answer_claims_alike(player: Caller, changes: dict[str, Any]) -> None:
    """The second is a replay of the first: the same answer, whichever lane it takes."""
    body = claim(**changes)
    first = answer_of(player, "POST", UPDATE, json=body)
    replay, by_route = answer_of(player, "POST", UPDATE, json=body), by_the_route(player, "POST", UPDATE, json=body)
    assert replay == by_route
    assert (first[0], first[2]) == (by_route[0], by_route[2])


def test_a_claim_is_paid_once_whichever_lane_it_takes(tenant: str, player: Caller) -> None:
    body = claim(timestamp=utcnow().isoformat(timespec="milliseconds").replace("+00:00", "Z"))
    assert by_the_route(player, "POST", UPDATE, json=body)[2] == answer_of(player, "POST", UPDATE, json=body)[2]
    with tenant_tx(tenant) as tx:
        assert tx.scalar(text("SELECT count(*) FROM score_ledger")) == 1
        assert tx.scalar(text("SELECT agent FROM action_events")) is not None


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"null"])
@pytest.mark.parametrize("content_type", ["application/json", "text/plain"])
def test_both_lanes_answer_broken_claims_alike(player: Caller, body: bytes, content_type: str) -> None:
    options: dict[str, Any] = {"data": body, "content_type": content_type}
    assert answer_of(player, "POST", UPDATE, **options) == by_the_route(player, "POST", UPDATE, **options)


def test_both_lanes_refuse_a_number_that_nothing_can_hold(player: Caller) -> None:
    body = orjson.dumps(claim(scoreDelta=7)).replace(b":7", b":1" + b"0" * 30)
    options: dict[str, Any] = {"data": body, "content_type": "application/json"}
    assert answer_of(player, "POST", UPDATE, **options) == by_the_route(player, "POST", UPDATE, **options)
    assert answer_of(player, "POST", UPDATE, **options)[0] == 422


def test_plain_writes_never_come_as_far_as_flask(app: Flask, admin: Caller, player: Caller, tenant: str) -> None:
    with paths_at_the_routes(app) as seen:
        assert admin("PUT", "/api/v1/pages/a/likes/ada").get_json() == {"liked": True, "likes": 1}
        assert player("PUT", "/api/v1/pages/a/like").get_json() == {"liked": True, "likes": 2}
        assert admin("DELETE", "/api/v1/pages/a/likes/ada").get_json() == {"liked": False, "likes": 1}
        assert player("POST", UPDATE, json=claim()).get_json()["score"] == 10
        assert admin("POST", "/api/v1/pages/a/views", json={"id": "1"}).status_code == 202
    assert seen == []
    assert likes_of(tenant, "a") == (1, 1)


def test_what_the_lane_could_not_write_is_not_tried_again(
    app: Flask, player: Caller, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    def fail(*_args: Any) -> None:
        tries.append(1)
        raise Overloaded

    monkeypatch.setattr(GroupCommit, "write", fail)
    answer = player("POST", UPDATE, json=claim())
    assert (answer.status_code, answer.get_json()["code"], len(tries)) == (503, "overloaded", 1)
    assert player("PUT", "/api/v1/pages/a/like").status_code == 503
    assert len(tries) == 2


def test_a_refused_claim_is_answered_by_the_route_and_flagged(admin: Caller, player: Caller) -> None:
    refused = player("POST", UPDATE, json=claim(timestamp="2999-01-01T00:00:00Z"))
    assert (refused.status_code, refused.get_json()["code"]) == (422, "impossible_time")
    flags = admin("GET", "/api/v1/integrity/flags").get_json()["items"]
    assert [flag["rule"] for flag in flags] == ["impossible_clock"]
