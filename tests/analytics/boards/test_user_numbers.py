"""Boards of users: ties by who reached the score first, segments, suspended users."""

from datetime import timedelta

import pytest
from flask.testing import FlaskClient

from analytics.boards import checking, projection
from tenants.db import utcnow
from tests.analytics.scores.conftest import UPDATE, claim_of, pay
from tests.people import Caller, user_of


@pytest.mark.parametrize("points", [1000, 2**53 - 1])
def test_who_reached_it_first_is_above(
    admin: Caller, client: FlaskClient, tenant: str, points: int, request: pytest.FixtureRequest
) -> None:
    players = [user_of(client, tenant) for _ in range(4)]
    now = utcnow()
    order = [2, 0, 3, 1]
    for place, number in enumerate(order):
        pay(tenant, players[number].id, points, now + timedelta(milliseconds=place))
    twins = sorted((user_of(client, tenant) for _ in range(2)), key=lambda one: one.id)
    for twin in reversed(twins):
        pay(tenant, twin.id, points, now + timedelta(milliseconds=9))
    projection.project_all(tenant, now=utcnow)
    expected = [players[number].id for number in order] + [twin.id for twin in twins]

    def read(window: str) -> tuple[list[str], str]:
        answer = admin("GET", f"/api/v1/leaderboards?scope=users&window={window}").get_json()
        assert all(row["value"] == points for row in answer["items"])
        return [row["user"]["id"] for row in answer["items"]], answer["source"]

    for window in ("1d", "all"):
        assert read(window) == (expected, "redis")
    rank = players[3]("GET", "/api/v1/leaderboards/rank?scope=users&window=7d&member=me&around=1").get_json()
    assert (rank["rank"], rank["user"]["id"]) == (3, players[3].id)
    assert [row["user"]["id"] for row in rank["around"]] == expected[1:4]
    report = checking.check(tenant, now=utcnow())
    assert report.differences == []
    request.getfixturevalue("no_redis")
    assert read("30d") == (expected, "postgres")
    walked: list[str] = []
    path = "/api/v1/leaderboards?scope=users&window=30d&limit=2"
    while True:
        page = admin("GET", path).get_json()
        walked += [row["user"]["id"] for row in page["items"]]
        if page["next_cursor"] is None:
            break
        path = f"/api/v1/leaderboards?scope=users&window=30d&limit=2&cursor={page['next_cursor']}"
    assert walked == expected


def test_segments_have_boards_of_their_own_and_who_is_suspended_leaves_them(
    admin: Caller, client: FlaskClient, tenant: str
) -> None:
    players = [user_of(client, tenant) for _ in range(2)]
    for number, one in enumerate(players):
        admin("PATCH", f"/api/v1/users/{one.id}", json={"segment": f"team-{number}"})
        one("POST", UPDATE, json=claim_of())

    def on(scope: str) -> list[str]:
        projection.project_all(tenant, now=utcnow)
        items = admin("GET", f"/api/v1/leaderboards?scope={scope}&limit={100 + len(scope)}").get_json()["items"]
        return sorted(row["user"]["id"] for row in items)

    assert on("users:team-0") == [players[0].id]
    assert on("users") == sorted(one.id for one in players)
    admin("PATCH", f"/api/v1/users/{players[0].id}", json={"segment": "team-1"})
    assert on("users:team-1") == sorted(one.id for one in players)
    assert on("users:team-0") == []
    admin("PATCH", f"/api/v1/users/{players[0].id}", json={"suspended": True})
    assert on("users:team-1&window=7d") == [players[1].id]
    assert checking.check(tenant, now=utcnow()).differences == []
