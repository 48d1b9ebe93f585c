"""Who may do what: the table of rights, publishable keys and their origins, operators."""

import pytest
from flask.testing import FlaskClient

from app.http.auth import Actor
from app.http.rights import May, is_allowed
from app.settings import Settings
from tenants.credentials import Scope
from tenants.users import Role
from tests.analytics.conftest import views_of
from tests.app.conftest import with_settings
from tests.attacks.conftest import admin, key
from tests.beacons import ORIGIN, send
from tests.people import PASSWORD, Caller, client_of, log_in, user_of

__all__ = ["admin", "key"]


@pytest.mark.parametrize(
    "forwarded", ["", "\xff, 8.8.8.8", "junk", "1.2.3.4:5678", "[2001:db8::1]:80", "fe80::1%eth0", ","]
)
def test_a_garbled_forwarded_address_never_passes_for_the_proxy(settings: Settings, forwarded: str) -> None:
    for hops in (0, 1, 2):
        answer = with_settings(settings, proxy_hops=hops).get("/metrics", headers={"X-Forwarded-For": forwarded})
        assert answer.status_code == 403, (hops, forwarded)


def test_too_little_scope_is_403_and_says_which(client: FlaskClient, tenant: str) -> None:
    answer = client_of(client, tenant, "stats:read")("GET", "/api/v1/clients")
    assert answer.status_code == 403
    assert answer.get_json()["code"] == "insufficient_scope"
    assert 'error="insufficient_scope", scope="admin"' in answer.headers["WWW-Authenticate"]


@pytest.mark.parametrize(
    "origin", [None, "null", "https://evil.example", "http://wiki.example", "https://wiki.example.evil"]
)
def test_only_from_an_allowed_origin(
    client: FlaskClient, admin: Caller, key: str, tenant: str, origin: str | None
) -> None:
    answer = send(client, key, headers={"Origin": origin})
    assert (answer.status_code, answer.get_json()["code"]) == (403, "origin_not_allowed")
    assert views_of(tenant) == 0


def test_the_tenants_own_origins_are_allowed_for_every_key(client: FlaskClient, admin: Caller, key: str) -> None:
    admin("PATCH", "/api/v1/settings", json={"allowed_origins": ["https://docs.example"]})
    assert send(client, key, headers={"Origin": "https://docs.example"}).status_code == 202


@pytest.mark.parametrize("key", ["", "pk_", "pk_nobody_AAAAAAAAAAAA", "pk_../x_AAAAAAAAA", "sk_abc", "x" * 500])
def test_a_wrong_key_is_401(client: FlaskClient, connected: None, key: str) -> None:
    answer = send(client, key)
    assert answer.status_code == 401


@pytest.mark.parametrize("may", May, ids=lambda may: may.name)
def test_a_right_is_for_its_roles_and_scopes_and_of_clients_for_admins(may: May) -> None:
    allowed_roles = {role for role in Role if is_allowed(Actor("user", "t", "u", role=role), may)}
    assert allowed_roles == may.roles
    assert Role.ADMIN in allowed_roles, "what a member may do, an admin may"
    scopes = {scope for scope in Scope if is_allowed(Actor("client", "t", "c", frozenset({scope})), may)}
    assert scopes == (may.scopes | {Scope.ADMIN} if may.scopes else set()), "what is for users only, no client may"


def test_whose_password_was_issued_changes_it_before_anything_else(client: FlaskClient, tenant: str) -> None:
    user = user_of(client, tenant, role=Role.ADMIN, username="boss", must_change_password=True)
    before = Actor("user", "t", "u", role=Role.ADMIN, must_change_password=True)
    assert {may for may in May if is_allowed(before, may)} == {May.SEE_ONESELF, May.CHANGE_OWN_PASSWORD, May.LOG_OUT}
    calls = [
        ("GET", "/api/v1/leaderboards?metric=views"),  # the first three may be answered by the fast lane
        ("POST", "/api/v1/pages/home/views"),
        ("PUT", "/api/v1/pages/home/like"),
        ("GET", "/api/v1/users/me"),
        ("GET", "/api/v1/auth/sessions"),
        ("GET", "/api/v1/actions/catalog"),
        ("POST", "/api/v1/live/tickets"),
        ("PATCH", "/api/v1/settings"),
    ]
    for method, path in calls:
        refused = user(method, path, json=None if method == "GET" else {})
        assert (refused.status_code, refused.get_json()["code"]) == (403, "password_change_required"), path
    assert user("GET", "/api/v1/me").get_json()["must_change_password"] is True
    assert log_in(client, tenant, "boss")["must_change_password"] is True
    body = {"old": PASSWORD, "new": PASSWORD}
    assert list(user("POST", "/api/v1/auth/password", json=body).get_json()["errors"]) == ["new"], "the same one again"
    body["new"] = "a better password"
    assert user("POST", "/api/v1/auth/password", json=body).status_code == 204
    assert user("GET", "/api/v1/users/me").status_code == 200, "at once, with the same token"
    assert user("GET", "/api/v1/leaderboards?metric=views").status_code == 200
    assert user("GET", "/api/v1/me").get_json()["must_change_password"] is False
    assert log_in(client, tenant, "boss", body["new"])["must_change_password"] is False


def test_whose_password_was_issued_may_log_out(client: FlaskClient, tenant: str) -> None:
    user = user_of(client, tenant, must_change_password=True)
    assert user("POST", "/api/v1/auth/logout").status_code == 204
    assert user("GET", "/api/v1/me").status_code == 401


def test_a_key_reads_where_a_token_may_and_a_token_goes_before_it(client: FlaskClient, admin: Caller, key: str) -> None:
    path = "/api/v1/leaderboards?metric=views"
    assert client.get(path).status_code == 401
    by_key = client.get(f"{path}&scope=tenant", headers={"X-Plaudit-Key": key})
    assert by_key.get_json()["code"] == "public_boards_only"
    assert admin("GET", f"{path}&scope=tenant", headers={"X-Plaudit-Key": key}).status_code == 200
    assert client.get("/api/v1/pages", headers={"X-Plaudit-Key": key}).status_code == 401, "where no key is accepted"


def test_a_read_without_an_origin_is_allowed_and_from_another_one_not(client: FlaskClient, key: str) -> None:
    path = f"/api/v1/leaderboards?key={key}"
    origins: dict[str, int] = {ORIGIN: 200, "https://evil.example": 403}
    assert client.get(path).status_code == 200
    assert {origin: client.get(path, headers={"Origin": origin}).status_code for origin in origins} == origins
