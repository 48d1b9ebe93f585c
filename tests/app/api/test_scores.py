"""Scores over HTTP: the catalog's points, and every refusal with its reason."""

from typing import Any
from uuid import uuid4

import pytest

from tests.analytics.scores.conftest import UPDATE, claim_of, entries
from tests.people import Caller


def test_an_action_is_worth_what_the_catalog_says(player: Caller, tenant: str) -> None:
    first = player("POST", UPDATE, json=claim_of(userId=str(uuid4()), scoreDelta=3))
    assert first.status_code == 200, first.text
    answer = first.get_json()
    assert (answer["score"], answer["delta"], answer["rank"]) == (10, 10, 1)
    assert first.headers["RateLimit"].startswith('"scores";r=9;')
    assert first.headers["RateLimit-Policy"] == '"scores";q=10;w=60'
    assert entries(tenant, player.id) == [(0, 10, 10)], "whatever userId says"
    me = player("GET", "/api/v1/users/me").get_json()
    assert (me["score"], me["total_actions"]) == (10, 1)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"scoreDelta": 11}, "score_above_catalog"),
        ({"scoreDelta": 0}, "invalid"),
        ({"scoreDelta": -1}, "invalid"),
        ({"actionType": "nonsense"}, "unknown_action"),
        ({"actionId": "nonsense"}, "invalid"),
        ({"timestamp": "2026-01-01"}, "invalid"),
        ({"timestamp": "9999-12-31T23:59:59+00:00"}, "impossible_time"),
        ({"timestamp": "2001-01-01T00:00:00Z"}, "impossible_time"),
        ({"metadata": {"a": "x" * 5000}}, "invalid"),
        ({"metadata": {"a": [{"b": 1e20}]}}, "invalid"),
        ({"clientInfo": {"a": 2**60}}, "invalid"),
        ({"object": "h\u00e9llo"}, "invalid"),
        ({"object": "hello\n"}, "invalid"),
        ({"surplus": 1}, "invalid"),
    ],
)
def test_what_is_wrong_is_refused_with_its_reason(
    player: Caller, admin: Caller, tenant: str, change: dict[str, Any], code: str
) -> None:
    answer = player("POST", UPDATE, json=claim_of(**change))
    assert (answer.status_code, answer.get_json()["code"]) == (422, code), answer.text
    assert entries(tenant, player.id) == []
    flags = admin("GET", "/api/v1/integrity/flags").get_json()["items"]
    assert [flag["rule"] for flag in flags] == (["impossible_clock"] if "9999" in str(change) else [])


def test_a_refused_delta_says_from_where_on_it_is_accepted(player: Caller) -> None:
    answer = player("POST", UPDATE, json=claim_of(scoreDelta=0)).get_json()
    assert answer["errors"] == {"scoreDelta": ["Must be greater than or equal to 1."]}
