"""Limits are counted by network: whoever has a whole IPv6 /64 has no more tries than who has one IPv4 address."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from flask import g
from flask.testing import FlaskClient
from sqlalchemy import text
from werkzeug.test import TestResponse

from app.api import leaderboards, live, oauth
from app.http import password_attempts
from app.http.auth import Reader
from app.live.admission import Guest
from app.live.server import _follower, create_live_app
from app.settings import Settings
from tenants import throttle
from tenants.db import tenant_tx, utcnow
from tenants.sessions import SESSION_TTL
from tests.analytics.conftest import make_page
from tests.beacons import FIREFOX, ORIGIN, send
from tests.people import PASSWORD, Caller, client_of, user_of

HOME = "2001:db8:1:2::/64"


def at_home(number: int) -> str:
    return f"2001:db8:1:2::{number:x}"


def elsewhere(number: int) -> str:
    return f"2001:db8:1:{number + 16:x}::1"


@pytest.fixture
def key(client: FlaskClient, tenant: str) -> str:
    admin = client_of(client, tenant)
    for page in ("home", "away"):
        make_page(admin, page, visibility="public")
    admin("PATCH", "/api/v1/settings", json={"limits": {"beacons_per_minute": 3}})
    return str(admin("POST", "/api/v1/keys", json={"origins": [ORIGIN]}).get_json()["key"])


Call = Callable[[str], TestResponse]


def calls(http: FlaskClient, tenant: str, key: str) -> dict[str, Call]:
    def posting(path: str, **body: str) -> Call:
        return lambda address: http.post(path, json=body, environ_base={"REMOTE_ADDR": address})

    def getting(path: str) -> Call:
        return lambda address: http.get(path, environ_base={"REMOTE_ADDR": address})

    wrong = {"tenant": tenant, "username": "nobody", "password": "wrong wrong"}
    return {
        "beacon": lambda address: send(http, key, '{"page": "nowhere"}', address=address),
        "login": posting("/api/v1/auth/login", **wrong),
        "register": posting("/api/v1/auth/register", **wrong, email="a"),
        "refresh": posting("/api/v1/auth/refresh", refresh_token="x"),
        "reset": posting("/api/v1/auth/reset", reset_token="x", password=PASSWORD),
        "oauth": posting("/oauth/token"),
        "tickets": lambda address: http.post(
            f"/api/v1/live/tickets?key={key}", environ_base={"REMOTE_ADDR": address}, headers={"Origin": ORIGIN}
        ),
        "boards": getting(f"/api/v1/leaderboards?key={key}&limit=3&members=home"),
        "rank": getting(f"/api/v1/leaderboards/rank?key={key}&member=home"),
        "as_of": getting(f"/api/v1/leaderboards?key={key}&as_of=2020-01-01"),
        "export": getting(f"/api/v1/leaderboards/export.csv?key={key}"),
        "badge": getting(f"/embed/badge/home.svg?key={key}"),
    }


@pytest.mark.parametrize(
    "what",
    [
        *("beacon", "login", "register", "refresh", "reset", "oauth", "tickets"),
        *("boards", "rank", "as_of", "export", "badge"),
    ],
)
def test_every_limit_by_address_is_one_for_a_whole_64(
    client: FlaskClient, tenant: str, key: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((password_attempts, "PER_ADDRESS"), (oauth, "TRIES_PER_MINUTE")):
        monkeypatch.setattr(module, name, throttle.per_minute(3))
    monkeypatch.setattr("app.http.boards.READS_PER_MINUTE", 3)
    monkeypatch.setattr(leaderboards, "EXPORTS_PER_MINUTE", 3)
    monkeypatch.setattr("app.ui.widgets.READS_PER_MINUTE", 3)
    monkeypatch.setitem(live.TICKETS_PER_MINUTE, "key", 3)
    call = calls(client, tenant, key)[what]
    statuses = [call(at_home(number)).status_code for number in range(1, 6)]
    assert 429 not in statuses[:3]
    assert statuses[3:] == [429, 429]
    assert call(elsewhere(1)).status_code != 429
    statuses = [call(address).status_code for address in ("10.9.9.9", "::ffff:10.9.9.9", "10.9.9.9", "::ffff:10.9.9.9")]
    assert (429 in statuses[:3], statuses[3]) == (False, 429), "the same address in either form"


def test_a_browser_is_the_same_visitor_anywhere_in_its_64(client: FlaskClient, tenant: str, key: str) -> None:
    assert send(client, key, address=at_home(1)).get_json()["accepted"] == 1
    assert send(client, key, address=at_home(2)).get_json()["duplicates"] == 1
    assert send(client, key, address=elsewhere(1)).get_json()["accepted"] == 1


def test_sockets_are_counted_by_network(settings: Settings, tenant: str) -> None:
    app = create_live_app(settings)
    with app.test_request_context("/ws/scoreboard/top10", environ_base={"REMOTE_ADDR": at_home(1)}):
        g.guest = Guest(Reader.anonymous(tenant), None)
        assert _follower("socket").address == HOME


def log_in(http: FlaskClient, tenant: str, address: str, password: str = PASSWORD, agent: str = FIREFOX) -> int:
    body = {"tenant": tenant, "username": "victim", "password": password}
    headers = {"User-Agent": agent}
    return http.post(
        "/api/v1/auth/login", json=body, headers=headers, environ_base={"REMOTE_ADDR": address}
    ).status_code


@pytest.fixture
def victim(client: FlaskClient, tenant: str) -> Caller:
    caller = user_of(client, tenant, username="victim")
    assert log_in(client, tenant, at_home(1)) == 200
    return caller


@pytest.fixture
def exhausted(client: FlaskClient, tenant: str, victim: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong passwords from everywhere, until the account takes no more."""
    monkeypatch.setattr(password_attempts, "PER_ACCOUNT", throttle.per_minute(5))
    statuses = [log_in(client, tenant, elsewhere(number), "wrong wrong") for number in range(8)]
    assert statuses[-1] == 429


