"""Sockets and streams, on a real live process: what they are sent, and how they end."""

import time
from datetime import datetime
from typing import Any

import pytest
import requests
from flask.testing import FlaskClient

from analytics.boards import projection
from app.live.follower import CHECK_FIRST_AFTER_S
from tenants import liveness
from tenants.db import tenant_tx, utcnow
from tests.app.live.conftest import BOARD, TOPIC, like, opened
from tests.live import Live, events, ticket_for
from tests.people import Caller, client_of, user_of
from tests.service import eventually


def test_a_like_is_sent_to_the_followers_of_its_board(live: Live, wiki: Caller) -> None:
    socket = live.follow(wiki, **BOARD)
    first = socket.read()
    assert first == {"type": "subscribed", "v": 1, "seq": 1, "topic": TOPIC, "version": 0}
    like(wiki, "ann")
    frame = socket.read()
    assert frame == {"type": "invalidated", "v": 1, "seq": 2, "topic": TOPIC, "version": frame["version"]}
    board = wiki("GET", "/api/v1/leaderboards?scope=tenant&window=7d&metric=likes").get_json()
    assert board["version"] == frame["version"] > 0
    socket.close()


def test_with_top_a_frame_has_the_rows(live: Live, wiki: Caller) -> None:
    socket = live.follow(wiki, **BOARD, top=3)
    assert [socket.read()["type"], socket.read()["items"]] == ["subscribed", []]
    like(wiki, "ann")
    top = socket.read_until("top")
    (row,) = top["items"]
    assert (row["rank"], row["value"], row["page"]["external_id"], top["version"] > 0) == (1, 1, "a", True)
    socket.close()


def test_only_changes_of_followed_boards_are_sent(live: Live, wiki: Caller) -> None:
    socket = live.follow(wiki, scope="space:other", window="7d", metric="likes")
    socket.read_until("subscribed")
    socket.send(op="subscribe", **BOARD)
    socket.read_until("subscribed", topic=TOPIC)
    socket.send(op="unsubscribe", **BOARD)
    socket.read_until("unsubscribed", topic=TOPIC)
    like(wiki, "ann")
    assert socket.silent_for(0.5)
    socket.send(op="ping")
    assert socket.read()["type"] == "pong"
    socket.close()


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("nonsense", "malformed"),
        ("[]", "malformed"),
        ("{}", "unknown_op"),
        ('{"op": "drop"}', "unknown_op"),
        ('{"op": []}', "unknown_op"),
        ('{"op": {"x": 1}}', "unknown_op"),
        ('{"op": "subscribe", "scope": "tenant", "window": "2d"}', "invalid"),
        ('{"op": "subscribe", "scope": "tenant", "top": 1000}', "invalid"),
        ('{"op": "subscribe", "scope": "tenant", "top": "3"}', "invalid"),
        ('{"op": "subscribe", "scope": "tenant:x"}', "unknown_scope"),
        ('{"op": "subscribe", "scope": "users", "metric": "views"}', "unknown_metric"),
        ('{"op": "subscribe", "scope": "tenant", "extra": 1}', "invalid"),
    ],
)
def test_a_wrong_message_gets_an_error_and_the_socket_stays_open(
    live: Live, wiki: Caller, message: str, code: str
) -> None:
    socket = live.connect(f"/ws/leaderboards?ticket={ticket_for(wiki)}")
    socket.raw.send(message)
    said = socket.read()
    assert (said["type"], said["code"]) == ("error", code)
    socket.send(op="ping")
    assert socket.read()["type"] == "pong"
    socket.close()


def test_a_message_that_is_too_long_ends_the_socket(live: Live, wiki: Caller) -> None:
    socket = live.connect(f"/ws/leaderboards?ticket={ticket_for(wiki)}")
    socket.raw.send("x" * 5000)
    assert socket.close_code() == 1009


def test_a_client_that_sends_too_often_or_follows_too_many_boards_is_refused(live: Live, wiki: Caller) -> None:
    socket = live.connect(f"/ws/leaderboards?ticket={ticket_for(wiki)}")
    for number in range(51):
        socket.send(op="subscribe", scope=f"space:s{number}", window="7d", metric="likes")
    assert socket.read_until("error")["code"] == "too_many_subscriptions"
    for _ in range(30):
        socket.send(op="ping")
    assert socket.read_until("error", code="rate_limited")
    assert socket.close_code() == 1008


# --- How it ends -----------------------------------------------------------------------------------------------------


