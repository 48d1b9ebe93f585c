"""An action token pays one user for one action, once (P2)."""

from datetime import timedelta
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from analytics.scores.tokens import ActionTokens
from app.http.services import services_of
from tenants.db import utcnow
from tests.analytics.scores.conftest import CLAIM, at_once, entries, send_until_admitted, token_for
from tests.people import Caller, user_of


@pytest.mark.parametrize("redis", ["up", "down"])
def test_fifty_threads_with_one_token_are_paid_once(
    app: Flask, admin: Caller, player: Caller, tenant: str, redis: str, request: pytest.FixtureRequest
) -> None:
    token = token_for(admin, player.id)
    if redis == "down":
        request.getfixturevalue("no_redis")

    def send() -> tuple[int, Any]:
        caller = Caller(app.test_client(), tenant, player.token, player.id)
        return send_until_admitted(caller, "PATCH", CLAIM, {"action_token": token})

    answers = at_once(50, send)
    assert all(answer == answers[0] for answer in answers), answers
    assert entries(tenant, player.id) == [(0, 100, 100)]
    other = player("PATCH", CLAIM, json={"action_token": token, "score_delta": 5})
    assert (other.status_code, other.get_json()["code"]) == (422, "payload_differs")


def test_a_token_is_bound_to_everything_it_says(
    app: Flask, admin: Caller, player: Caller, client: FlaskClient, tenant: str, other_tenant: str
) -> None:
    token = token_for(admin, player.id, max_points=50)
    somebody = user_of(client, tenant)
    stranger = user_of(client, other_tenant)
    for caller in (somebody, stranger):
        answer = caller("PATCH", CLAIM, json={"action_token": token})
        assert (answer.status_code, answer.get_json()["code"]) == (403, "invalid_action_token")
    for place in range(0, len(token), 7):
        altered = token[:place] + chr(ord(token[place]) ^ 1) + token[place + 1 :]
        answer = player("PATCH", CLAIM, json={"action_token": altered})
        assert answer.status_code in {403, 422}, (place, answer.text)
    above = player("PATCH", CLAIM, json={"action_token": token, "score_delta": 51})
    assert (above.status_code, above.get_json()["code"]) == (422, "score_above_catalog")
    assert entries(tenant, player.id) == []
    late = services_of(app).action_tokens.issue(
        tenant_id=tenant,
        user_id=player.id,
        action="answer",
        object_=None,
        max_points=100,
        expires_at=utcnow() - timedelta(seconds=1),
        now=utcnow(),
    )
    assert player("PATCH", CLAIM, json={"action_token": late}).get_json()["code"] == "action_token_expired"
    foreign = ActionTokens("another-secret-key-" * 4).issue(
        tenant_id=tenant,
        user_id=player.id,
        action="answer",
        object_=None,
        max_points=100,
        expires_at=utcnow() + timedelta(hours=1),
        now=utcnow(),
    )
    assert player("PATCH", CLAIM, json={"action_token": foreign}).get_json()["code"] == "invalid_action_token"
    paid = player("PATCH", CLAIM, json={"action_token": token, "score_delta": 20})
    assert paid.get_json()["delta"] == 20
    too_much = admin(
        "POST", "/api/v1/action-tokens", json={"user": player.id, "action_type": "answer", "max_points": 101}
    )
    assert too_much.status_code == 422