def test_wrong_logins_from_one_64_lock_nobody_out_elsewhere(
    client: FlaskClient, tenant: str, victim: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(password_attempts, "PER_ACCOUNT_AND_NETWORK", throttle.per_minute(3))
    monkeypatch.setattr(password_attempts, "PER_ACCOUNT", throttle.per_minute(6))
    statuses = [log_in(client, tenant, f"2001:db8:6:6::{number:x}", "wrong wrong") for number in range(1, 12)]
    assert statuses == [401] * 3 + [429] * 8
    assert log_in(client, tenant, elsewhere(3)) == 200


def test_a_known_device_is_spared_by_the_limit_of_the_account(
    client: FlaskClient, tenant: str, exhausted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert log_in(client, tenant, at_home(2)) == 200, "another address of the same network"
    assert log_in(client, tenant, at_home(1), agent="Another browser") == 429
    assert log_in(client, tenant, elsewhere(40)) == 429
    statuses = [log_in(client, tenant, at_home(3), "wrong wrong") for _ in range(12)]
    assert set(statuses) == {401, 429}
    assert statuses[-1] == 429, "the limit of account and network is for everybody"


def test_a_device_is_known_as_long_as_a_session_may_live(client: FlaskClient, tenant: str, exhausted: None) -> None:
    with tenant_tx(tenant) as tx:
        tx.execute(text("UPDATE sessions SET revoked_at = now() WHERE tenant_id = :tenant"), {"tenant": tenant})
    assert log_in(client, tenant, at_home(2)) == 200, "also after logging out"
    old = utcnow() - SESSION_TTL - timedelta(seconds=1)
    with tenant_tx(tenant) as tx:
        tx.execute(
            text("UPDATE sessions SET created_at = :old WHERE tenant_id = :tenant"), {"tenant": tenant, "old": old}
        )
    assert log_in(client, tenant, at_home(2)) == 429


def test_the_device_of_one_user_is_not_known_for_another(client: FlaskClient, tenant: str, exhausted: None) -> None:
    other = {"tenant": tenant, "username": "other", "password": PASSWORD}
    user_of(client, tenant, username="other")
    browser = {"REMOTE_ADDR": elsewhere(50)}
    answer = client.post("/api/v1/auth/login", json=other, headers={"User-Agent": FIREFOX}, environ_base=browser)
    assert answer.status_code == 200
    assert log_in(client, tenant, elsewhere(50)) == 429


def test_who_is_suspended_or_unknown_learns_nothing_from_it(
    client: FlaskClient, tenant: str, victim: Caller, exhausted: None
) -> None:
    def answer(username: str, address: str, password: str = PASSWORD) -> tuple[int, str, str]:
        body = {"tenant": tenant, "username": username, "password": password}
        answer = client.post(
            "/api/v1/auth/login", json=body, headers={"User-Agent": FIREFOX}, environ_base={"REMOTE_ADDR": address}
        )
        return answer.status_code, answer.get_json()["code"], answer.get_json()["detail"]

    for number in range(8):
        nobody = answer("nobody", elsewhere(number))
    assert answer("victim", elsewhere(60)) == nobody
    client_of(client, tenant)("PATCH", f"/api/v1/users/{victim.id}", json={"suspended": True})
    assert answer("victim", elsewhere(60)) == nobody
    assert answer("victim", at_home(2), "wrong wrong")[:2] == (401, "invalid_credentials"), "as without the limit"
    assert answer("victim", at_home(2))[:2] == (403, "suspended"), "only with the right password"
