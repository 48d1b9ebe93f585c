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
from tests.people import Caller, client_of

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