def test_logging_out_ends_the_socket(live: Live, client: FlaskClient, tenant: str) -> None:
    user = user_of(client, tenant)
    socket = live.follow(user, **BOARD)
    socket.read_until("subscribed")
    assert user("POST", "/api/v1/auth/logout").status_code == 204
    assert socket.close_code() == 4401


def test_a_change_that_revokes_nothing_ends_no_socket(live: Live, wiki: Caller) -> None:
    """Such as the creation of the tenant, which is read again if PostgreSQL was away within a minute of it."""
    socket = live.follow(wiki, **BOARD)
    socket.read_until("subscribed")
    with tenant_tx(wiki.tenant) as tx:
        liveness.record(tx, [liveness.TENANT, f"client:{wiki.id}"])  # its commit waits for the live process
    for _ in range(3):
        socket.send(op="ping")
        assert socket.read_until("pong")
        time.sleep(0.05)


def test_revoking_a_client_or_a_key_ends_its_sockets(live: Live, client: FlaskClient, wiki: Caller) -> None:
    other = client_of(client, wiki.tenant)
    key = wiki("POST", "/api/v1/keys", json={"origins": ["https://wiki.example"]}).get_json()["key"]
    by_key = client.post(f"/api/v1/live/tickets?key={key}", headers={"Origin": "https://wiki.example"}).get_json()
    sockets = [live.follow(other, **BOARD), live.connect(f"/ws/leaderboards?ticket={by_key['ticket']}")]
    wiki("DELETE", f"/api/v1/clients/{other.id}")
    wiki("DELETE", f"/api/v1/keys/{key}")
    assert [socket.close_code() for socket in sockets] == [4401, 4401]


@pytest.mark.parametrize(
    ("more", "less"),
    [
        ({"sees_private": True}, {"sees_private": False}),
        ({"role": "admin"}, {"role": "member"}),
        ({"signup_sees": "all"}, {"signup_sees": "public"}),
    ],
)
def test_open_connections_are_unsubscribed_from_private_boards_when_they_lose_the_right(
    live: Live, client: FlaskClient, wiki: Caller, more: dict[str, Any], less: dict[str, Any]
) -> None:
    stranger = user_of(client, wiki.tenant, sees_private=False)
    path = "/api/v1/settings" if "signup_sees" in more else f"/api/v1/users/{stranger.id}"
    socket = live.connect(f"/ws/leaderboards?ticket={ticket_for(stranger)}")
    assert wiki("PATCH", path, json=more).status_code == 200

    def follows() -> bool:
        socket.send(op="subscribe", **BOARD)
        return bool(socket.read()["type"] == "subscribed")

    eventually(follows, within_s=20)
    socket.send(op="subscribe", scope="public", window="7d", metric="likes")
    socket.read_until("subscribed", topic="public:7d:likes")
    stream = events(opened(live, f"topic={TOPIC}&ticket={ticket_for(stranger)}"))
    last_id, greeting = next(stream)
    assert greeting["type"] == "subscribed"
    time.sleep(CHECK_FIRST_AFTER_S + 0.5)  # until the first check of its rights; the next is 20 seconds later
    assert wiki("PATCH", path, json=less).status_code == 200
    socket.read_until("unsubscribed", topic=TOPIC, within_s=10)  # and not at the next check
    assert (next(stream)[1]["type"], greeting["topic"]) == ("unsubscribed", TOPIC)
    like(wiki, "ann")
    assert socket.read()["topic"] == "public:7d:likes", "what is public is followed on"
    assert socket.silent_for(0.5)
    socket.send(op="subscribe", **BOARD)
    assert socket.read()["code"] == "public_boards_only"
    socket.close()
    again = requests.get(f"{live.url}/api/v1/live/events?topic={TOPIC}", headers={"Last-Event-ID": last_id}, timeout=5)
    assert again.status_code == 403, "nor does a stream that broke off go on with it"


# --- The scoreboard --------------------------------------------------------------------------------------------------


def award(wiki: Caller, user: Caller) -> None:
    token = wiki("POST", "/api/v1/action-tokens", json={"user": user.id, "action_type": "post"}).get_json()
    answer = user("PATCH", "/api/v1/scores", json={"action_token": token["action_token"]})
    assert answer.status_code == 200, answer.text
    projection.project_all(wiki.tenant, now=utcnow)


