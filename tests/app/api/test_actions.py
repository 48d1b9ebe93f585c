"""The action catalog and action tokens over HTTP."""

from typing import Any
from uuid import uuid4

import pytest
from flask.testing import FlaskClient
from sqlalchemy import text
from werkzeug.test import TestResponse

from tenants.db import tenant_tx, utcnow
from tests.people import Caller, client_of, user_of


def test_an_impossible_cap_names_its_field(app_client: Caller) -> None:
    answer = app_client("PUT", "/api/v1/actions/catalog/post", json={"points": 10, "daily_cap": 9})
    assert (answer.status_code, list(answer.get_json()["errors"])) == (422, ["daily_cap"])
    assert app_client("GET", "/api/v1/actions/catalog").get_json()["items"] == []


def test_the_contract_says_which_is_points_and_which_is_times(client: FlaskClient) -> None:
    schemas = client.get("/api/openapi.json").get_json()["components"]["schemas"]
    for name in ("TermsIn", "ActionOut"):
        fields = schemas[name]["properties"]
        assert "points" in fields["daily_cap"]["description"]
        assert "times" in fields["daily_limit"]["description"]


def test_everybody_reads_the_catalog_and_only_admins_change_it(admin: Caller, player: Caller) -> None:
    path = "/api/v1/actions/catalog/post"
    post = next(one for one in player("GET", "/api/v1/actions/catalog").get_json()["items"] if one["type"] == "post")
    assert (post["points"], post["enabled"], post["daily_cap"]) == (10, True, None)
    assert player("PUT", path, json={"points": 1000}).status_code == 403
    assert player("DELETE", path).status_code == 403
    assert [admin("DELETE", path).status_code for _ in range(2)] == [204, 404]
    assert [one["type"] for one in player("GET", "/api/v1/actions/catalog").get_json()["items"]] == ["answer"]


def test_a_token_is_worth_the_points_of_the_catalog_or_less(admin: Caller, player: Caller) -> None:
    def issue(**more: Any) -> TestResponse:
        return admin("POST", "/api/v1/action-tokens", json={"user": player.id, "action_type": "answer", **more})

    assert [issue().get_json()["max_points"], issue(max_points=5).get_json()["max_points"]] == [100, 5]
    above = issue(max_points=101)
    assert (above.get_json()["code"], list(above.get_json()["errors"])) == ("score_above_catalog", ["max_points"])
    paid = player("PATCH", "/api/v1/scores", json={"action_token": issue(max_points=5).get_json()["action_token"]})
    assert paid.get_json()["delta"] == 5


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"action_type": "unknown"}, 422),
        ({"user": "00000000-0000-4000-8000-000000000000"}, 404),
        ({"expires_in": 0}, 422),
        ({"expires_in": 86_401}, 422),
        ({"max_points": 0}, 422),
        ({"object": ""}, 422),
    ],
)
def test_a_token_for_nobody_or_nothing_is_refused(
    admin: Caller, player: Caller, changes: dict[str, Any], status: int
) -> None:
    body = {"user": player.id, "action_type": "post", **changes}
    assert admin("POST", "/api/v1/action-tokens", json=body).status_code == status


def test_a_user_issues_no_token_for_themselves(player: Caller) -> None:
    body = {"user": player.id, "action_type": "post"}
    assert player("POST", "/api/v1/action-tokens", json=body).status_code == 403


def test_admins_list_the_actions_of_all_users(admin: Caller, player: Caller, client: FlaskClient, tenant: str) -> None:
    other = user_of(client, tenant)
    for caller, action in ((player, "post"), (other, "post"), (player, "answer")):
        claim = {"actionId": str(uuid4()), "actionType": action, "timestamp": utcnow().isoformat()}
        assert caller("POST", "/api/v1/scores/update", json=claim).status_code == 200

    def listed(**query: Any) -> list[tuple[str, str]]:
        answer = admin("GET", "/api/v1/actions", query_string=query)
        assert answer.status_code == 200, answer.text
        return [(item["user"]["id"], item["action_type"]) for item in answer.get_json()["items"]]

    everything = [(player.id, "answer"), (other.id, "post"), (player.id, "post")]
    assert listed() == everything
    first = admin("GET", "/api/v1/actions?limit=2").get_json()
    assert listed(limit=2, cursor=first["next_cursor"]) == everything[2:]
    assert set(first["items"][0]) >= {"id", "received_at", "points", "verification", "ip", "metadata", "user"}
    assert listed(user=player.id) == [everything[0], everything[2]]
    assert listed(type="post") == everything[1:]
    assert listed(user=player.id, type="post") == everything[2:]
    second = first["items"][1]["received_at"]
    assert (listed(**{"from": second}), listed(to=second)) == (everything[:2], everything[2:])
    assert listed(**{"from": "0001-01-01T00:00:00+23:00", "to": "9999-12-31T23:59:59-23:00"}) == everything
    assert listed(type="nothing") == []
    other("DELETE", "/api/v1/users/me")
    item = admin("GET", "/api/v1/actions?type=post").get_json()["items"][0]
    assert (item["user"]["id"], item["user"]["username"], item["ip"]) == (other.id, None, None), "erased"
    for query, status in (("user=ext:nobody", 404), ("from=yesterday", 422), ("cursor=zzz", 422), ("q=x", 422)):
        assert admin("GET", f"/api/v1/actions?{query}").status_code == status, query
    assert player("GET", "/api/v1/actions").status_code == 403
    assert client_of(client, tenant, "stats:read", "users:write")("GET", "/api/v1/actions").status_code == 403


def test_an_action_token_is_never_stored_and_so_never_sent_again(client: FlaskClient, tenant: str) -> None:
    app, user = client_of(client, tenant), user_of(client, tenant)
    app("PUT", "/api/v1/actions/catalog/post", json={"points": 5, "once_per_object": True, "requires_token": True})
    wanted = {"user": user.id, "action_type": "post", "object": "doc-1"}
    answers = [app("POST", "/api/v1/action-tokens", json=wanted, headers={"Idempotency-Key": "k-1"}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert all("Idempotent-Replay" not in answer.headers for answer in answers)
    tokens = [answer.get_json()["action_token"] for answer in answers]
    assert tokens[0] != tokens[1]
    with tenant_tx(tenant) as tx:
        assert tx.scalar(text("SELECT count(*) FROM idempotency_keys WHERE tenant_id = :t"), {"t": tenant}) == 0
    paid = [user("PATCH", "/api/v1/scores", json={"action_token": token}) for token in tokens]
    assert [answer.status_code for answer in paid] == [200, 409], "both together are paid once, with once_per_object"
    documented = client.get("/api/openapi.json").get_json()["paths"]["/api/v1/action-tokens"]["post"]
    assert "#/components/parameters/Idempotency-Key" not in str(documented)
    assert "Idempotency-Key" in documented["description"]
