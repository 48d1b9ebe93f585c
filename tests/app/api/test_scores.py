"""Scores that cannot be forged: paid once, by the catalog, within limits (P2, P6)."""

import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError

from analytics import maintenance
from analytics.boards import checking, projection, recomputing
from analytics.scores import ledger, limits
from analytics.scores.limits import Breaker
from analytics.scores.tokens import ActionTokens
from app.http.services import services_of
from tenants import redis as tenants_redis
from tenants import settings as tenant_settings
from tenants.db import owner_tx, tenant_tx, utcnow
from tenants.errors import Unavailable
from tenants.users import Role
from tests.analytics.conftest import make_page, views_of
from tests.people import Caller, client_of, log_in, user_of

UPDATE, CLAIM = "/api/v1/scores/update", "/api/v1/scores"


@pytest.fixture
def admin(client: FlaskClient, tenant: str) -> Caller:
    caller = client_of(client, tenant)
    for name, terms in {"post": {"points": 10}, "answer": {"points": 100}}.items():
        assert caller("PUT", f"/api/v1/actions/catalog/{name}", json=terms).status_code == 200
    return caller


@pytest.fixture
def player(admin: Caller, client: FlaskClient, tenant: str) -> Caller:
    return user_of(client, tenant)


@pytest.fixture
def no_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = tenants_redis.boards()
    monkeypatch.setattr(guarded, "_down_since", 0.0)
    monkeypatch.setattr(guarded, "_next_probe_at", float("inf"))


def claim_of(**changes: Any) -> dict[str, Any]:
    return {"actionId": str(uuid4()), "actionType": "post", "timestamp": utcnow().isoformat(), **changes}


def token_for(admin: Caller, user: str, **more: Any) -> str:
    answer = admin("POST", "/api/v1/action-tokens", json={"user": user, "action_type": "answer", **more})
    assert answer.status_code == 201, answer.text
    return str(answer.get_json()["action_token"])


def entries(tenant: str, user: str) -> list[tuple[int, int, int]]:
    with tenant_tx(tenant) as tx:
        rows = tx.execute(
            text("SELECT previous, delta, score FROM score_ledger WHERE user_id = :u ORDER BY id"), {"u": user}
        )
        return [(row.previous, row.delta, row.score) for row in rows]


def at_once(times: int, what: Callable[[], Any]) -> list[Any]:
    gate = threading.Barrier(times)

    def run(_: int) -> Any:
        gate.wait(20)
        return what()

    with ThreadPoolExecutor(times) as pool:
        return list(pool.map(run, range(times)))


def test_an_action_is_worth_what_the_catalog_says(player: Caller, tenant: str) -> None:
    first = player("POST", UPDATE, json=claim_of(userId=str(uuid4()), scoreDelta=3))
    assert first.status_code == 200, first.text
    told = first.get_json()
    assert (told["score"], told["delta"], told["rank"]) == (10, 10, 1)
    assert first.headers["RateLimit"].startswith('"scores";r=9;')
    assert first.headers["RateLimit-Policy"] == '"scores";q=10;w=60'
    assert entries(tenant, player.id) == [(0, 10, 10)], "whatever userId says"
    me = player("GET", "/api/v1/users/me").get_json()
    assert (me["score"], me["total_actions"]) == (10, 1)


@pytest.mark.parametrize("redis", ["up", "down"])
def test_fifty_threads_with_one_action_id_are_paid_once(
    app: Flask, player: Caller, tenant: str, redis: str, request: pytest.FixtureRequest
) -> None:
    if redis == "down":
        request.getfixturevalue("no_redis")
    body = claim_of()

    def send() -> tuple[int, dict[str, Any]]:
        answer = Caller(app.test_client(), tenant, player.token, player.id)("POST", UPDATE, json=body)
        return answer.status_code, answer.get_json()

    answers = at_once(50, send)
    assert all(answer == answers[0] for answer in answers), answers
    assert answers[0][0] == 200
    assert entries(tenant, player.id) == [(0, 10, 10)]


@pytest.mark.parametrize("redis", ["up", "down"])
def test_fifty_threads_with_one_token_are_paid_once(
    app: Flask, admin: Caller, player: Caller, tenant: str, redis: str, request: pytest.FixtureRequest
) -> None:
    token = token_for(admin, player.id)
    if redis == "down":
        request.getfixturevalue("no_redis")

    def send() -> tuple[int, Any]:
        answer = Caller(app.test_client(), tenant, player.token, player.id)(
            "PATCH", CLAIM, json={"action_token": token}
        )
        return answer.status_code, answer.get_json()

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


