"""Changing one's own e-mail address, which needs the password."""

import hashlib
from collections.abc import Callable
from typing import Any

import orjson
from flask.testing import FlaskClient
from sqlalchemy import text

from tenants.db import tenant_tx
from tenants.users import Role
from tests.people import PASSWORD, client_of, log_in, user_of


def test_ones_own_address_changes_with_the_password_only(client: FlaskClient, tenant: str) -> None:
    for role in Role:
        user = user_of(client, tenant, role=role, username=f"the_{role}")
        before, new = f"the_{role}@example.org", f"new_{role}@example.org"
        for path in ("/api/v1/users/me", f"/api/v1/users/{user.id}", f"/api/v1/users/{user.id.upper()}"):
            if role is Role.MEMBER and path.endswith(user.id.upper()):
                continue  # members name themselves as we do
            for given in ({}, {"password": "guess-guess-guess"}, {"password": None}):
                refused = user("PATCH", path, json={"email": new, "bio": "x", **given})
                assert refused.status_code in {403, 429}, (path, given)
                if refused.status_code == 403:
                    assert refused.get_json()["code"] == "wrong_password"
        me = user("GET", "/api/v1/me").get_json()["user"]
        assert (me["email"], me["bio"]) == (before, None)
        assert user("PATCH", "/api/v1/users/me", json={"email": before, "bio": "y"}).status_code == 200, "no other one"
        changed = user("PATCH", "/api/v1/users/me", json={"email": new, "password": PASSWORD})
        assert (changed.status_code, changed.get_json()["email"]) == (200, new)
        assert "password" not in changed.get_json()


def test_admins_and_apps_change_the_addresses_of_others_without_a_password(client: FlaskClient, tenant: str) -> None:
    admin, app = user_of(client, tenant, role=Role.ADMIN), client_of(client, tenant)
    user = user_of(client, tenant)
    for caller, email in ((admin, "one@example.org"), (app, "two@example.org")):
        assert caller("PATCH", f"/api/v1/users/{user.id}", json={"email": email}).get_json()["email"] == email


def test_a_password_is_guessed_there_as_slowly_as_at_the_login(client: FlaskClient, tenant: str) -> None:
    user = user_of(client, tenant, username="victim")
    log_in(client, tenant, "victim")

    def guess(number: int) -> int:
        body: dict[str, Any] = {"email": "new@example.org", "password": f"guess-{number}-guess"}
        return user("PATCH", "/api/v1/users/me", json=body, headers={"Idempotency-Key": str(number)}).status_code

    assert [guess(number) for number in range(10)] == [403] * 9 + [429], "the login before was the first"


def test_a_confirmed_change_is_answered_again_for_its_idempotency_key(client: FlaskClient, tenant: str) -> None:
    user = user_of(client, tenant)
    body = {"email": "new@example.org", "password": PASSWORD}
    first, again = (user("PATCH", "/api/v1/users/me", json=body, headers={"Idempotency-Key": "k-1"}) for _ in range(2))
    assert (first.status_code, again.status_code) == (200, 200)
    assert again.headers["Idempotent-Replay"] == "true"


def test_what_is_kept_for_an_idempotency_key_is_no_hash_of_the_password(client: FlaskClient, tenant: str) -> None:
    """Whoever has a backup could guess passwords by it, a billion times a second."""
    user, changed = user_of(client, tenant), {"email": "new@example.org", "bio": "x"}
    sent = {**changed, "password": PASSWORD}
    assert user("PATCH", "/api/v1/users/me", json=sent, headers={"Idempotency-Key": "k"}).status_code == 200
    with tenant_tx(tenant) as tx:
        kept = tx.scalars(text("SELECT body_hash FROM idempotency_keys")).all()
    assert kept == [hashlib.sha256(orjson.dumps(changed)).hexdigest()]


def test_a_wrong_password_there_is_a_failed_login_in_the_log(
    client: FlaskClient, tenant: str, logged: Callable[[], list[dict[str, Any]]]
) -> None:
    user = user_of(client, tenant, username="victim")
    user("PATCH", "/api/v1/users/me", json={"email": "new@example.org", "password": "guess-guess-guess"})
    user("POST", "/api/v1/auth/password", json={"old": "guess-guess-guess", "new": "an uncommon new sentence"})
    failed = [line for line in logged() if line["action"] == "audit.login.failed"]
    assert [(line["tenantId"], line["data"]["account"]) for line in failed] == [(tenant, "victim")] * 2


def test_a_member_learns_nothing_about_others_by_an_address(client: FlaskClient, tenant: str) -> None:
    user, other = user_of(client, tenant), user_of(client, tenant)
    for name in (other.id, "ext:nobody", "me-too", "00000000-0000-4000-8000-000000000000"):
        refused = user("PATCH", f"/api/v1/users/{name}", json={"email": "new@example.org"})
        assert (refused.status_code, refused.get_json()["code"]) == (403, "insufficient_scope"), name
