"""A long body is received only from somebody who may send it, and only some of them at once."""

import contextlib
import socket
import time
from collections.abc import Iterator
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import orjson
import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import text

from app.http.auth import AUTHENTIC_FOR_S
from app.http.body import MAX_BODY_BYTES, MAX_PUBLIC_BODY_BYTES
from app.server import bodies
from app.server.bodies import MAX_EARLY_BYTES
from tenants import sessions
from tenants.db import tenant_tx, utcnow
from tenants.shares import TenantShare
from tenants.users import Role
from tests.app.server.served import served
from tests.beacons import ORIGIN
from tests.people import Caller, client_of, user_of
from tests.service import eventually

EVENTS, BEACON, LOGIN, TOKEN = "/api/v1/events", "/api/v1/beacon", "/api/v1/auth/login", "/oauth/token"
LONG = f"Content-Length: {MAX_BODY_BYTES - 1}"
TOO_LONG = f"Content-Length: {MAX_BODY_BYTES + 1}"
CHUNKED = "Transfer-Encoding: chunked"
JSON, FORM = "Content-Type: application/json", "Content-Type: application/x-www-form-urlencoded"


@pytest.fixture
def url(app: Flask) -> Iterator[str]:
    with served(app) as address:
        yield address


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """For whose bodies threads have waited."""
    seen: list[str] = []
    of = TenantShare.of

    def watched(share: TenantShare, tenant_id: str, caller: str) -> contextlib.AbstractContextManager[None]:
        if share._keeps_half:
            seen.append(caller)
        return of(share, tenant_id, caller)

    monkeypatch.setattr(TenantShare, "of", watched)
    return seen


def begin(url: str, target: str, *headers: str, sent: bytes = b"x") -> socket.socket:
    """A request of which only the head and the beginning of the body are sent."""
    address = urlsplit(url)
    client = socket.create_connection((address.hostname, address.port), timeout=30)
    lines = [f"POST {target} HTTP/1.1", f"Host: {address.netloc}", *headers, "", ""]
    client.sendall("\r\n".join(lines).encode() + sent)
    return client


def status_of(client: socket.socket) -> int:
    return int(client.recv(65_536)[9:12])


def bearer(caller: Caller) -> str:
    return f"Authorization: Bearer {caller.token}"


def test_nobody_waits_for_a_body_whose_sender_may_not_send_it(
    client: FlaskClient, tenant: str, url: str, waits: list[str]
) -> None:
    admin, reader, member = client_of(client, tenant), client_of(client, tenant, "stats:read"), user_of(client, tenant)
    key = admin("POST", "/api/v1/keys", json={"origins": [ORIGIN]}).get_json()["key"]
    origin, chunks = f"Origin: {ORIGIN}", b"ffffff\r\n" + b"x" * (MAX_EARLY_BYTES + 1)
    answers = {
        "no token": begin(url, EVENTS, LONG, JSON),
        "a wrong token": begin(url, EVENTS, LONG, JSON, "Authorization: Bearer nonsense"),
        "a wrong cookie": begin(url, EVENTS, LONG, JSON, "Cookie: plaudit_session=ds_x"),
        "no right, client": begin(url, EVENTS, LONG, JSON, bearer(reader)),
        "no right, user": begin(url, EVENTS, LONG, JSON, bearer(member)),
        "too long": begin(url, EVENTS, TOO_LONG, JSON, bearer(admin)),
        "no key": begin(url, BEACON, LONG, JSON, origin),
        "a wrong key": begin(url, f"{BEACON}?key=pk_{tenant}_AAAAAAAAAAAA", LONG, JSON, origin),
        "another origin": begin(url, f"{BEACON}?key={key}", LONG, JSON, "Origin: https://evil.example"),
        "too long for a key": begin(url, f"{BEACON}?key={key}", LONG, JSON, origin),
        "too long for a key, chunked": begin(url, f"{BEACON}?key={key}", CHUNKED, JSON, origin, sent=chunks),
        "too long for anybody": begin(url, LOGIN, LONG, JSON),
        "a form too long for anybody": begin(url, TOKEN, LONG, FORM),
        "too long for anybody, chunked": begin(url, LOGIN, CHUNKED, JSON, sent=chunks),
        "a form too long for anybody, chunked": begin(url, TOKEN, CHUNKED, FORM, sent=chunks),
    }
    expected = {**dict.fromkeys(answers, 413), **dict.fromkeys(["no token", "a wrong token", "a wrong cookie"], 401)}
    expected |= {"no key": 401, "a wrong key": 401, "no right, client": 403, "no right, user": 403}
    expected |= {"another origin": 403, "a wrong cookie": 403}  # a change by cookie needs the dashboard's header
    expected["a form too long for anybody, chunked"] = 400  # Werkzeug reads so much of it, which is no grant
    assert {name: status_of(answer) for name, answer in answers.items()} == expected
    for answer in answers.values():
        answer.close()
    assert waits == []
    assert MAX_PUBLIC_BODY_BYTES < MAX_EARLY_BYTES, "so what anybody may send is here before it is handled"


