"""Static tokens over HTTP: shown once, as quick and as bound by rights as other callers, and refused once revoked."""

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from flask.testing import FlaskClient

from app.http.services import services_of
from tenants import sessions, static_tokens, throttle, users
from tenants.db import Tx, tenant_tx, utcnow
from tenants.users import Role, User
from tests.analytics.conftest import make_page, views_of
from tests.people import Caller, client_of, static_token_of, use_ticket, user_of
from tests.service import eventually
from tests.tenants.conftest import trusted_memory

__all__ = ["trusted_memory"]

TOKENS = "/api/v1/tokens"


@pytest.fixture
def app_client(client: FlaskClient, tenant: str) -> Caller:
    return client_of(client, tenant)


def test_a_token_is_shown_once_and_listed_without_it(app_client: Caller) -> None:
    expires_at = (utcnow() + timedelta(days=30)).isoformat()
    token = static_token_of(app_client, "stats:read", "events:write", expires_at=expires_at)
    assert token.token.startswith(f"plt_{app_client.tenant}_")
    listed = app_client("GET", TOKENS)
    (shown,) = listed.get_json()["items"]
    assert token.token not in listed.text
    assert (shown["id"], shown["name"], shown["scopes"]) == (token.id, "Grafana", ["events:write", "stats:read"])
    assert (shown["user"], shown["last_used_at"]) == (None, None)
    assert token("GET", "/api/v1/leaderboards?window=7d").status_code == 200
    eventually(lambda: app_client("GET", TOKENS).get_json()["items"][0]["last_used_at"] is not None)


def test_a_tenants_token_may_do_what_its_scopes_allow(app_client: Caller) -> None:
    token = static_token_of(app_client)
    me = token("GET", "/api/v1/me").get_json()
    assert (me["kind"], me["id"], me["scopes"]) == ("client", f"static:{token.id}", ["stats:read"])
    assert token("GET", "/api/v1/leaderboards?window=7d").status_code == 200
    for method, path in (("POST", "/api/v1/events"), ("GET", "/api/v1/clients"), ("PUT", "/api/v1/pages/p/like")):
        refused = token(method, path, json={} if method != "GET" else None)
        assert (refused.status_code, refused.get_json()["code"]) == (403, "insufficient_scope"), path


def test_a_tenants_token_writes_until_it_is_revoked(app_client: Caller) -> None:
    make_page(app_client, "home")
    token = static_token_of(app_client, "events:write")
    for path, body in (
        ("/api/v1/pages/home/views", {}),
        (
            "/api/v1/events",
            {"events": [{"type": "view", "page": "home"}, {"type": "like", "page": "home", "user": "u"}]},
        ),
    ):
        assert token("POST", path, json=body).status_code == 202
    assert views_of(app_client.tenant) == 2
    assert app_client("DELETE", f"{TOKENS}/{token.id}").status_code == 204
    assert token("POST", "/api/v1/pages/home/views", json={}).status_code == 401
    assert app_client("DELETE", f"{TOKENS}/{token.id}").status_code == 404
    assert app_client("GET", TOKENS).get_json()["items"] == []


def test_a_members_token_acts_as_them_as_far_as_its_scopes_go(client: FlaskClient, tenant: str) -> None:
    member = user_of(client, tenant)
    token = static_token_of(member, "stats:read", "quests:write")
    me = token("GET", "/api/v1/me").get_json()
    assert (me["kind"], me["id"], me["roles"]) == ("user", member.id, ["member"])
    assert me["scopes"] == ["quests:write", "stats:read"]
    assert token("GET", "/api/v1/leaderboards?window=7d").status_code == 200
    assert token("GET", f"/api/v1/users/{member.id}/ledger").status_code == 200
    never = [
        ("PUT", "/api/v1/pages/p/like", None),
        ("GET", "/api/v1/auth/sessions", None),
        ("POST", "/api/v1/auth/password", {"old": "x" * 10, "new": "y" * 10}),
        ("POST", "/api/v1/scores/update", {}),
        ("GET", "/api/v1/users", None),
        ("GET", TOKENS, None),
    ]
    for method, path, body in never:
        refused = token(method, path, json=body)
        assert (refused.status_code, refused.get_json()["code"]) == (403, "insufficient_scope"), path


def test_a_self_registered_members_token_sees_public_pages_only(client: FlaskClient, tenant: str) -> None:
    token = static_token_of(user_of(client, tenant, sees_private=False))
    assert token("GET", "/api/v1/me").get_json()["sees"] == "public"
    assert token("GET", "/api/v1/leaderboards?scope=tenant&window=7d").status_code == 403


def test_an_admins_token_without_the_scope_is_no_admins_and_loses_the_role_with_them(
    client: FlaskClient, tenant: str, app_client: Caller
) -> None:
    admin, other = user_of(client, tenant, role=Role.ADMIN), user_of(client, tenant, role=Role.ADMIN)
    narrow, wide = static_token_of(admin, "users:write", owner="me"), static_token_of(admin, "admin", owner="me")
    assert narrow("POST", f"/api/v1/users/{other.id}/password-reset").status_code == 403
    assert narrow("GET", f"/api/v1/users/{other.id}/export").status_code in {403, 404}
    assert wide("GET", "/api/v1/users").status_code == 200
    assert app_client("PATCH", f"/api/v1/users/{admin.id}", json={"role": "member"}).status_code == 200
    assert wide("GET", "/api/v1/users").status_code == 403
    refused = admin("POST", TOKENS, json={"name": "x", "scopes": ["admin"]})
    assert (refused.status_code, list(refused.get_json()["errors"])) == (422, ["scopes"])


