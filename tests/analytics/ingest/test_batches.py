"""Actions in batches: each paid once, together with the other events (P1, P2)."""

from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import text

from analytics.ingest.writes import TenantWrite
from app.http.services import services_of
from tenants import idempotency
from tenants.db import tenant_tx
from tenants.errors import Unavailable
from tests.analytics.conftest import make_page, views_of
from tests.analytics.scores.conftest import UPDATE, at_once, claim_of, send_until_admitted
from tests.people import Caller, client_of


def test_actions_in_a_batch_are_paid_once_each(admin: Caller, tenant: str) -> None:
    make_page(admin, "p")
    events = [
        {"type": "action", "action_type": "post", "user": "ada", "page": "p", "id": "1"},
        {"type": "action", "action_type": "post", "user": "bob", "id": "2"},
        {"type": "view", "page": "p", "id": "3"},
        {"type": "action", "action_type": "nonsense", "user": "ada", "id": "4"},
        {"type": "action", "action_type": "post", "id": "5"},
    ]
    first = admin("POST", "/api/v1/events", json={"events": events}).get_json()
    assert (first["accepted"], first["duplicates"]) == (3, 0)
    assert [(r["index"], r["code"]) for r in first["rejected"]] == [(3, "unknown_action"), (4, "invalid")]
    again = admin("POST", "/api/v1/events", json={"events": events}).get_json()
    assert (again["accepted"], again["duplicates"]) == (0, 3)
    assert admin("GET", "/api/v1/users/ext:ada").get_json()["score"] == 10
    twice = [{"type": "action", "action_type": "post", "user": user, "id": "twice"} for user in ("zed", "abe")]
    told = admin("POST", "/api/v1/events", json={"events": twice}).get_json()
    assert (told["accepted"], told["duplicates"]) == (1, 1)
    assert admin("GET", "/api/v1/users/ext:zed").get_json()["score"] == 10, "the first in the batch counts"
    assert admin("GET", "/api/v1/ingest/rejections").get_json()["reasons"]["unknown_action"] == 2


def test_an_id_that_a_batch_has_twice_is_no_duplicate_of_what_was_rejected(admin: Caller) -> None:
    twice = [{"type": "action", "action_type": "nonsense", "user": "ada", "id": "1"}] * 2
    told = admin("POST", "/api/v1/events", json={"events": twice}).get_json()
    assert (told["accepted"], told["duplicates"]) == (0, 0)
    assert [(r["index"], r["code"]) for r in told["rejected"]] == [(0, "unknown_action"), (1, "unknown_action")]


@pytest.mark.parametrize("redis", ["up", "away"])
def test_an_apps_actions_are_under_the_tenants_limit_and_not_under_the_users(
    admin: Caller, player: Caller, redis: str, request: pytest.FixtureRequest
) -> None:
    if redis == "away":
        request.getfixturevalue("no_redis")
    admin("PATCH", f"/api/v1/users/{player.id}", json={"external_id": "ada"})
    admin("PATCH", "/api/v1/settings", json={"limits": {"app_actions_per_minute": 40}})
    action = {"type": "action", "action_type": "post", "user": "ada"}
    first = [{**action, "id": str(number)} for number in range(30)]
    whole = admin("POST", "/api/v1/events", json={"events": first})
    assert (whole.get_json()["accepted"], whole.headers.get("Retry-After")) == (30, None)
    assert admin("POST", "/api/v1/events", json={"events": first}).get_json()["duplicates"] == 30
    more = admin("POST", "/api/v1/events", json={"events": [*first, *[action] * 15]})
    told = more.get_json()
    assert (told["accepted"], told["duplicates"]) == (10, 30), "what was paid before uses up nothing"
    assert {(r["code"], r["retry_after_s"]) for r in told["rejected"]} == {
        ("limited", int(more.headers["Retry-After"]))
    }
    assert 1 <= int(more.headers["Retry-After"]) <= 120
    assert admin("GET", "/api/v1/ingest/rejections").get_json()["reasons"] == {"limited": 5}
    assert [player("POST", UPDATE, json=claim_of()).status_code for _ in range(11)] == [200] * 10 + [429]


