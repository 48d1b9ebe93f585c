"""Sockets and streams, on a real live process: who may come in, what they are told, and how it ends."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import requests
from flask.testing import FlaskClient

from analytics.boards import projection
from app.run.data_folder import Addresses
from app.settings import Settings
from tenants import ceilings, tickets
from tenants.ceilings import Ceiling
from tenants.db import owner_tx, tenant_tx, utcnow
from tests.live import Live, events, ticket_for
from tests.people import Caller, client_of, user_of
from tests.service import eventually

BOARD = {"scope": "tenant", "window": "7d", "metric": "likes"}
TOPIC = "tenant:7d:likes"


@pytest.fixture(scope="module")
def live(settings: Settings, addresses: Addresses) -> Iterator[Live]:
    with Live(settings, addresses) as running:
        yield running


@pytest.fixture
def wiki(client: FlaskClient, tenant: str) -> Caller:
    app = client_of(client, tenant)
    app("PUT", "/api/v1/pages/a", json={"space": "docs", "title": "A", "url": "/a", "visibility": "public"})
    return app


def like(wiki: Caller, user: str, page: str = "a") -> None:
    assert wiki("PUT", f"/api/v1/pages/{page}/likes/{user}").status_code == 200
    projection.project_all(wiki.tenant, now=utcnow)


def test_a_like_is_told_to_who_follows_the_board(live: Live, wiki: Caller) -> None:
    socket = live.follow(wiki, **BOARD)
    first = socket.read()
    assert first == {"type": "subscribed", "v": 1, "seq": 1, "topic": TOPIC, "version": 0}
    like(wiki, "ann")
    told = socket.read()
    assert told == {"type": "invalidated", "v": 1, "seq": 2, "topic": TOPIC, "version": 1}
    board = wiki("GET", "/api/v1/leaderboards?scope=tenant&window=7d&metric=likes").get_json()
    assert board["version"] == told["version"]
    socket.close()


def test_with_top_the_rows_come_along(live: Live, wiki: Caller) -> None:
    socket = live.follow(wiki, **BOARD, top=3)
    assert [socket.read()["type"], socket.read()["items"]] == ["subscribed", []]
    like(wiki, "ann")
    top = socket.read_until("top")
    (row,) = top["items"]
    assert (row["rank"], row["value"], row["page"]["external_id"], top["version"]) == (1, 1, "a", 1)
    socket.close()


def test_only_what_is_followed_is_told(live: Live, wiki: Caller) -> None:
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
def test_a_message_that_is_wrong_gets_an_error_and_the_socket_goes_on(
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


def test_who_talks_too_much_or_follows_too_many_is_refused(live: Live, wiki: Caller) -> None:
    socket = live.connect(f"/ws/leaderboards?ticket={ticket_for(wiki)}")
    for number in range(51):
        socket.send(op="subscribe", scope=f"space:s{number}", window="7d", metric="likes")
    assert socket.read_until("error")["code"] == "too_many_subscriptions"
    for _ in range(30):
        socket.send(op="ping")
    assert socket.read_until("error", code="rate_limited")
    assert socket.close_code() == 1008


# --- Who may come in -------------------------------------------------------------------------------------------------


def test_a_ticket_is_for_one_use_and_half_a_minute(live: Live, wiki: Caller) -> None:
    ticket = ticket_for(wiki)
    live.connect(f"/ws/leaderboards?ticket={ticket}").close()
    assert live.refusal(f"/ws/leaderboards?ticket={ticket}") == (401, "invalid_ticket")
    old = ticket_for(wiki)
    with owner_tx() as tx:
        tx.execute(tickets.LiveTicket.__table__.update().values(expires_at=utcnow()))  # type: ignore[attr-defined]
    assert live.refusal(f"/ws/leaderboards?ticket={old}") == (401, "invalid_ticket")


@pytest.mark.parametrize("ticket", ["", "x", "tkt_", "tkt_nobody_x", "tkt_A;B_x", "tkt_" + "x" * 3000])
def test_no_ticket_no_socket(live: Live, ticket: str) -> None:
    for path in ("/ws/leaderboards", "/ws/scoreboard/top10"):
        assert live.refusal(f"{path}?ticket={ticket}")[0] == 401
    assert requests.get(f"{live.url}/api/v1/live/events?topic={TOPIC}&ticket={ticket}", timeout=5).status_code == 401


def test_what_a_client_opened_ends_with_its_token(live: Live, wiki: Caller) -> None:
    holder = tickets.consume(ticket_for(wiki), now=utcnow())
    assert holder.until is not None
    assert 3500 < holder.until - time.time() <= 3600
    ends_at = int(time.time()) + 5
    with tenant_tx(wiki.tenant) as tx:
        soon, _ = tickets.issue(tx, replace(holder, until=ends_at), now=utcnow())
        over, _ = tickets.issue(tx, replace(holder, until=int(time.time())), now=utcnow())
    assert live.refusal(f"/ws/leaderboards?ticket={over}") == (401, "invalid_ticket")
    stream = events(opened(live, f"topic={TOPIC}&ticket={soon}"))
    last_id, _ = next(stream)
    eventually(lambda: time.time() >= ends_at)
    address = f"{live.url}/api/v1/live/events?topic={TOPIC}&ticket={soon}"
    assert requests.get(address, headers={"Last-Event-ID": last_id}, timeout=5).status_code == 401


def test_a_ticket_of_one_tenant_shows_nothing_of_another(
    live: Live, client: FlaskClient, wiki: Caller, other_tenant: str
) -> None:
    ticket = ticket_for(wiki)
    forged = ticket.replace(f"_{wiki.tenant}_", f"_{other_tenant}_")
    assert live.refusal(f"/ws/leaderboards?ticket={forged}") == (401, "invalid_ticket")
    other = client_of(client, other_tenant)
    spy = live.follow(other, **BOARD)
    spy.read_until("subscribed")
    spy.send(op="subscribe", **BOARD | {"scope": f"{wiki.tenant}:tenant"})
    assert spy.read()["code"] == "unknown_scope"
    like(wiki, "ann")
    assert spy.silent_for(0.5)
    spy.close()


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1", "https://wiki.example.evil"])
def test_a_foreign_origin_is_refused_before_the_upgrade(live: Live, wiki: Caller, origin: str) -> None:
    wiki("PATCH", "/api/v1/settings", json={"allowed_origins": ["https://wiki.example"]})
    for path in ("/ws/leaderboards", "/ws/scoreboard/top10"):
        refused = live.refusal(f"{path}?ticket={ticket_for(wiki)}", suppress_origin=False, origin=origin)
        assert refused == (403, "origin_not_allowed")
    address = f"{live.url}/api/v1/live/events?topic={TOPIC}&ticket={ticket_for(wiki)}"
    assert requests.get(address, headers={"Origin": origin}, timeout=5).status_code == 403


def test_our_own_and_the_tenants_origins_may_come_in(live: Live, wiki: Caller) -> None:
    wiki("PATCH", "/api/v1/settings", json={"allowed_origins": ["https://wiki.example"]})

    def refusal(origin: str) -> tuple[int, str]:
        return live.refusal(f"/ws/leaderboards?ticket={ticket_for(wiki)}", suppress_origin=False, origin=origin)

    eventually(lambda: refusal("https://wiki.example") == (101, ""))  # settings are kept for a moment
    for origin in ("https://wiki.example", "http://127.0.0.1:8000", "http://localhost:8000"):
        assert refusal(origin) == (101, "")


def test_a_key_follows_public_boards_from_its_origins(live: Live, client: FlaskClient, wiki: Caller) -> None:
    key = wiki("POST", "/api/v1/keys", json={"origins": ["https://wiki.example"]}).get_json()["key"]
    headers = {"X-Plaudit-Key": key, "Origin": "https://wiki.example"}
    ticket = client.post("/api/v1/live/tickets", headers=headers).get_json()["ticket"]
    socket = live.connect(f"/ws/leaderboards?ticket={ticket}", suppress_origin=False, origin="https://wiki.example")
    socket.send(op="subscribe", **BOARD)
    assert socket.read()["code"] == "public_boards_only"
    socket.send(op="subscribe", scope="users", window="all")
    assert socket.read()["code"] == "public_boards_only"
    another = client.post("/api/v1/live/tickets", headers=headers).get_json()["ticket"]
    assert live.refusal(f"/ws/scoreboard/top10?ticket={another}") == (403, "public_boards_only")
    socket.send(op="subscribe", **BOARD | {"scope": "public"})
    assert socket.read()["type"] == "subscribed"
    socket.close()


def test_a_handshake_that_is_none_is_a_problem_and_not_an_error_of_ours(live: Live, wiki: Caller) -> None:
    address = f"{live.url}/ws/leaderboards?ticket={ticket_for(wiki)}"
    plain = requests.get(address, timeout=5)
    assert plain.status_code == 400
    half = requests.get(address, headers={"Connection": "Upgrade", "Upgrade": "websocket"}, timeout=5)
    assert (half.status_code, half.json()["code"]) == (426, "upgrade_required")
    address = f"{live.url}/ws/leaderboards?ticket={ticket_for(wiki)}"
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    keyless = requests.get(address, headers=upgrade, timeout=5)
    assert (keyless.status_code, keyless.json()["code"]) == (400, "malformed")


def test_a_ticket_in_a_request_that_cannot_be_read_is_in_no_log(live: Live, wiki: Caller) -> None:
    ticket = ticket_for(wiki)
    with socket.create_connection(("127.0.0.1", live.port), timeout=5) as raw:
        raw.sendall(f"GET /ws/leaderboards?ticket={ticket}\r\n\r\n".encode())
        assert b"400" in raw.recv(4096)
    eventually(lambda: "Invalid HTTP request line" in live.said() and "tkt_" not in live.said())
    assert ticket not in live.said()


def test_requests_sent_all_at_once_hold_up_nobody(live: Live, wiki: Caller) -> None:
    other = live.follow(wiki, **BOARD)
    other.read_until("subscribed")
    with socket.create_connection(("127.0.0.1", live.port), timeout=30) as raw:

        def send() -> None:
            with contextlib.suppress(OSError):
                raw.sendall(b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n" * 4000)

        def read() -> None:
            with contextlib.suppress(OSError):
                while raw.recv(1 << 20):
                    pass

        sender, reader = threading.Thread(target=send), threading.Thread(target=read)
        sender.start()
        reader.start()
        time.sleep(0.2)
        other.send(op="ping")
        assert other.read_until("pong", within_s=1.5)
        sender.join()
        with contextlib.suppress(OSError):
            raw.shutdown(socket.SHUT_RDWR)
        reader.join()
    other.close()


def test_a_tenant_has_so_many_connections_and_no_more(live: Live, wiki: Caller) -> None:
    wiki("PATCH", "/api/v1/settings", json={"limits": {"live_connections": 2}})
    open_ones = [live.follow(wiki, **BOARD) for _ in range(2)]
    refused = live.refusal(f"/ws/leaderboards?ticket={ticket_for(wiki)}")
    assert refused == (429, "too_many_connections")
    open_ones[0].close()
    eventually(lambda: live.refusal(f"/ws/leaderboards?ticket={ticket_for(wiki)}")[0] == 101)
    open_ones[1].close()


def test_a_tenant_cannot_allow_itself_more_connections_than_its_ceiling(live: Live, wiki: Caller) -> None:
    wiki("PATCH", "/api/v1/settings", json={"limits": {"live_connections": 100_000}})
    with owner_tx() as tx:
        ceilings.change(tx, wiki.tenant, {Ceiling.SOCKETS: 1})
    first = live.follow(wiki, **BOARD)
    assert live.refusal(f"/ws/leaderboards?ticket={ticket_for(wiki)}") == (409, "ceiling_reached")
    first.close()


def test_the_api_says_where_the_sockets_are(client: FlaskClient, wiki: Caller, settings: Settings) -> None:
    assert wiki("POST", "/api/v1/live/tickets").get_json()["live_url"] == settings.live_url
    answer = client.get("/ws/leaderboards?ticket=x")
    assert answer.status_code == 404
    assert settings.live_url in answer.get_json()["detail"]


# --- How it ends -----------------------------------------------------------------------------------------------------


def test_logging_out_ends_the_socket(live: Live, client: FlaskClient, tenant: str) -> None:
    user = user_of(client, tenant)
    socket = live.follow(user, **BOARD)
    socket.read_until("subscribed")
    assert user("POST", "/api/v1/auth/logout").status_code == 204
    assert socket.close_code() == 4401


def test_a_ticket_of_a_session_that_ended_is_void(live: Live, client: FlaskClient, tenant: str) -> None:
    user = user_of(client, tenant)
    ticket = ticket_for(user)
    user("POST", "/api/v1/auth/logout")
    assert live.refusal(f"/ws/leaderboards?ticket={ticket}") == (401, "invalid_ticket")


def test_revoking_a_client_or_a_key_ends_its_sockets(live: Live, client: FlaskClient, wiki: Caller) -> None:
    other = client_of(client, wiki.tenant)
    key = wiki("POST", "/api/v1/keys", json={"origins": ["https://wiki.example"]}).get_json()["key"]
    by_key = client.post(f"/api/v1/live/tickets?key={key}", headers={"Origin": "https://wiki.example"}).get_json()
    sockets = [live.follow(other, **BOARD), live.connect(f"/ws/leaderboards?ticket={by_key['ticket']}")]
    wiki("DELETE", f"/api/v1/clients/{other.id}")
    wiki("DELETE", f"/api/v1/keys/{key}")
    assert [socket.close_code() for socket in sockets] == [4401, 4401]


def test_a_process_that_goes_says_so(settings: Settings, addresses: Addresses, wiki: Caller) -> None:
    with Live(settings, addresses) as going:
        sockets = [going.follow(wiki, **BOARD) for _ in range(5)]
        for socket in sockets:
            socket.read_until("subscribed")
        going.process.terminate()
        assert [socket.close_code() for socket in sockets] == [1012] * 5
        began = time.monotonic()
        going.process.wait(10)
        assert time.monotonic() - began < 5
        assert "Traceback" not in going.said()


# --- The scoreboard --------------------------------------------------------------------------------------------------


def award(wiki: Caller, user: Caller) -> None:
    token = wiki("POST", "/api/v1/action-tokens", json={"user": user.id, "action_type": "post"}).get_json()
    answer = user("PATCH", "/api/v1/scores", json={"action_token": token["action_token"]})
    assert answer.status_code == 200, answer.text
    projection.project_all(wiki.tenant, now=utcnow)


def test_the_top_ten_come_at_once_and_when_they_change(live: Live, client: FlaskClient, wiki: Caller) -> None:
    wiki("PUT", "/api/v1/actions/catalog/post", json={"points": 5})
    ann, ben = user_of(client, wiki.tenant), user_of(client, wiki.tenant)
    socket = live.connect(f"/ws/scoreboard/top10?ticket={ticket_for(ann)}")
    first = socket.read()
    assert (first["type"], first["items"], first["changed_positions"]) == ("top", [], [])
    award(wiki, ann)
    award(wiki, ben)
    award(wiki, ben)
    seen: list[dict[str, Any]] = []
    while not seen or [row["value"] for row in seen[-1]["items"]] != [10, 5]:
        seen.append(socket.read())
    assert [row["user"]["id"] for row in seen[-1]["items"]] == [ben.id, ann.id]
    assert seen[0]["changed_positions"] == [1]
    assert seen[-1]["changed_positions"] == [1, 2]
    assert {"timestamp", "version", "seq"} <= seen[-1].keys()
    like(wiki, "somebody")  # no user's board
    assert socket.silent_for(0.5)
    socket.close()


def test_a_scoreboard_is_public_only_if_the_tenant_says_so(live: Live, client: FlaskClient, wiki: Caller) -> None:
    path = f"/ws/scoreboard/top10?tenant={wiki.tenant}"
    assert live.refusal(path)[0] == live.refusal("/ws/scoreboard/top10?tenant=nobody")[0] == 401
    wiki("PATCH", "/api/v1/settings", json={"public_scoreboard": True})
    eventually(lambda: live.refusal(path)[0] == 101)
    assert live.refusal(path, suppress_origin=False, origin="https://evil.example")[0] == 403
    socket = live.connect(path)
    assert socket.read()["type"] == "top"
    socket.send(op="subscribe", **BOARD)
    assert socket.read()["code"] == "unknown_op"
    # From one address only so many; and they take nothing from who has a ticket.
    crowd = [live.connect(path) for _ in range(49)]
    assert live.refusal(path) == (429, "too_many_connections")
    live.follow(wiki, **BOARD).close()
    for one in crowd:
        one.close()
    wiki("PATCH", "/api/v1/settings", json={"public_scoreboard": False})
    assert socket.close_code() == 4401, "and it ends as soon as it is public no more"


# --- Who sees public pages only --------------------------------------------------------------------------------------


def test_who_registered_alone_follows_public_boards_and_users_only(
    live: Live, client: FlaskClient, wiki: Caller
) -> None:
    stranger = user_of(client, wiki.tenant, sees_private=False)
    socket = live.connect(f"/ws/leaderboards?ticket={ticket_for(stranger)}")
    for scope in ("tenant", "space:docs", "space:nowhere"):
        socket.send(op="subscribe", scope=scope, window="7d", metric="likes", top=3)
        assert socket.read()["code"] == "public_boards_only"
        topic = f"topic={scope}:7d:likes&ticket={ticket_for(stranger)}"
        refused = requests.get(f"{live.url}/api/v1/live/events?{topic}", timeout=5)
        assert (refused.status_code, refused.json()["code"]) == (403, "public_boards_only")
    for board in ({"window": "7d", "metric": "likes"}, {"scope": "users", "window": "all"}):
        socket.send(op="subscribe", **board)
    assert {socket.read()["topic"] for _ in range(2)} == {"public:7d:likes", "users:all:points"}
    like(wiki, "ann")
    assert socket.read()["topic"] == "public:7d:likes"
    socket.close()
    top10 = live.connect(f"/ws/scoreboard/top10?ticket={ticket_for(stranger)}")
    assert top10.read()["type"] == "top"
    top10.close()


@pytest.mark.parametrize(
    ("more", "less"),
    [
        ({"sees_private": True}, {"sees_private": False}),
        ({"role": "admin"}, {"role": "member"}),
        ({"signup_sees": "all"}, {"signup_sees": "public"}),
    ],
)
def test_open_connections_leave_private_boards_when_their_rights_do_not_reach_them_any_more(
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
    time.sleep(2)  # the check soon after they came in is over; the next one would be in 20 seconds
    assert wiki("PATCH", path, json=less).status_code == 200
    socket.read_until("unsubscribed", topic=TOPIC, within_s=20)
    assert (next(stream)[1]["type"], greeting["topic"]) == ("unsubscribed", TOPIC)
    like(wiki, "ann")
    assert socket.read()["topic"] == "public:7d:likes", "what is public is followed on"
    assert socket.silent_for(0.5)
    socket.send(op="subscribe", **BOARD)
    assert socket.read()["code"] == "public_boards_only"
    socket.close()
    again = requests.get(f"{live.url}/api/v1/live/events?topic={TOPIC}", headers={"Last-Event-ID": last_id}, timeout=5)
    assert again.status_code == 403, "nor does a stream that broke off go on with it"


# --- The stream ------------------------------------------------------------------------------------------------------


def opened(live: Live, query: str, **headers: str) -> requests.Response:
    answer = requests.get(f"{live.url}/api/v1/live/events?{query}", stream=True, timeout=10, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    return answer


def test_the_stream_says_the_same(live: Live, wiki: Caller) -> None:
    answer = opened(live, f"topic={TOPIC}&topic=space:docs:1d:views&ticket={ticket_for(wiki)}")
    said = events(answer)
    greetings = [next(said)[1], next(said)[1]]
    assert {(one["type"], one["topic"]) for one in greetings} == {
        ("subscribed", TOPIC),
        ("subscribed", "space:docs:1d:views"),
    }
    like(wiki, "ann")
    told = next(said)[1]
    assert (told["type"], told["topic"], told["version"], told["seq"]) == ("invalidated", TOPIC, 1, 3)
    answer.close()


def test_a_stream_that_broke_off_goes_on_with_its_last_event_id(live: Live, wiki: Caller) -> None:
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
    greeting, rows = next(said)[1], next(said)[1]
    assert (greeting["type"], greeting["seq"], greeting["version"]) == ("subscribed", top["seq"] + 1, 1)
    assert rows["items"][0]["value"] == 1
    again.close()
    for wrong in ("7", "7.x.y", last_id[:-1] + ("0" if last_id[-1] != "0" else "1"), "x." + last_id, "9" * 40):
        url = f"{live.url}/api/v1/live/events?{address}"
        assert requests.get(url, headers={"Last-Event-ID": wrong}, timeout=5).status_code == 401


def test_logging_out_ends_the_stream_and_it_does_not_go_on(live: Live, client: FlaskClient, tenant: str) -> None:
    user = user_of(client, tenant)
    address = f"topic={TOPIC}&ticket={ticket_for(user)}"
    said = events(opened(live, address))
    last_id, _ = next(said)
    user("POST", "/api/v1/auth/logout")
    assert [message["code"] for _, message in said] == ["invalid_ticket"]
    url = f"{live.url}/api/v1/live/events?{address}"
    assert requests.get(url, headers={"Last-Event-ID": last_id}, timeout=5).status_code == 401


def test_a_stream_that_is_only_asked_about_leaves_nothing_open(live: Live, wiki: Caller) -> None:
    wiki("PATCH", "/api/v1/settings", json={"limits": {"live_connections": 1}})
    for _ in range(3):
        address = f"{live.url}/api/v1/live/events?topic={TOPIC}&ticket={ticket_for(wiki)}"
        assert requests.head(address, timeout=5).status_code == 200
    live.follow(wiki, **BOARD).close()


def test_a_stream_that_its_client_closed_is_closed_here(live: Live, wiki: Caller) -> None:
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