def test_the_top_ten_are_sent_at_once_and_when_they_change(live: Live, client: FlaskClient, wiki: Caller) -> None:
    wiki("PUT", "/api/v1/actions/catalog/post", json={"points": 5})
    ann, ben = user_of(client, wiki.tenant), user_of(client, wiki.tenant)
    socket = live.connect(f"/ws/scoreboard/top10?ticket={ticket_for(ann)}")
    first = socket.read()
    assert (first["type"], first["items"], first["changed_positions"]) == ("top", [], [])
    award(wiki, ann)
    second = socket.read()
    assert [row["user"]["id"] for row in second["items"]] == [ann.id]
    assert second["changed_positions"] == [1]
    award(wiki, ben)
    award(wiki, ben)
    last = socket.read()
    while [row["value"] for row in last["items"]] != [10, 5]:
        last = socket.read()
    assert [row["user"]["id"] for row in last["items"]] == [ben.id, ann.id]
    assert 1 in last["changed_positions"]
    assert {"timestamp", "version", "seq"} <= last.keys()
    assert wiki("PATCH", f"/api/v1/users/{ann.id}", json={"display_name": "Ann"}).status_code == 200
    projection.project_all(wiki.tenant, now=utcnow)
    renamed = socket.read()
    assert [row["user"]["display_name"] for row in renamed["items"]] == [None, "Ann"]
    assert renamed["changed_positions"] == [2]
    like(wiki, "somebody")  # no user's board
    assert socket.silent_for(0.5)
    socket.close()


# --- The stream ------------------------------------------------------------------------------------------------------


def test_a_stream_has_the_frames_of_a_socket(live: Live, wiki: Caller) -> None:
    answer = opened(live, f"topic={TOPIC}&topic=space:docs:1d:views&ticket={ticket_for(wiki)}")
    said = events(answer)
    greetings = [next(said)[1], next(said)[1]]
    assert {(one["type"], one["topic"]) for one in greetings} == {
        ("subscribed", TOPIC),
        ("subscribed", "space:docs:1d:views"),
    }
    like(wiki, "ann")
    frame = next(said)[1]
    assert (frame["type"], frame["topic"], frame["version"] > 0, frame["seq"]) == ("invalidated", TOPIC, True, 3)
    answer.close()


def test_a_stream_of_the_best_users_has_what_the_scoreboard_has(live: Live, client: FlaskClient, wiki: Caller) -> None:
    wiki("PUT", "/api/v1/actions/catalog/post", json={"points": 5})
    ann, ben = user_of(client, wiki.tenant), user_of(client, wiki.tenant)
    award(wiki, ann)
    answer = opened(live, f"topic=users:all:points&top=10&ticket={ticket_for(ann)}")
    lines = answer.iter_lines(chunk_size=1, decode_unicode=True)
    first = [next(lines), next(lines), next(lines), next(lines)]
    assert [line.partition(":")[0] for line in first] == ["retry", "id", "data", ""], "retry is of the first event"
    said = events(answer)
    top = next(message for _, message in said if message["type"] == "top")
    assert ([row["user"]["id"] for row in top["items"]], top["changed_positions"]) == ([ann.id], [1])
    award(wiki, ben)
    top = next(message for _, message in said if message["type"] == "top")
    assert top["changed_positions"] == [2], "ann's position stays as it was"
    assert datetime.fromisoformat(top["timestamp"]).tzinfo is not None
    answer.close()


def test_an_interrupted_stream_continues_with_its_last_event_id(live: Live, wiki: Caller) -> None:
    address = f"topic={TOPIC}&top=5&ticket={ticket_for(wiki)}"
    answer = opened(live, address)
    said = events(answer)
    next(said)
    last_id, top = next(said)
    assert (top["type"], top["items"]) == ("top", [])
    answer.close()
    like(wiki, "ann")
    again = opened(live, address, **{"Last-Event-ID": last_id})  # as browsers do it: with the same, spent ticket
    said = events(again)
    greeting = next(said)[1]
    assert (greeting["type"], greeting["seq"]) == ("subscribed", top["seq"] + 1)
    rows = next(message for _, message in said if message.get("items"))  # at once, or when the change is published
    assert (rows["version"] > 0, rows["items"][0]["value"]) == (True, 1)
    again.close()
    for wrong in ("7", "7.x.y", last_id[:-1] + ("0" if last_id[-1] != "0" else "1"), "x." + last_id, "9" * 40):
        url = f"{live.url}/api/v1/live/events?{address}"
        assert requests.get(url, headers={"Last-Event-ID": wrong}, timeout=5).status_code == 401


def test_logging_out_ends_the_stream_and_it_cannot_be_continued(live: Live, client: FlaskClient, tenant: str) -> None:
    user = user_of(client, tenant)
    address = f"topic={TOPIC}&ticket={ticket_for(user)}"
    said = events(opened(live, address))
    last_id, _ = next(said)
    user("POST", "/api/v1/auth/logout")
    assert [message["code"] for _, message in said] == ["invalid_ticket"]
    url = f"{live.url}/api/v1/live/events?{address}"
    assert requests.get(url, headers={"Last-Event-ID": last_id}, timeout=5).status_code == 401