def test_the_same_action_id_with_another_payload_is_refused(player: Caller, tenant: str) -> None:
    body = claim_of()
    assert player("POST", UPDATE, json=body).status_code == 200
    for change in ({"actionType": "answer"}, {"scoreDelta": 4}, {"timestamp": utcnow().isoformat()}):
        answer = player("POST", UPDATE, json={**body, **change})
        assert (answer.status_code, answer.get_json()["code"]) == (422, "payload_differs")
    assert player("POST", UPDATE, json=body).status_code == 200
    assert len(entries(tenant, player.id)) == 1


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"scoreDelta": 11}, "score_above_catalog"),
        ({"scoreDelta": -1}, "score_above_catalog"),
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


@pytest.mark.parametrize("redis", ["up", "down"])
def test_the_eleventh_update_in_a_minute_is_refused_but_replays_are_not(
    player: Caller, tenant: str, redis: str, request: pytest.FixtureRequest
) -> None:
    if redis == "down":
        request.getfixturevalue("no_redis")
    bodies = [claim_of() for _ in range(11)]
    for number, body in enumerate(bodies[:10]):
        headers = {"X-Forwarded-For": f"10.0.0.{number}"}
        assert player("POST", UPDATE, json=body, headers=headers).status_code == 200
    refused = player("POST", UPDATE, json=bodies[10], headers={"X-Forwarded-For": "10.9.9.9"})
    assert (refused.status_code, refused.get_json()["code"]) == (429, "rate_limited")
    assert 1 <= int(refused.headers["Retry-After"]) <= 60
    assert refused.headers["RateLimit"].startswith('"scores";r=0;t=')
    assert player("POST", UPDATE, json=bodies[0]).status_code == 200, "a replay is answered before limits"
    assert len(entries(tenant, player.id)) == 10


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


def test_the_ledger_cannot_be_changed_by_the_role_of_requests(player: Caller, tenant: str) -> None:
    player("POST", UPDATE, json=claim_of())
    for statement in (
        "UPDATE score_ledger SET delta = 0 WHERE tenant_id = :t",
        "DELETE FROM score_ledger WHERE tenant_id = :t",
        "UPDATE action_events SET points = 0 WHERE tenant_id = :t",
        "DELETE FROM action_events WHERE tenant_id = :t",
        "TRUNCATE score_ledger",
    ):
        with pytest.raises(ProgrammingError, match="permission denied"), tenant_tx(tenant) as tx:
            tx.execute(text(statement), {"t": tenant})


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
    many = [{"type": "action", "action_type": "post", "user": "ada"} for _ in range(12)]
    limited = admin("POST", "/api/v1/events", json={"events": many}).get_json()
    assert limited["accepted"] == 9
    assert {r["code"] for r in limited["rejected"]} == {"limited"}
    reasons = admin("GET", "/api/v1/ingest/rejections").get_json()["reasons"]
    assert reasons["limited"] == 3
    assert reasons["unknown_action"] == 2


def pay(tenant: str, user: str, points: int, at: Any) -> None:
    with tenant_tx(tenant) as tx:
        held = ledger.lock_user(tx, UUID(user))
        assert held is not None
        ledger.add_entry(tx, held, source=f"test:{uuid4()}", delta=points, at=at, payload_hash=b"")


