"""Users over HTTP: who may read, change, export and delete whom."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from flask.testing import FlaskClient

from tenants.db import utcnow
from tenants.users import Role
from tests.people import PASSWORD, Caller, client_of, let_suspension_end, log_in, user_of


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


WALLET = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"


def test_members_change_their_own_profile_and_nothing_that_is_not_theirs_to_say(
    admin: Caller, client: FlaskClient, tenant: str, logged: Callable[[], list[dict[str, Any]]]
) -> None:
    member, other = user_of(client, tenant, username="ada"), user_of(client, tenant, username="bob")
    admin("PATCH", f"/api/v1/users/{member.id}", json={"email_verified": True})
    admin("PATCH", "/api/v1/settings", json={"picture_hosts": ["a.example"]})
    profile = {"avatar_url": "https://a.example/a.png", "bio": "I write", "wallet": WALLET.lower()}
    changed = member(
        "PATCH", "/api/v1/users/me", json={**profile, "email": "new@example.org", "password": PASSWORD}
    ).get_json()
    assert {name: changed[name] for name in profile} == {**profile, "wallet": WALLET}
    assert (changed["email"], changed["email_verified"]) == ("new@example.org", False)
    assert member("GET", "/api/v1/me").get_json()["user"]["email"] == "new@example.org"
    assert [line["data"]["changed"] for line in logged() if line["action"] == "audit.user.changed"][-1] == [
        *("avatar_url", "bio", "email", "wallet")
    ], "names only: the values are personal"
    assert member("PATCH", f"/api/v1/users/{member.id}", json={"bio": None}).get_json()["bio"] is None
    others: list[dict[str, Any]] = [
        {"role": "admin"},
        {"segment": "north"},
        {"suspended": False},
        {"suspended_until": "2030-01-01T00:00:00Z"},
        {"sees_private": True},
        {"external_id": "u-1"},
        {"username": "root"},
        {"email_verified": True},
    ]
    for change in others:
        refused = member("PATCH", "/api/v1/users/me", json={"bio": "no", **change})
        assert (refused.status_code, refused.get_json()["code"]) == (403, "admins_only"), change
        assert list(refused.get_json()["errors"]) == list(change)
    wrong: list[tuple[dict[str, Any], int, str]] = [
        ({"avatar_url": "https://b.example/a.png"}, 422, "avatar_url"),
        ({"avatar_url": "https://a.example@b.example/a.png"}, 422, "avatar_url"),
        ({"avatar_url": "javascript:alert(1)"}, 422, "avatar_url"),
        ({"avatar_url": "data:image/png;base64,AA"}, 422, "avatar_url"),
        ({"wallet": WALLET.replace("A", "a", 1)}, 422, "wallet"),
        ({"wallet": "0x12"}, 422, "wallet"),
        ({"email": "nonsense", "password": PASSWORD}, 422, "email"),
        ({"email": None}, 422, "email"),
        ({"email": "BOB@example.org", "password": PASSWORD}, 409, "email"),
        ({"nickname": "x"}, 422, "nickname"),
    ]
    for change, status, field in wrong:
        answer = member("PATCH", "/api/v1/users/me", json=change)
        assert (answer.status_code, list(answer.get_json()["errors"])) == (status, [field]), change
    assert member("GET", "/api/v1/users/me").get_json()["bio"] is None, "a refused change changes nothing"
    for stranger in (other.id, "ext:nobody", "00000000-0000-4000-8000-000000000000"):
        assert member("PATCH", f"/api/v1/users/{stranger}", json={"bio": "x"}).status_code == 403
    assert client_of(client, tenant, "users:write")("PATCH", f"/api/v1/users/{other.id}", json={}).status_code == 403


def test_members_cannot_try_many_addresses_to_learn_which_are_registered(
    admin: Caller, client: FlaskClient, tenant: str
) -> None:
    member, other = user_of(client, tenant), user_of(client, tenant)
    bodies = [{"email": f"a{number}@example.org", "password": PASSWORD} for number in range(6)]
    tried = [member("PATCH", "/api/v1/users/me", json=body) for body in bodies]
    assert [answer.status_code for answer in tried] == [200] * 5 + [429]
    assert "Retry-After" in tried[-1].headers
    assert member("PATCH", "/api/v1/users/me", json={"bio": "x"}).status_code == 200
    assert other("PATCH", "/api/v1/users/me", json=bodies[5]).status_code == 200
    for number in range(6):
        path, body = f"/api/v1/users/{member.id}", {"email": f"c{number}@example.org"}
        assert admin("PATCH", path, json=body).status_code == 200, "admins see all addresses anyway"


def test_admins_change_usernames_of_others(admin: Caller, client: FlaskClient, tenant: str) -> None:
    user_of(client, tenant, username="taken")
    user = user_of(client, tenant, username="before")
    path = f"/api/v1/users/{user.id}"
    taken = admin("PATCH", path, json={"username": "Taken"})
    assert (taken.status_code, taken.get_json()["code"], list(taken.get_json()["errors"])) == (
        *(409, "name_taken"),
        ["username"],
    )
    assert admin("PATCH", path, json={"username": "no spaces"}).status_code == 422
    assert admin("PATCH", path, json={"username": "after"}).get_json()["username"] == "after"
    assert log_in(client, tenant, "after")["user"]["id"] == user.id
    body = {"tenant": tenant, "username": "before", "password": PASSWORD}
    assert client.post("/api/v1/auth/login", json=body).status_code == 401


def test_a_suspension_with_an_end_is_shown_and_over_by_itself(admin: Caller, client: FlaskClient, tenant: str) -> None:
    user = user_of(client, tenant)
    path = f"/api/v1/users/{user.id}"
    until = (utcnow() + timedelta(hours=1)).isoformat()
    shown = admin("PATCH", path, json={"suspended": True, "suspended_until": until}).get_json()
    assert (shown["suspended"], datetime.fromisoformat(shown["suspended_until"])) == (
        True,
        datetime.fromisoformat(until),
    )
    for wrong in ("2020-01-01T00:00:00Z", "9999-12-31T23:59:59-23:00", "2030-01-01T00:00:00", 1):
        answer = admin("PATCH", path, json={"suspended": True, "suspended_until": wrong})
        assert (answer.status_code, list(answer.get_json()["errors"])) == (422, ["suspended_until"]), wrong
    let_suspension_end(tenant, user.id)
    over = admin("GET", path).get_json()
    assert (over["suspended"], over["suspended_until"]) == (False, None)
