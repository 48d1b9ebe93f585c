"""Boards of users: ties by who reached the score first, segments, suspended users."""

from datetime import timedelta
from itertools import count

import pytest
from flask.testing import FlaskClient
from sqlalchemy import text

from analytics import outbox
from analytics.boards import checking, projection, redis_store
from analytics.outbox import Kind
from tenants import redis as tenants_redis
from tenants.db import tenant_tx, utcnow
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


def test_a_user_is_on_the_boards_of_all_their_segments_and_leaves_one_alone(
    admin: Caller, client: FlaskClient, tenant: str, request: pytest.FixtureRequest
) -> None:
    ada, bob = (user_of(client, tenant) for _ in range(2))
    for one, segments in ((ada, ["eu", "pro"]), (bob, ["us", "pro"])):
        answer = admin("PATCH", f"/api/v1/users/{one.id}", json={"segments": segments}).get_json()
        assert (answer["segments"], answer["segment"]) == (segments, segments[0])
        one("POST", UPDATE, json=claim_of())

    def on(*segments: str) -> list[list[str]]:
        projection.project_all(tenant, now=utcnow)
        assert checking.check(tenant, now=utcnow()).differences == []
        return [members(admin, segment) for segment in segments]

    both = sorted([ada.id, bob.id])
    assert on("eu", "pro", "us") == [[ada.id], both, [bob.id]]
    admin("PATCH", f"/api/v1/users/{ada.id}", json={"segments": ["eu"]})
    assert on("eu", "pro", "us") == [[ada.id], [bob.id], [bob.id]]
    with tenant_tx(tenant) as tx:  # as the release before does
        tx.execute(text("UPDATE users SET segment = 'us' WHERE tenant_id = :t AND id = :u"), {"t": tenant, "u": ada.id})
        outbox.mark_stale(tx, Kind.USER, [ada.id])
    assert on("eu", "pro", "us") == [[], [bob.id], both]
    admin("PATCH", f"/api/v1/users/{ada.id}", json={"segments": ["us", "pro"]})
    with tenant_tx(tenant) as tx:  # projected by the release before, which knows the first segment only
        ids = {"t": tenant, "u": ada.id}
        tx.execute(text("UPDATE user_stats SET segment = 'eu' WHERE tenant_id = :t AND user_id = :u"), ids)
    assert on("eu", "pro", "us") == [[], both, both]
    with tenants_redis.boards().client() as redis:
        redis_store.delete_tenant(redis, tenant)
    assert on("eu", "pro", "us") == [[], both, both], "rebuilt"
    request.getfixturevalue("no_redis")
    assert [members(admin, segment, source="postgres") for segment in ("eu", "pro", "us")] == [[], both, both]


def test_check_finds_a_user_who_is_missing_on_the_board_of_another_segment(
    admin: Caller, client: FlaskClient, tenant: str
) -> None:
    ada = user_of(client, tenant)
    admin("PATCH", f"/api/v1/users/{ada.id}", json={"segments": ["eu", "pro"]})
    ada("POST", UPDATE, json=claim_of())
    projection.project_all(tenant, now=utcnow)
    with tenants_redis.boards().client() as redis:
        redis.zremrangebyrank(f"lb:{tenant}:users:pro:all:points", 0, -1)
    (difference,) = checking.check(tenant, now=utcnow()).differences
    assert (difference.where, difference.member) == (f"lb:{tenant}:users:pro:all:points", f"user {ada.id}")


# Another address for each read: answers are kept for a second.
LIMITS = count(100)


def members(admin: Caller, segment: str, *, source: str = "redis") -> list[str]:
    answer = admin("GET", f"/api/v1/leaderboards?scope=users:{segment}&limit={next(LIMITS)}").get_json()
    assert answer["source"] == source or not answer["items"]
    return sorted(row["user"]["id"] for row in answer["items"])
