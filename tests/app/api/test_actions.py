"""The action catalog and action tokens over HTTP."""

from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from tests.people import Caller


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