def test_a_batch_that_is_not_written_uses_up_nothing_of_the_limit(
    app: Flask, admin: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise Unavailable

    admin("PATCH", "/api/v1/settings", json={"limits": {"app_actions_per_minute": 40}})
    batch = {"events": [{"type": "action", "action_type": "post", "user": "ada"}] * 40}
    with monkeypatch.context() as patch:
        patch.setattr(idempotency, "keep", refuse)
        key = {"Idempotency-Key": "again"}
        assert admin("POST", "/api/v1/events", json=batch, headers=key).status_code == 503, "rolled back"
    with monkeypatch.context() as patch:
        patch.setattr(services_of(app).ingest, "_max_items", 10)
        assert admin("POST", "/api/v1/events", json=batch).status_code == 503, "not admitted"
    with monkeypatch.context() as patch:
        patch.setattr(TenantWrite, "follow_commit", refuse)  # after the claims were paid, before the commit
        assert admin("POST", "/api/v1/events", json=batch).status_code == 503, "not committed"
    assert admin("POST", "/api/v1/events", json=batch).get_json()["accepted"] == 40


def test_what_an_app_says_of_an_action_is_in_the_audit(admin: Caller) -> None:
    action = {"type": "action", "action_type": "post", "user": "ada", "page": "p"}
    said = {"object": "docs/Home", "metadata": {"k": [1]}, "ip": "2001:DB8::1", "user_agent": "Mozilla/5.0"}
    wrong: list[dict[str, Any]] = [
        {"object": "a b"},
        {"object": ""},
        {"metadata": {"k": "x" * 5000}},
        {"metadata": {"k": 2**60}},
        {"metadata": [1]},
        {"ip": "localhost"},
        {"ip": "fe80::1%eth0"},
        {"user_agent": ""},
        {"user_agent": "a\nb"},
        {"user_agent": "a" * 513},
    ]
    events = [{**action, **said}, action, *({**action, **one} for one in wrong), {"type": "view", "page": "p", **said}]
    told = admin("POST", "/api/v1/events", json={"events": events}).get_json()
    assert (told["accepted"], {r["code"] for r in told["rejected"]}) == (2, {"invalid"})
    assert [r["detail"].split(":")[0] for r in told["rejected"]] == [
        next(iter(one)) if one != {"metadata": [1]} else "Expected `object | null`, got `array` - at `$.metadata`"
        for one in [*wrong, said]
    ]
    lines = admin("GET", "/api/v1/users/ext:ada/actions").get_json()["items"]
    shown = {line["object"]: (line["metadata"], line["ip"], line["agent"]) for line in lines}
    assert shown == {"docs/Home": ({"k": [1]}, "2001:db8::1", "Mozilla/5.0"), "p": (None, None, None)}


def test_one_event_id_for_two_users_at_once_is_paid_once(app: Flask, admin: Caller, tenant: str) -> None:
    users = [f"u{number}" for number in range(20)]
    waiting = iter(users)

    def send() -> tuple[int, Any]:
        event = {"type": "action", "action_type": "post", "user": next(waiting), "id": "the same"}
        caller = Caller(app.test_client(), tenant, admin.token, admin.id)
        return send_until_admitted(caller, "POST", "/api/v1/events", {"events": [event]})

    answers = at_once(20, send)
    assert {status for status, _ in answers} == {202}, answers
    assert sum(told["accepted"] for _, told in answers) == 1
    with tenant_tx(tenant) as tx:
        assert tx.scalar(text("SELECT sum(current_score) FROM users")) == 10
        assert tx.scalar(text("SELECT count(*) FROM action_events")) == 1


def test_a_batch_is_written_whole_or_not_at_all(admin: Caller, tenant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_page(admin, "p")
    events = [{"type": "action", "action_type": "post", "user": "ada"}, {"type": "view", "page": "p"}]

    def fail(*_args: Any, **_more: Any) -> None:
        raise Unavailable

    with monkeypatch.context() as patched:
        patched.setattr("analytics.ingest.writes.payments.pay_all", fail)  # after the view is written
        assert admin("POST", "/api/v1/events", json={"events": events}).status_code == 503
    assert admin("POST", "/api/v1/events", json={"events": events}).get_json()["accepted"] == 2
    assert admin("GET", "/api/v1/users/ext:ada").get_json()["score"] == 10
    assert views_of(tenant) == 1


def test_who_may_not_make_tokens_cannot_vouch_by_events(admin: Caller, client: FlaskClient, tenant: str) -> None:
    admin("PUT", "/api/v1/actions/catalog/post", json={"points": 10, "requires_token": True})
    events = {"events": [{"type": "action", "action_type": "post", "user": "ada"}]}
    sender = client_of(client, tenant, "events:write")
    assert [r["code"] for r in sender("POST", "/api/v1/events", json=events).get_json()["rejected"]] == ["limited"]
    both = client_of(client, tenant, "events:write", "actions:write")
    assert both("POST", "/api/v1/events", json=events).get_json()["accepted"] == 1