def test_members_see_and_revoke_their_own_and_admins_all(client: FlaskClient, tenant: str, app_client: Caller) -> None:
    ada, bob, admin = (user_of(client, tenant, role=role) for role in (Role.MEMBER, Role.MEMBER, Role.ADMIN))
    of_ada, of_bob, of_tenant = static_token_of(ada), static_token_of(bob), static_token_of(admin)

    def seen(caller: Caller) -> set[str]:
        return {item["id"] for item in caller("GET", f"{TOKENS}?limit=100").get_json()["items"]}

    assert (seen(ada), seen(bob)) == ({of_ada.id}, {of_bob.id})
    assert seen(admin) == seen(app_client) == {of_ada.id, of_bob.id, of_tenant.id}
    for foreign in (of_bob, of_tenant):
        assert ada("DELETE", f"{TOKENS}/{foreign.id}").status_code == 404
    refused = ada("POST", TOKENS, json={"name": "x", "scopes": ["stats:read"], "owner": "tenant"})
    assert (refused.status_code, refused.get_json()["code"]) == (403, "admins_only")
    assert app_client("POST", TOKENS, json={"name": "x", "scopes": ["admin"], "owner": "me"}).status_code == 403
    assert admin("DELETE", f"{TOKENS}/{of_ada.id}").status_code == 204
    assert (of_ada("GET", "/api/v1/me").status_code, of_bob("GET", "/api/v1/me").status_code) == (401, 200)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": None}, "name"),
        ({"scopes": []}, "scopes"),
        ({"scopes": ["root"]}, "scopes"),
        ({"scopes": "admin"}, "scopes"),
        ({"expires_at": "2020-01-01T00:00:00Z"}, "expires_at"),
        ({"expires_at": "tomorrow"}, "expires_at"),
        ({"owner": "nobody"}, "owner"),
        ({"user": str(uuid4())}, "user"),
    ],
)
def test_a_wrong_field_is_named(app_client: Caller, changes: dict[str, Any], field: str) -> None:
    refused = app_client("POST", TOKENS, json={"name": "x", "scopes": ["admin"], **changes})
    assert (refused.status_code, list(refused.get_json()["errors"])) == (422, [field])


def test_too_many_tokens_are_a_conflict_and_too_many_attempts_are_limited(
    app_client: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(static_tokens, "MAX_TOKENS_OF_TENANT", 1)
    static_token_of(app_client)
    body = {"name": "x", "scopes": ["stats:read"]}
    refused = app_client("POST", TOKENS, json=body)
    assert (refused.status_code, refused.get_json()["code"]) == (409, "ceiling_reached")
    monkeypatch.setattr("app.api.static_tokens.CREATED_PER_MINUTE", throttle.per_minute(1))
    assert [app_client("POST", TOKENS, json=body).status_code for _ in range(2)][-1] == 429


def test_a_made_up_token_is_refused_without_a_look_up(app_client: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    token = static_token_of(app_client)
    for name in ("static_tokens.rights_of", "static_tokens.read_one"):
        monkeypatch.setattr(f"tenants.{name}", lambda *_a, **_k: pytest.fail("looked up"))
    body, _, mac = token.token.rpartition("_")
    for made_up in (f"{body}_{mac[::-1]}", f"plt_{app_client.tenant}_x", "plt_"):
        forged = Caller(token.http, token.tenant, made_up, "")
        for path in ("/api/v1/me", "/api/v1/leaderboards?window=7d"):
            refused = forged("GET", path)
            assert (refused.status_code, refused.get_json()["code"]) == (401, "invalid_token")
            assert "invalid_token" in refused.headers["WWW-Authenticate"]


def test_a_ticket_is_as_good_as_the_token_that_requested_it(
    client: FlaskClient, tenant: str, app_client: Caller
) -> None:
    member = user_of(client, tenant)
    for token in (static_token_of(app_client), static_token_of(member)):
        ticket = token("POST", "/api/v1/live/tickets").get_json()["ticket"]
        holder = use_ticket(client, ticket)
        assert holder.proof == f"static:{token.id}"
        assert f"token:static:{token.id}" in holder.names()
        assert holder.sees_public_only() is False
        with tenant_tx(tenant) as tx:
            static_tokens.revoke(tx, token.id, now=utcnow())
        assert holder.sees_public_only() is None


def test_a_token_is_known_to_the_fast_lane_from_the_second_call_on(
    app_client: Caller, trusted_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = static_token_of(app_client)
    assert token("GET", "/api/v1/leaderboards?window=7d").status_code == 200
    lane = app_client.http.application.wsgi_app
    actor = lane._callers.find(f"Bearer {token.token}")  # type: ignore[attr-defined]
    assert actor is not None
    assert actor.static_token_id == token.id
    monkeypatch.setattr(services_of(app_client.http.application).signer, "mac", lambda _: pytest.fail("checked again"))
    assert token("GET", "/api/v1/leaderboards?window=7d").status_code == 200


@pytest.mark.parametrize("owner", ["me", "tenant"])
def test_no_token_is_created_by_whose_session_ends_meanwhile(
    client: FlaskClient, tenant: str, monkeypatch: pytest.MonkeyPatch, owner: str
) -> None:
    """After it was authenticated, and before the user is locked."""
    user = user_of(client, tenant, role=Role.ADMIN)
    get = users.get

    def ended_meanwhile(tx: Tx, user_id: UUID) -> User:
        with tenant_tx(tenant, separate=True) as other:
            sessions.revoke_all(other, user_id, now=utcnow())
        return get(tx, user_id)

    monkeypatch.setattr("app.api.static_tokens.users.get", ended_meanwhile)
    body = {"name": "for later", "scopes": ["stats:read"], "owner": owner}
    assert user("POST", TOKENS, json=body).status_code == 401
    with tenant_tx(tenant) as tx:
        assert static_tokens.list_tokens(tx) == []