def test_a_head_request_of_a_stream_leaves_no_connection_open(live: Live, wiki: Caller) -> None:
    wiki("PATCH", "/api/v1/settings", json={"limits": {"live_connections": 1}})
    for _ in range(3):
        address = f"{live.url}/api/v1/live/events?topic={TOPIC}&ticket={ticket_for(wiki)}"
        assert requests.head(address, timeout=5).status_code == 200
    live.follow(wiki, **BOARD).close()


def test_a_stream_that_its_client_closed_makes_room_for_another(live: Live, wiki: Caller) -> None:
    wiki("PATCH", "/api/v1/settings", json={"limits": {"live_connections": 1}})
    answer = opened(live, f"topic={TOPIC}&ticket={ticket_for(wiki)}")
    next(events(answer))
    answer.close()
    eventually(lambda: live.refusal(f"/ws/leaderboards?ticket={ticket_for(wiki)}")[0] == 101, within_s=4)


@pytest.mark.parametrize("query", ["", "topic=x", "topic=tenant:7d:nonsense", "topic=tenant:7d:likes&top=0"])
def test_a_stream_of_nothing_is_refused(live: Live, wiki: Caller, query: str) -> None:
    answer = requests.get(f"{live.url}/api/v1/live/events?{query}&ticket={ticket_for(wiki)}", timeout=5)
    assert answer.status_code == 422
    assert answer.json()["errors"]


# --- Quests ----------------------------------------------------------------------------------------------------------

OFFER = {"title": "Translate it", "description": "All of it, please.", "reward_xp": 10, "reward_reputation": 1}


def test_quests_are_followed_by_topic(live: Live, client: FlaskClient, wiki: Caller) -> None:
    creator, performer = user_of(client, wiki.tenant), user_of(client, wiki.tenant, sees_private=False)
    socket = live.connect(f"/ws/leaderboards?ticket={ticket_for(performer)}")
    own = f"quests:user:{performer.id}"
    for topic in ("quests:open", own):
        socket.send(op="subscribe", topic=topic)
        assert socket.read_until("subscribed", topic=topic)["version"] == 0
    quest = creator("POST", "/api/v1/quests", json=OFFER).get_json()
    assert socket.read_until("invalidated", topic="quests:open")["version"] > 0
    performer("POST", f"/api/v1/quests/{quest['id']}/claim")
    assert {socket.read_until("invalidated")["topic"] for _ in range(2)} == {"quests:open", own}
    creator("POST", "/api/v1/quests", json=OFFER)
    assert socket.read_until("invalidated")["topic"] == "quests:open", "not one's own"
    socket.send(op="unsubscribe", topic="quests:open")
    socket.read_until("unsubscribed", topic="quests:open")
    socket.close()


def test_others_quests_are_for_clients_and_no_quests_for_keys(live: Live, client: FlaskClient, wiki: Caller) -> None:
    user = user_of(client, wiki.tenant)
    key = wiki("POST", "/api/v1/keys", json={"origins": ["https://wiki.example"]}).get_json()["key"]
    by_key = client.post(f"/api/v1/live/tickets?key={key}", headers={"Origin": "https://wiki.example"}).get_json()
    stranger = live.connect(f"/ws/leaderboards?ticket={by_key['ticket']}")
    other = live.connect(f"/ws/leaderboards?ticket={ticket_for(user_of(client, wiki.tenant))}")
    app = live.connect(f"/ws/leaderboards?ticket={ticket_for(wiki)}")
    for socket, topic, expected in (
        (stranger, "quests:open", "forbidden"),
        (other, f"quests:user:{user.id}", "forbidden"),
        (other, "quests:user:x", "invalid"),
        (app, f"quests:user:{user.id}", None),
    ):
        socket.send(op="subscribe", topic=topic)
        said = socket.read()
        assert said.get("code") == expected, (topic, said)
    for socket in (stranger, other, app):
        socket.close()


def test_a_stream_follows_quests(live: Live, client: FlaskClient, wiki: Caller) -> None:
    creator = user_of(client, wiki.tenant)
    answer = opened(live, f"topic=quests:open&ticket={ticket_for(creator)}")
    said = events(answer)
    assert next(said)[1]["topic"] == "quests:open"
    creator("POST", "/api/v1/quests", json=OFFER)
    assert next(said)[1]["type"] == "invalidated"
    answer.close()
