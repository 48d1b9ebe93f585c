"""An action is paid once, whatever is sent again or at once (P2, P6)."""

import hashlib
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import text

from tenants.db import owner_tx, utcnow
from tests.analytics.scores.conftest import UPDATE, at_once, claim_of, entries, send_until_admitted
from tests.people import Caller


@pytest.mark.parametrize("redis", ["up", "down"])
def test_fifty_threads_with_one_action_id_are_paid_once(
    app: Flask, player: Caller, tenant: str, redis: str, request: pytest.FixtureRequest
) -> None:
    if redis == "down":
        request.getfixturevalue("no_redis")
    body = claim_of()

    def send() -> tuple[int, Any]:
        caller = Caller(app.test_client(), tenant, player.token, player.id)
        return send_until_admitted(caller, "POST", UPDATE, body)

    answers = at_once(50, send)
    assert all(answer == answers[0] for answer in answers), answers
    assert answers[0][0] == 200
    assert entries(tenant, player.id) == [(0, 10, 10)]


def test_the_same_action_id_with_another_payload_is_refused(player: Caller, tenant: str) -> None:
    body = claim_of()
    assert player("POST", UPDATE, json=body).status_code == 200
    for change in ({"actionType": "answer"}, {"scoreDelta": 4}, {"timestamp": utcnow().isoformat()}):
        answer = player("POST", UPDATE, json={**body, **change})
        assert (answer.status_code, answer.get_json()["code"]) == (422, "payload_differs")
    assert player("POST", UPDATE, json=body).status_code == 200
    assert len(entries(tenant, player.id)) == 1


def test_caps_cooldowns_and_objects(admin: Caller, player: Caller) -> None:
    def put(**terms: Any) -> None:
        assert admin("PUT", "/api/v1/actions/catalog/post", json={"points": 10, **terms}).status_code == 200

    def act(**more: Any) -> str:
        answer = player("POST", UPDATE, json=claim_of(**more))
        return "paid" if answer.status_code == 200 else str(answer.get_json()["code"])

    put(once_per_object=True)
    assert [act(object="a"), act(object="a"), act(object="b")] == ["paid", "already_done", "paid"]
    assert [act(object=same) for same in ("A", "b/", "B//")] == ["already_done"] * 3, "in whatever spelling"
    put(daily_cap=30)
    assert [act(), act()] == ["paid", "daily_cap_reached"]
    put(daily_limit=4)
    assert [act(), act()] == ["paid", "daily_limit_reached"]
    put(cooldown_s=60)
    assert act() == "cooldown"
    put(requires_token=True)
    assert act() == "action_token_required"
    put(enabled=False)
    assert act() == "unknown_action"
    assert admin("DELETE", "/api/v1/actions/catalog/post").status_code == 204
    assert admin("DELETE", "/api/v1/actions/catalog/post").status_code == 404
    assert act() == "unknown_action"


@pytest.mark.parametrize(
    ("first", "again"),
    [("x", "X"), ("x", "x/"), ("a/b", "a//b"), ("Docs/Home//", "docs/home"), ("x/", "X///"), ("", "/")],
)
def test_an_object_counts_once_in_whatever_spelling(admin: Caller, player: Caller, first: str, again: str) -> None:
    admin("PUT", "/api/v1/actions/catalog/post", json={"points": 10, "once_per_object": True})
    said = {"object": first} if first else {}
    assert player("POST", UPDATE, json=claim_of(**said)).status_code == 200
    second = player("POST", UPDATE, json=claim_of(object=again))
    assert (second.status_code, second.get_json()["code"]) == (409, "already_done")
    assert player("POST", UPDATE, json=claim_of(object="another")).status_code == 200


def test_what_was_done_under_the_old_key_of_an_object_is_not_paid_again(
    admin: Caller, player: Caller, tenant: str
) -> None:
    admin("PUT", "/api/v1/actions/catalog/post", json={"points": 10, "once_per_object": True})
    assert player("POST", UPDATE, json=claim_of(object="Old/")).status_code == 200
    old = hashlib.sha256(f"{player.id}:post:Old/".encode()).hexdigest()
    with owner_tx() as tx:
        tx.execute(text("UPDATE score_ledger SET once_key = :old WHERE tenant_id = :t"), {"old": old, "t": tenant})
    again = player("POST", UPDATE, json=claim_of(object="Old/"))
    assert (again.status_code, again.get_json()["code"]) == (409, "already_done")