@pytest.mark.parametrize("points", [1000, 2**53 - 1])
def test_who_reached_it_first_is_above(
    admin: Caller, client: FlaskClient, tenant: str, points: int, monkeypatch: pytest.MonkeyPatch
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
    guarded = tenants_redis.boards()
    monkeypatch.setattr(guarded, "_down_since", 0.0)
    monkeypatch.setattr(guarded, "_next_probe_at", float("inf"))
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


def test_check_finds_a_forged_score_a_broken_chain_and_a_wrong_board(player: Caller, tenant: str) -> None:
    player("POST", UPDATE, json=claim_of())
    projection.project_all(tenant, now=utcnow)
    assert checking.check(tenant, now=utcnow()).differences == []
    with tenants_redis.boards().client() as redis:
        key = f"lb:{tenant}:users:all:points"
        members: Any = redis.zrange(key, 0, -1)
        redis.zadd(key, {members[0]: 11})
    (difference,) = checking.check(tenant, now=utcnow()).differences
    assert (difference.found, difference.expected) == (11, 10)
    with owner_tx() as tx:
        tx.execute(text("UPDATE users SET current_score = 12 WHERE tenant_id = :t"), {"t": tenant})
    assert "users.current_score" in {d.where for d in checking.check(tenant, now=utcnow()).differences}


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


def test_a_flag_is_raised_and_settled_by_an_admin(
    admin: Caller, client: FlaskClient, tenant: str, player: Caller
) -> None:
    admin("PATCH", "/api/v1/settings", json={"integrity": {"points_per_hour": 150}})
    admin("PUT", "/api/v1/actions/catalog/jackpot", json={"points": 200})
    assert player("POST", UPDATE, json=claim_of()).status_code == 200
    assert admin("GET", "/api/v1/integrity/flags").get_json()["items"] == []
    assert player("POST", UPDATE, json=claim_of(actionType="jackpot")).status_code == 200
    assert player("POST", UPDATE, json=claim_of(actionType="jackpot")).status_code == 200
    (flag,) = admin("GET", "/api/v1/integrity/flags?state=open").get_json()["items"]
    assert (flag["rule"], flag["user_id"]) == ("points_per_hour", player.id)
    path = f"/api/v1/integrity/flags/{flag['id']}/resolve"
    assert player("POST", path, json={"action": "dismiss"}).status_code == 403
    assert admin("POST", path, json={"action": "suspend"}).get_json()["state"] == "suspended"
    assert player("POST", UPDATE, json=claim_of()).status_code == 401, "shut out"
    settled = admin("POST", path, json={"action": "reverse", "note": "made up"}).get_json()
    assert (settled["state"], settled["reversed_entries"]) == ("reversed", 3)
    assert admin("POST", path, json={"action": "dismiss"}).status_code == 409
    assert entries(tenant, player.id)[-1][2] == 0
    admin("PATCH", f"/api/v1/users/{player.id}", json={"suspended": False})
    projection.project_all(tenant, now=utcnow)
    assert admin("GET", "/api/v1/leaderboards?scope=users&window=all").get_json()["items"] == []
    assert checking.check(tenant, now=utcnow()).differences == []
    ledger_ = admin("GET", f"/api/v1/users/{player.id}/ledger?limit=4").get_json()
    assert [entry["delta"] for entry in ledger_["items"]] == [-200, -200, -10, 200]
    more = admin("GET", f"/api/v1/users/{player.id}/ledger?limit=4&cursor={ledger_['next_cursor']}").get_json()
    assert [entry["delta"] for entry in more["items"]] == [200, 10]


def test_what_is_taken_back_late_leaves_every_window_with_what_was_given(
    admin: Caller, player: Caller, tenant: str
) -> None:
    pay(tenant, player.id, 500, utcnow() - timedelta(days=2))
    player("POST", UPDATE, json=claim_of(timestamp="2999-01-01T00:00:00Z"))
    (flag,) = admin("GET", "/api/v1/integrity/flags").get_json()["items"]
    with owner_tx() as tx:
        older = "UPDATE integrity_flags SET created_at = created_at - interval '2 days' WHERE tenant_id = :t"
        tx.execute(text(older), {"t": tenant})
    assert player("POST", UPDATE, json=claim_of()).status_code == 200
    path = f"/api/v1/integrity/flags/{flag['id']}/resolve"
    assert admin("POST", path, json={"action": "reverse"}).get_json()["reversed_entries"] == 2
    assert player("POST", UPDATE, json=claim_of()).status_code == 200
    projection.project_all(tenant, now=utcnow)
    for window in ("1d", "7d", "all"):
        (row,) = admin("GET", f"/api/v1/leaderboards?scope=users&window={window}").get_json()["items"]
        assert row["value"] == 10, window
    assert checking.check(tenant, now=utcnow()).differences == []


def test_who_may_not_make_tokens_cannot_vouch_by_events(admin: Caller, client: FlaskClient, tenant: str) -> None:
    admin("PUT", "/api/v1/actions/catalog/post", json={"points": 10, "requires_token": True})
    events = {"events": [{"type": "action", "action_type": "post", "user": "ada"}]}
    sender = client_of(client, tenant, "events:write")
    assert [r["code"] for r in sender("POST", "/api/v1/events", json=events).get_json()["rejected"]] == ["limited"]
    both = client_of(client, tenant, "events:write", "actions:write")
    assert both("POST", "/api/v1/events", json=events).get_json()["accepted"] == 1


def test_a_tenant_may_have_suspicious_users_suspended_at_once(admin: Caller, player: Caller) -> None:
    admin("PATCH", "/api/v1/settings", json={"integrity": {"points_per_hour": 5, "suspend_automatically": True}})
    assert player("POST", UPDATE, json=claim_of()).status_code == 200
    assert player("POST", UPDATE, json=claim_of()).status_code == 401
    (flag,) = admin("GET", "/api/v1/integrity/flags").get_json()["items"]
    assert flag["state"] == "suspended"
    path = f"/api/v1/users/{flag['user_id']}"
    assert admin("GET", path).get_json()["suspended"] is True
    dismissed = admin("POST", f"/api/v1/integrity/flags/{flag['id']}/resolve", json={"action": "dismiss"})
    assert dismissed.get_json()["state"] == "dismissed"
    assert admin("GET", path).get_json()["suspended"] is False, "it is lifted"
    admin("PATCH", "/api/v1/settings", json={"integrity": {"points_per_hour": 10}})
    wait_for_settings()
    again = user_token(player)
    assert again("POST", UPDATE, json=claim_of()).status_code == 200, "what was dismissed does not count against them"
    assert len(admin("GET", "/api/v1/integrity/flags").get_json()["items"]) == 1


def wait_for_settings() -> None:
    tenant_settings._recent.clear()


def user_token(player: Caller) -> Caller:
    """The same user, logged in again."""
    with tenant_tx(player.tenant) as tx:
        username = tx.scalar(text("SELECT username FROM users WHERE id = :u"), {"u": player.id})
    return replace(player, token=log_in(player.http, player.tenant, str(username))["access_token"])


def test_one_event_id_for_two_users_at_once_is_paid_once(app: Flask, admin: Caller, tenant: str) -> None:
    users = [f"u{number}" for number in range(20)]
    waiting = iter(users)

    def send() -> tuple[int, Any]:
        event = {"type": "action", "action_type": "post", "user": next(waiting), "id": "the same"}
        caller = Caller(app.test_client(), tenant, admin.token, admin.id)
        answer = caller("POST", "/api/v1/events", json={"events": [event]})
        return answer.status_code, answer.get_json()

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
        patched.setattr("app.api.events.writes.apply", fail)
        assert admin("POST", "/api/v1/events", json={"events": events}).status_code == 503
    assert admin("POST", "/api/v1/events", json={"events": events}).get_json()["accepted"] == 2
    assert admin("GET", "/api/v1/users/ext:ada").get_json()["score"] == 10
    assert views_of(tenant) == 1


def test_erasing_somebody_with_a_common_name_lets_nothing_count_twice(
    admin: Caller, client: FlaskClient, tenant: str
) -> None:
    make_page(admin, "p")
    body = {"events": [{"type": "view", "page": "p"}]}
    headers = {"Idempotency-Key": "k"}
    assert admin("POST", "/api/v1/events", json=body, headers=headers).get_json()["accepted"] == 1
    assert user_of(client, tenant, username="accepted")("DELETE", "/api/v1/users/me").status_code == 200
    again = admin("POST", "/api/v1/events", json=body, headers=headers)
    assert (again.get_json()["accepted"], again.headers["Idempotent-Replay"]) == (1, "true")
    assert views_of(tenant) == 1


def test_a_key_sees_names_on_a_public_scoreboard_and_no_ids_of_the_tenants(
    admin: Caller, client: FlaskClient, tenant: str
) -> None:
    event = {"type": "action", "action_type": "post", "user": "ada@example.org"}
    admin("POST", "/api/v1/events", json={"events": [event]})
    projection.project_all(tenant, now=utcnow)
    key = admin("POST", "/api/v1/keys", json={"origins": ["https://a.example"]}).get_json()["key"]
    board = "/api/v1/leaderboards?scope=users&window=all"
    headers = {"X-Plaudit-Key": key}
    wait_for_settings()
    assert client.get(board, headers=headers).get_json()["code"] == "public_boards_only"
    admin("PATCH", "/api/v1/settings", json={"public_scoreboard": True})
    wait_for_settings()
    assert "ada@example.org" in admin("GET", board).text
    for path in (board, "/api/v1/leaderboards/export.csv?scope=users&window=all"):
        answer = client.get(path, headers=headers)
        assert answer.status_code == 200
        assert "ada@example.org" not in answer.text
    oracle = "/api/v1/leaderboards/rank?scope=users&member=ext:ada@example.org"
    assert client.get(oracle, headers=headers).status_code == 404


def let_through(breaker: Breaker, max_per_minute: int) -> None:
    breaker.require(max_per_minute)
    breaker.passed()


def test_a_breaker_opens_probes_and_closes() -> None:
    clock = [1000.0]
    breaker = Breaker("test", clock=lambda: clock[0])
    for _ in range(100):
        let_through(breaker, 100)
    with pytest.raises(Unavailable) as refused:
        breaker.require(100)
    assert refused.value.code == "score_spike"
    assert 1 <= (refused.value.retry_after_s or 0) <= limits.OPEN_S
    clock[0] += 5
    with pytest.raises(Unavailable):
        breaker.require(100)
    clock[0] += 6
    for _ in range(limits.PROBES):
        let_through(breaker, 100)
    clock[0] += 11
    for _ in range(51):
        let_through(breaker, 100)


def test_a_breaker_stays_open_while_the_rush_goes_on() -> None:
    clock = [1000.0]
    breaker = Breaker("test", clock=lambda: clock[0])
    refused = 0
    for _ in range(3000):
        clock[0] += 0.01
        try:
            let_through(breaker, 600)
        except Unavailable:
            refused += 1
    assert refused > 1500


def test_a_breaker_sees_what_is_pending_in_a_transaction() -> None:
    breaker = Breaker("test", clock=lambda: 1000.0)
    for pending in range(100):
        breaker.require(100, pending=pending)
    with pytest.raises(Unavailable):
        breaker.require(100, pending=100)


def test_a_batch_above_the_tenants_spike_is_cut(admin: Caller, tenant: str) -> None:
    admin("PATCH", "/api/v1/settings", json={"limits": {"score_spike_per_minute": 2}})
    actions = [{"type": "action", "user": f"u{n}", "action_type": "post"} for n in range(5)]
    told = admin("POST", "/api/v1/events", json={"events": actions}).get_json()
    assert (told["accepted"], [r["code"] for r in told["rejected"]]) == (2, ["limited"] * 3)


def test_a_breaker_counts_nothing_that_is_rolled_back() -> None:
    breaker = Breaker("test", clock=lambda: 1000.0)
    for _ in range(200):
        breaker.require(100)
    for _ in range(100):
        let_through(breaker, 100)
    with pytest.raises(Unavailable):
        breaker.require(100)


def test_a_spike_of_a_tenant_is_held_up_with_503(admin: Caller, player: Caller) -> None:
    admin("PATCH", "/api/v1/settings", json={"limits": {"score_spike_per_minute": 2}})
    statuses = [player("POST", UPDATE, json=claim_of()).status_code for _ in range(4)]
    assert statuses[0] == 200
    assert statuses[-1] == 503


def test_erasing_a_user_forgets_who_they_were_everywhere(
    admin: Caller, client: FlaskClient, tenant: str, logged: Callable[[], list[dict[str, Any]]]
) -> None:
    name = "forgetful_fred"
    fred = user_of(client, tenant, username=name)
    admin("PATCH", f"/api/v1/users/{fred.id}", json={"bio": name, "segment": "north"}, headers={"Idempotency-Key": "k"})
    for page in ("a", "b"):
        make_page(admin, page)
        assert fred("PUT", f"/api/v1/pages/{page}/like").get_json()["likes"] == 1
    headers = {"User-Agent": name}
    admin("PUT", "/api/v1/actions/catalog/post", json={"points": 10, "once_per_object": True})
    claim = claim_of(metadata={"who": name}, object=f"profile/{name}")
    assert fred("POST", UPDATE, json=claim, headers=headers).status_code == 200
    assert fred("POST", UPDATE, json=claim_of(timestamp="2999-01-01T00:00:00Z")).status_code == 422
    (flag,) = admin("GET", "/api/v1/integrity/flags").get_json()["items"]
    path = f"/api/v1/integrity/flags/{flag['id']}/resolve"
    assert admin("POST", path, json={"action": "dismiss", "note": f"{name} is fine"}).status_code == 200
    projection.project_all(tenant, now=utcnow)
    board = "/api/v1/leaderboards?scope=tenant&window=all&metric=likes"
    assert len(admin("GET", board).get_json()["items"]) == 2

    held = fred("GET", "/api/v1/users/me/export").get_json()
    assert held["profile"]["username"] == name
    assert sorted(like["page"] for like in held["likes"]) == ["a", "b"]
    assert held["actions"][0]["agent"] == name
    assert held["ledger"][0]["delta"] == 10

    before = len(logged())
    receipt = fred("DELETE", "/api/v1/users/me")
    assert receipt.status_code == 200, receipt.text
    assert receipt.get_json()["likes"] == 2
    assert receipt.get_json()["audit_rows"] == 1
    assert fred("GET", "/api/v1/me").status_code == 401
    assert admin("GET", f"/api/v1/users/{fred.id}").status_code == 404
    projection.project_all(tenant, now=utcnow)
    assert admin("GET", f"{board}&limit=50").get_json()["items"] == []
    assert admin("GET", "/api/v1/leaderboards?scope=users&window=all").get_json()["items"] == []
    with tenant_tx(tenant) as tx:
        assert tx.scalar(text("SELECT sum(delta) FROM score_ledger WHERE user_id = :u"), {"u": fred.id}) == 10
    report = checking.check(tenant, now=utcnow())
    assert report.differences == []
    assert mentions(tenant, name) == []
    with tenants_redis.boards().client() as redis:
        for key in redis.scan_iter("*"):
            assert name.encode() not in key + redis.dump(key)
    assert not any(name in str(line) for line in logged()[before:])


def mentions(tenant: str, name: str) -> list[str]:
    """The tables in which this name stands."""
    with owner_tx() as tx:
        tables = tx.scalars(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")).all()
        found = []
        for table in tables:
            hit = tx.scalar(
                text(f"""
                    SELECT count(*) FROM {table} x WHERE x::text ILIKE :name
                       OR x::text ILIKE '%' || encode(convert_to(:bare, 'UTF8'), 'hex') || '%'
                """),
                {"name": f"%{name}%", "bare": name},
            )
            found += [table] if hit else []
        return found


def test_members_see_their_own_only(admin: Caller, client: FlaskClient, tenant: str, player: Caller) -> None:
    other = user_of(client, tenant)
    for path in ("ledger", "actions", "export"):
        assert player("GET", f"/api/v1/users/me/{path}").status_code == 200
        assert player("GET", f"/api/v1/users/{other.id}/{path}").status_code == 404
        assert admin("GET", f"/api/v1/users/{other.id}/{path}").status_code == 200
    assert player("DELETE", f"/api/v1/users/{other.id}").status_code == 404
    boss = user_of(client, tenant, role=Role.ADMIN)
    writer = client_of(client, tenant, "users:write")
    assert writer("DELETE", f"/api/v1/users/{boss.id}").status_code == 403
    assert writer("DELETE", f"/api/v1/users/{other.id}").status_code == 200


def test_old_history_goes_and_totals_stay(admin: Caller, player: Caller, tenant: str) -> None:
    make_page(admin, "p")
    admin("POST", "/api/v1/pages/p/views")
    player("POST", UPDATE, json=claim_of())
    with owner_tx() as tx:
        for table, column in (("page_views_hour", "bucket_hour"), ("user_points_hour", "bucket_hour")):
            tx.execute(
                text(f"UPDATE {table} SET {column} = {column} - interval '401 days' WHERE tenant_id = :t"),
                {"t": tenant},
            )
        tx.execute(text("UPDATE seen_events SET seen_on = seen_on - 50 WHERE tenant_id = :t"), {"t": tenant})
    purged = maintenance.purge_history(now=utcnow())
    assert purged["page_views_hour"] >= 1
    assert purged["user_points_hour"] >= 1
    recomputing.recompute_tenant(tenant, now=utcnow, progress=lambda _: None)
    stats = admin("GET", "/api/v1/pages/p/stats").get_json()
    assert (stats["views"]["30d"], stats["views"]["all"]) == (0, 1)
    assert admin("GET", f"/api/v1/users/{player.id}").get_json()["score"] == 10


def test_the_audits_months_are_made_ahead_and_dropped_when_they_are_over(tenant: str) -> None:
    def months() -> set[str]:
        with owner_tx() as tx:
            return set(
                tx.scalars(
                    text("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'action_events'::regclass")
                )
            )

    now = utcnow()
    with owner_tx() as tx:
        tx.execute(text("SELECT make_month_of_actions('2020-01-01')"))
    assert "action_events_2020_01" in months()
    maintenance.keep_months(now=now)
    maintenance.keep_months(now=now)
    assert "action_events_2020_01" not in months()
    assert f"action_events_{now:%Y_%m}" in months()
    assert len(months()) >= 3
