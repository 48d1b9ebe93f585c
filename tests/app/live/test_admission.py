"""Who may open a socket or a stream, how many, and which boards they may follow."""

import contextlib
import socket
import threading
import time
from dataclasses import replace

import pytest
import requests
from flask import Flask
from flask.testing import FlaskClient

from app.http.services import services_of
from app.live import admission
from tenants import ceilings, tickets
from tenants.ceilings import Ceiling
from tenants.db import owner_tx, tenant_tx, utcnow
from tests.app.live.conftest import BOARD, TOPIC, like, opened
from tests.live import Live, events, ticket_for
from tests.people import Caller, client_of, use_ticket, user_of
from tests.service import eventually


def test_a_ticket_is_for_one_use_and_half_a_minute(live: Live, wiki: Caller) -> None:
    ticket = ticket_for(wiki)
    live.connect(f"/ws/leaderboards?ticket={ticket}").close()
    assert live.refusal(f"/ws/leaderboards?ticket={ticket}") == (401, "invalid_ticket")
    old = ticket_for(wiki)
    with owner_tx() as tx:
        tx.execute(tickets.LiveTicket.__table__.update().values(expires_at=utcnow()))  # type: ignore[attr-defined]
    assert live.refusal(f"/ws/leaderboards?ticket={old}") == (401, "invalid_ticket")


@pytest.mark.parametrize("ticket", ["", "x", "tkt_", "tkt_nobody_x", "tkt_A;B_x", "tkt_" + "x" * 3000])
def test_without_a_ticket_no_socket_opens(live: Live, ticket: str) -> None:
    for path in ("/ws/leaderboards", "/ws/scoreboard/top10"):
        assert live.refusal(f"{path}?ticket={ticket}")[0] == 401
    assert requests.get(f"{live.url}/api/v1/live/events?topic={TOPIC}&ticket={ticket}", timeout=5).status_code == 401


def test_a_clients_connections_end_when_its_token_expires(live: Live, wiki: Caller) -> None:
    holder = use_ticket(wiki.http, ticket_for(wiki))
    assert holder.until is not None
    assert 3500 < holder.until - time.time() <= 3600
    ends_at = int(time.time()) + 5
    signer = services_of(wiki.http.application).signer
    with tenant_tx(wiki.tenant) as tx:
        soon, _ = tickets.issue(tx, replace(holder, until=ends_at), signer=signer, now=utcnow())
        over, _ = tickets.issue(tx, replace(holder, until=int(time.time())), signer=signer, now=utcnow())
    assert live.refusal(f"/ws/leaderboards?ticket={over}") == (401, "invalid_ticket")
    stream = events(opened(live, f"topic={TOPIC}&ticket={soon}"))
    last_id, _ = next(stream)
    eventually(lambda: time.time() >= ends_at)
    address = f"{live.url}/api/v1/live/events?topic={TOPIC}&ticket={soon}"
    assert requests.get(address, headers={"Last-Event-ID": last_id}, timeout=5).status_code == 401


def test_a_stream_is_continued_for_an_hour(app: Flask, wiki: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = use_ticket(wiki.http, ticket_for(wiki))
    token = admission.resume_token(holder, services_of(app).signer)
    with app.app_context():
        assert admission._holder_in(token) == holder
        monkeypatch.setattr(admission, "MAX_RESUME_AGE_S", -1)
        assert admission._holder_in(token) is None


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


def test_our_own_and_the_tenants_origins_may_connect(live: Live, wiki: Caller) -> None:
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


def test_a_malformed_handshake_is_a_problem_and_not_an_error_of_ours(live: Live, wiki: Caller) -> None:
    address = f"{live.url}/ws/leaderboards?ticket={ticket_for(wiki)}"
    plain = requests.get(address, timeout=5)  # leaves the ticket unused
    assert (plain.status_code, plain.json()["code"]) == (426, "upgrade_required")
    assert (plain.headers["Upgrade"], plain.headers["Connection"].lower()) == ("websocket", "upgrade")
    assert plain.headers["Content-Type"] == "application/problem+json"
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
    eventually(lambda: "Invalid HTTP request line" in live.log_text() and "tkt_" not in live.log_text())
    assert ticket not in live.log_text()


def test_a_burst_of_requests_delays_no_other_connection(live: Live, wiki: Caller) -> None:
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


def test_a_tenants_connections_are_limited(live: Live, wiki: Caller) -> None:
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


def test_a_self_registered_user_follows_public_boards_and_users_only(
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


def test_a_ticket_of_an_ended_session_is_refused(live: Live, client: FlaskClient, tenant: str) -> None:
    user = user_of(client, tenant)
    ticket = ticket_for(user)
    user("POST", "/api/v1/auth/logout")
    assert live.refusal(f"/ws/leaderboards?ticket={ticket}") == (401, "invalid_ticket")