def test_one_members_slow_bodies_refuse_no_long_batch_of_others(
    client: FlaskClient, tenant: str, other_tenant: str, url: str, waits: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "MAX_RECEIVE_S", 60.0)
    member, colleague, neighbour = user_of(client, tenant), client_of(client, tenant), client_of(client, other_tenant)
    update = "/api/v1/scores/update"
    slow = [begin(url, update, "Content-Length: 900000", JSON, bearer(member)) for _ in range(120)]
    eventually(lambda: waits.count(f"user:{member.id}") == len(slow))
    time.sleep(0.1)
    batch = orjson.dumps({"events": [{"type": "view", "page": "nowhere", "id": f"{'x' * 90}{n}"} for n in range(900)]})
    assert len(batch) > MAX_EARLY_BYTES
    length = f"Content-Length: {len(batch)}"
    for _ in range(15):
        for caller in (colleague, neighbour):
            with begin(url, EVENTS, length, JSON, bearer(caller), sent=batch[:100]) as long:
                time.sleep(0.01)  # so that somebody has to wait for the rest
                long.sendall(batch[100:])
                assert status_of(long) == 202
    assert waits.count(f"client:{colleague.id}") > 0
    refused = [status for each in slow if (status := status_if_answered(each)) is not None]
    assert refused
    assert set(refused) == {429}, "its sender is refused, and nobody else"
    for each in slow:
        each.close()


@pytest.mark.parametrize("target", ["/api/v1/tokens", "/api/v1/clients", "/api/v1/scores/update"])
def test_who_is_revoked_while_their_body_arrives_gets_nothing_done(
    client: FlaskClient, tenant: str, url: str, waits: list[str], target: str
) -> None:
    """Whoever always has a request under way could otherwise stay, with new credentials."""
    user = user_of(client, tenant, role=Role.ADMIN)
    assert client_of(client, tenant)("PUT", "/api/v1/actions/catalog/post", json={"points": 10}).status_code == 200
    of_target: dict[str, dict[str, object]] = {
        "/api/v1/tokens": {"name": "for later", "scopes": ["admin"]},
        "/api/v1/clients": {"name": "for later", "scopes": ["admin"]},
        "/api/v1/scores/update": {
            "actionId": str(uuid4()),
            "actionType": "post",
            "timestamp": utcnow().isoformat(),
        },
    }
    body = orjson.dumps(of_target[target]).ljust(MAX_EARLY_BYTES + 1)
    with begin(url, target, f"Content-Length: {len(body)}", JSON, bearer(user), sent=body[:-1]) as slow:
        eventually(lambda: f"user:{user.id}" in waits)
        time.sleep(AUTHENTIC_FOR_S)
        with tenant_tx(tenant) as tx:
            sessions.revoke_all(tx, UUID(user.id), now=utcnow())
        slow.sendall(body[-1:])
        assert status_of(slow) == 401
    with tenant_tx(tenant) as tx:
        for table in ("static_tokens", "score_ledger"):
            assert tx.execute(text(f"SELECT count(*) FROM {table}")).scalar_one() == 0
        assert tx.execute(text("SELECT count(*) FROM oauth_clients")).scalar_one() == 1


def status_if_answered(client: socket.socket) -> int | None:
    client.settimeout(0.01)
    try:
        return status_of(client)
    except TimeoutError:
        return None
