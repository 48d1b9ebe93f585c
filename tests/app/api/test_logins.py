"""End users: registering, logging in and out, sessions, forgotten passwords."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal
from uuid import UUID

import pytest
from argon2 import PasswordHasher
from flask import Flask
from flask.testing import FlaskClient

from app.settings import Settings
from app.web import connect, create_app, install_services
from tenants import passwords, users
from tenants.db import tenant_tx, utcnow
from tenants.users import Role
from tests.conftest import make_tenant
from tests.people import PASSWORD, Caller, client_of, let_suspension_end, log_in, open_signup, user_of


@pytest.fixture
def tenant(connected: None) -> str:
    """One where anybody may register."""
    return open_signup(make_tenant())


@pytest.fixture
def other_tenant(connected: None) -> str:
    return open_signup(make_tenant())


def register(http: FlaskClient, tenant_id: str, **changes: Any) -> Any:
    body = {"tenant": tenant_id, "username": "ada_l", "email": "ada@example.org", "password": PASSWORD, **changes}
    return http.post("/api/v1/auth/register", json=body)


def test_register_log_in_and_see_oneself(client: FlaskClient, tenant: str) -> None:
    made = register(client, tenant)
    assert made.status_code == 201, made.text
    assert made.get_json()["role"] == "member"
    assert "password" not in made.text
    tokens = log_in(client, tenant, "ADA_L")
    me = client.get("/api/v1/me", headers={"Authorization": f"Bearer {tokens['access_token']}"}).get_json()
    assert (me["kind"], me["tenant"], me["roles"], me["user"]["username"]) == ("user", tenant, ["member"], "ada_l")


@pytest.mark.parametrize(
    ("changes", "status", "field"),
    [
        ({"username": "ab"}, 422, "username"),
        ({"username": "has space"}, 422, "username"),
        ({"username": "x" * 51}, 422, "username"),
        ({"username": "ünïcode"}, 422, "username"),
        ({"email": "not-an-address"}, 422, "email"),
        ({"email": "a@" + "b" * 250 + ".org"}, 422, "email"),
        ({"email": "a b@example.org"}, 422, "email"),
        ({"password": "short"}, 422, "password"),
        ({"password": "x" * 257}, 422, "password"),
        ({"role": "admin"}, 422, "role"),
        ({"tenant": "nobody-here"}, 404, None),
        ({"tenant": "' OR 1=1"}, 404, None),
    ],
)
def test_a_bad_registration_is_refused(
    client: FlaskClient, tenant: str, changes: dict[str, str], status: int, field: str | None
) -> None:
    answer = register(client, tenant, **changes)
    assert answer.status_code == status, answer.text
    if field:
        assert field in answer.get_json()["errors"]


def test_names_are_unique_per_tenant_whatever_their_case(client: FlaskClient, tenant: str, other_tenant: str) -> None:
    assert register(client, tenant).status_code == 201
    same_name = register(client, tenant, username="ADA_L", email="other@example.org")
    assert (same_name.status_code, same_name.get_json()["code"]) == (409, "name_taken")
    same_mail = register(client, tenant, username="other", email="Ada@Example.org")
    assert list(same_mail.get_json()["errors"]) == ["email"]
    assert register(client, other_tenant).status_code == 201


def test_sign_up_is_closed_until_it_is_opened_and_can_be_closed(client: FlaskClient, connected: None) -> None:
    tenant = make_tenant()
    closed = register(client, tenant)
    assert (closed.status_code, closed.get_json()["code"]) == (403, "signup_closed")
    admin = client_of(client, tenant)
    assert admin("PATCH", "/api/v1/settings", json={"signup_open": True}).status_code == 200
    assert register(client, tenant, username="earlier", email="earlier@example.org").status_code == 201
    assert admin("PATCH", "/api/v1/settings", json={"signup_open": False}).status_code == 200
    assert register(client, tenant).get_json()["code"] == "signup_closed"


class CountingHasher(PasswordHasher):
    """Counts the passwords that it verifies, which is what takes time."""

    verified = 0

    def verify(self, hash: str | bytes, password: str | bytes) -> Literal[True]:  # noqa: A002  the library's name
        self.verified += 1
        return super().verify(hash, password)


def test_unknown_tenant_unknown_user_and_wrong_password_get_the_same_answer(
    client: FlaskClient, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(client, tenant)
    hasher = CountingHasher(time_cost=1, memory_cost=8, parallelism=1)
    monkeypatch.setattr(passwords, "_hasher", hasher)
    answers = []
    for body in (
        {"tenant": tenant, "username": "ada_l", "password": "wrong password"},
        {"tenant": tenant, "username": "nobody", "password": "wrong password"},
        {"tenant": "nobody-here", "username": "ada_l", "password": "wrong password"},
    ):
        before = hasher.verified
        answer = client.post("/api/v1/auth/login", json=body)
        answers.append((answer.status_code, answer.get_json()["code"], answer.get_json()["detail"]))
        assert hasher.verified == before + 1, "the same work was done"
    assert len(set(answers)) == 1
    assert answers[0][:2] == (401, "invalid_credentials")


def test_logins_are_throttled_per_account(client: FlaskClient, tenant: str) -> None:
    body = {"tenant": tenant, "username": "victim", "password": "guess-guess-guess"}
    codes = [client.post("/api/v1/auth/login", json=body).status_code for _ in range(11)]
    assert codes == [401] * 10 + [429]
    limited = client.post("/api/v1/auth/login", json=body, headers={"X-Forwarded-For": "1.2.3.4"})
    assert limited.status_code == 429
    assert 1 <= int(limited.headers["Retry-After"]) <= 60
    assert limited.headers["RateLimit-Policy"] == '"login";q=10;w=60'
    other = {**body, "username": "somebody_else"}
    assert client.post("/api/v1/auth/login", json=other).status_code == 401


def test_logins_are_throttled_without_redis_too(settings: Settings, tenant: str) -> None:
    away = create_app(replace(settings, redis_url="redis://127.0.0.1:1/0")).test_client()
    body = {"tenant": tenant, "username": "victim", "password": "guess-guess-guess"}
    assert [away.post("/api/v1/auth/login", json=body).status_code for _ in range(11)] == [401] * 10 + [429]


@pytest.fixture(scope="module")
def built_twice(settings: Settings) -> tuple[Flask, Flask]:
    return create_app(settings), create_app(settings)


@pytest.fixture(params=["redis", "no redis"])
def two_apps(
    request: pytest.FixtureRequest, built_twice: tuple[Flask, Flask], settings: Settings
) -> tuple[Flask, Flask]:
    """Two applications, with Redis and without. (`tests/faults` does the same with real processes.)"""
    here = settings if request.param == "redis" else replace(settings, redis_url="redis://127.0.0.1:1/0")
    connect(here)
    for app in built_twice:
        install_services(app, here)
    return built_twice


@pytest.mark.parametrize("how", ["logout", "revoke", "suspend", "reset", "reuse"])
def test_an_ended_session_is_401_on_the_next_call_everywhere(
    two_apps: tuple[Flask, Flask], tenant: str, how: str
) -> None:
    one, two = (app.test_client() for app in two_apps)
    user, admin = user_of(one, tenant), user_of(one, tenant, role=Role.ADMIN)
    there = Caller(two, tenant, user.token, user.id)
    assert user("GET", "/api/v1/me").status_code == 200
    assert there("GET", "/api/v1/me").status_code == 200
    match how:
        case "logout":
            assert user("POST", "/api/v1/auth/logout").status_code == 204
        case "revoke":
            session = user("GET", "/api/v1/auth/sessions").get_json()["items"][0]
            assert session["current"] is True
            assert user("DELETE", f"/api/v1/auth/sessions/{session['id']}").status_code == 204
        case "suspend":
            assert admin("PATCH", f"/api/v1/users/{user.id}", json={"suspended": True}).status_code == 200
        case "reset":
            token = admin("POST", f"/api/v1/users/{user.id}/password-reset").get_json()["reset_token"]
            done = one.post("/api/v1/auth/reset", json={"reset_token": token, "password": "a new password"})
            assert done.status_code == 204
        case "reuse":
            assert one.post("/api/v1/auth/refresh", json={"refresh_token": user.refresh_token}).status_code == 200
            again = one.post("/api/v1/auth/refresh", json={"refresh_token": user.refresh_token})
            assert (again.status_code, again.get_json()["code"]) == (401, "invalid_refresh_token")
    assert there("GET", "/api/v1/me").status_code == 401
    assert user("GET", "/api/v1/me").status_code == 401


def test_what_a_user_sees_changes_on_the_next_call_everywhere(two_apps: tuple[Flask, Flask], tenant: str) -> None:
    one, two = (app.test_client() for app in two_apps)
    user, admin = user_of(one, tenant, sees_private=False), user_of(one, tenant, role=Role.ADMIN)
    there = Caller(two, tenant, user.token, user.id)
    changes: list[tuple[dict[str, Any], str]] = [
        ({}, "public"),
        ({"sees_private": True}, "all"),
        ({"sees_private": False}, "public"),
        ({"role": "admin"}, "all"),
        ({"role": "member"}, "public"),
    ]
    for change, expected in changes:
        assert admin("PATCH", f"/api/v1/users/{user.id}", json=change).status_code == 200
        for caller in (there, user):
            assert caller("GET", "/api/v1/me").get_json()["sees"] == expected, change


@pytest.mark.parametrize("meanwhile", ["reset", "suspend"])
def test_a_login_that_overlaps_a_reset_or_a_suspension_gets_no_session(
    client: FlaskClient, tenant: str, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    user = user_of(client, tenant, username="slow")
    real = passwords.verify_password

    def slowly(*of: Any, **more: Any) -> bool:
        right = real(*of, **more)
        with tenant_tx(tenant) as tx:
            found = users.find(tx, user.id)
            if meanwhile == "reset":
                users.set_password(tx, found.id, "another hash", now=utcnow())
            else:
                users.change(tx, found, {"suspended": True}, now=utcnow())
        return right

    monkeypatch.setattr(passwords, "verify_password", slowly)
    body = {"tenant": tenant, "username": "slow", "password": PASSWORD}
    refused = client.post("/api/v1/auth/login", json=body)
    assert (refused.status_code, refused.get_json()["code"]) == (
        (401, "invalid_credentials") if meanwhile == "reset" else (403, "suspended")
    )


def test_only_an_admin_gets_an_admins_reset_token(client: FlaskClient, tenant: str) -> None:
    admin = user_of(client, tenant, role=Role.ADMIN)
    app, boss = client_of(client, tenant, "users:write"), client_of(client, tenant)
    assert app("POST", f"/api/v1/users/{admin.id}/password-reset").status_code == 403
    assert boss("POST", f"/api/v1/users/{admin.id}/password-reset").status_code == 201
    own = admin("POST", "/api/v1/users/me/password-reset")
    assert (own.status_code, own.get_json()["code"]) == (403, "own_password"), "a session alone is not enough"


def test_a_forwarded_address_that_is_none_does_no_harm(settings: Settings, tenant: str) -> None:
    http = create_app(replace(settings, proxy_hops=1)).test_client()
    user_of(http, tenant, username="proxied")
    body = {"tenant": tenant, "username": "proxied", "password": PASSWORD}
    for forwarded in ("1.2.3.4:5678", "unknown", "::1, nonsense", "1.2.3.4"):
        answer = http.post("/api/v1/auth/login", json=body, headers={"X-Forwarded-For": forwarded})
        assert answer.status_code == 200, forwarded
        assert http.get("/metrics", headers={"X-Forwarded-For": forwarded}).status_code == 403


@pytest.mark.parametrize(
    "token", ["", "x", "rt_", "rt_a_b", "rt_demo_zzz_q", "rt_" + "a" * 500 + "_x_y", "pk_demo_1_2"]
)
def test_a_nonsense_refresh_or_reset_token_is_401(client: FlaskClient, token: str) -> None:
    assert client.post("/api/v1/auth/refresh", json={"refresh_token": token}).status_code == 401
    body = {"reset_token": token.replace("rt_", "rst_"), "password": PASSWORD}
    assert client.post("/api/v1/auth/reset", json=body).status_code == 401


def test_a_new_role_is_effective_at_once(client: FlaskClient, tenant: str) -> None:
    admin, user = user_of(client, tenant, role=Role.ADMIN), user_of(client, tenant)
    assert user("GET", "/api/v1/users").status_code == 403
    assert admin("PATCH", f"/api/v1/users/{user.id}", json={"role": "admin"}).status_code == 200
    assert user("GET", "/api/v1/users").status_code == 200
    assert admin("PATCH", f"/api/v1/users/{user.id}", json={"role": "member"}).status_code == 200
    assert user("GET", "/api/v1/users").status_code == 403
    own = admin("PATCH", f"/api/v1/users/{admin.id}", json={"role": "member"})
    assert (own.status_code, own.get_json()["code"]) == (409, "own_rights")


def test_a_suspended_user_cannot_log_in_until_it_is_lifted_and_learns_so_with_the_right_password_only(
    client: FlaskClient, tenant: str
) -> None:
    admin, user = client_of(client, tenant), user_of(client, tenant, username="troll")

    def log_in_as(username: str, password: str) -> Any:
        body = {"tenant": tenant, "username": username, "password": password}
        answer = client.post("/api/v1/auth/login", json=body)
        return {"status": answer.status_code, **answer.get_json(), "request_id": None}

    admin("PATCH", f"/api/v1/users/{user.id}", json={"suspended": True})
    told = log_in_as("troll", PASSWORD)
    assert (told["status"], told["code"], told["suspended_until"]) == (403, "suspended", None)
    assert log_in_as("troll", "wrong password") == log_in_as("nobody", "wrong password")
    end = utcnow().replace(microsecond=0) + timedelta(days=1)
    until = end.isoformat().replace("+00:00", "Z")
    admin("PATCH", f"/api/v1/users/{user.id}", json={"suspended_until": until})
    told = log_in_as("troll", PASSWORD)
    assert (told["code"], told["suspended_until"]) == ("suspended", until)
    assert f"{end:%Y-%m-%d %H:%M} UTC" in told["detail"]
    admin("PATCH", f"/api/v1/users/{user.id}", json={"suspended": False})
    assert log_in_as("troll", PASSWORD)["status"] == 200


def test_after_the_end_of_a_suspension_a_user_logs_in_and_acts_everywhere_without_anybody_doing_anything(
    two_apps: tuple[Flask, Flask], tenant: str
) -> None:
    one, two = (app.test_client() for app in two_apps)
    admin, user = client_of(one, tenant), user_of(one, tenant, username="back")
    there = Caller(two, tenant, user.token, user.id)
    until = (utcnow() + timedelta(hours=1)).isoformat()
    suspension = {"suspended": True, "suspended_until": until}
    assert admin("PATCH", f"/api/v1/users/{user.id}", json=suspension).status_code == 200
    assert (user("GET", "/api/v1/me").status_code, there("GET", "/api/v1/me").status_code) == (401, 401)
    let_suspension_end(tenant, user.id)
    token = log_in(one, tenant, "back")["access_token"]
    again = [Caller(http, tenant, token, user.id) for http in (one, two)]
    for caller in again:
        assert caller("GET", "/api/v1/me").get_json()["user"]["suspended"] is False
    assert user("GET", "/api/v1/me").status_code == 401, "a session from before stays ended"
    assert admin("PATCH", f"/api/v1/users/{user.id}", json=suspension).status_code == 200
    assert [caller("GET", "/api/v1/me").status_code for caller in again] == [401, 401]


def test_a_new_password_needs_the_old_one_and_ends_all_other_sessions_everywhere(
    two_apps: tuple[Flask, Flask], tenant: str, logged: Callable[[], list[dict[str, Any]]]
) -> None:
    one, two = (app.test_client() for app in two_apps)
    user, admin = user_of(one, tenant, username="ada"), client_of(one, tenant)
    reset = admin("POST", f"/api/v1/users/{user.id}/password-reset").get_json()["reset_token"]
    others = [Caller(http, tenant, log_in(http, tenant, "ada")["access_token"], user.id) for http in (one, two)]
    assert [caller("GET", "/api/v1/me").status_code for caller in (user, *others)] == [200] * 3
    new = "a better password"

    def change(old: str, new: str) -> tuple[int, Any]:
        answer = user("POST", "/api/v1/auth/password", json={"old": old, "new": new})
        return answer.status_code, answer.get_json(silent=True)

    status, refused = change("wrong password", new)
    assert (status, refused["code"]) == (403, "wrong_password")
    status, refused = change(PASSWORD, "short")
    assert (status, list(refused["errors"])) == (422, ["new"])
    assert others[1]("GET", "/api/v1/me").status_code == 200, "nothing has changed so far"
    assert change(PASSWORD, new)[0] == 204
    assert [caller("GET", "/api/v1/me").status_code for caller in (user, *others)] == [200, 401, 401]
    assert [session["current"] for session in user("GET", "/api/v1/auth/sessions").get_json()["items"]] == [True]
    line = next(line for line in logged() if line["action"] == "audit.password.changed")
    assert line["data"]["sessions_ended"] == 2
    assert new not in str(logged())
    assert one.post("/api/v1/auth/reset", json={"reset_token": reset, "password": new}).status_code == 401
    old = {"tenant": tenant, "username": "ada", "password": PASSWORD}
    assert two.post("/api/v1/auth/login", json=old).status_code == 401
    assert two.post("/api/v1/auth/login", json={**old, "password": new}).status_code == 200
    assert admin("POST", "/api/v1/auth/password", json={"old": PASSWORD, "new": new}).status_code == 403


def test_old_passwords_are_guessed_as_slowly_as_at_the_login(client: FlaskClient, tenant: str) -> None:
    user = user_of(client, tenant, username="victim")
    log_in(client, tenant, "victim")
    guess = {"old": "guess-guess-guess", "new": "a better password"}
    codes = [user("POST", "/api/v1/auth/password", json=guess).status_code for _ in range(10)]
    assert codes == [403] * 9 + [429], "the login before was the first"
    body = {"tenant": tenant, "username": "victim", "password": PASSWORD}
    assert client.post("/api/v1/auth/login", json=body).status_code == 429, "together with logins"


@pytest.mark.parametrize("weak", ["password123", "zzzzzzyyyyyy", "ada_lovelace1", "ada.byron9"])
def test_a_weak_password_is_refused_wherever_one_is_set_and_accepted_where_it_exists(
    client: FlaskClient, tenant: str, weak: str
) -> None:
    refused = register(client, tenant, username="ada_lovelace", email="ada.byron@example.org", password=weak)
    assert (refused.status_code, list(refused.get_json()["errors"])) == (422, ["password"])
    assert register(client, tenant, username="ada_lovelace", email="ada.byron@example.org").status_code == 201
    tokens = log_in(client, tenant, "ada_lovelace")
    user = Caller(client, tenant, tokens["access_token"], tokens["user"]["id"])
    refused = user("POST", "/api/v1/auth/password", json={"old": PASSWORD, "new": weak})
    assert (refused.status_code, list(refused.get_json()["errors"])) == (422, ["new"])
    reset = client_of(client, tenant)("POST", f"/api/v1/users/{user.id}/password-reset").get_json()["reset_token"]
    refused = client.post("/api/v1/auth/reset", json={"reset_token": reset, "password": weak})
    assert (refused.status_code, list(refused.get_json()["errors"])) == (422, ["password"])
    with tenant_tx(tenant) as tx:
        found = users.find(tx, user.id)
        users.set_password(tx, found.id, passwords.hash_password(weak), now=utcnow())
    assert log_in(client, tenant, "ada_lovelace", weak), "one of before stays until it is changed"


def test_a_better_hash_of_an_issued_password_does_not_make_it_the_users_own(
    client: FlaskClient, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    user_of(client, tenant, username="ada", must_change_password=True)
    monkeypatch.setattr(passwords, "_hasher", PasswordHasher(time_cost=2, memory_cost=16, parallelism=1))
    assert log_in(client, tenant, "ada")["must_change_password"] is True
    assert log_in(client, tenant, "ada")["must_change_password"] is True


def test_users_are_listed_by_pages_and_found_by_their_beginning(client: FlaskClient, tenant: str) -> None:
    admin = client_of(client, tenant)
    with tenant_tx(tenant) as tx:
        for number in range(25):
            users.ensure_external(tx, f"u-{number:02}", now=utcnow())
    seen: list[str] = []
    cursor = ""
    while True:
        page = admin("GET", f"/api/v1/users?limit=10{cursor}").get_json()
        seen += [item["external_id"] for item in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert len(seen) == len(set(seen)) == 25
    assert {item["external_id"] for item in admin("GET", "/api/v1/users?q=u-1").get_json()["items"]} == {
        f"u-1{n}" for n in range(10)
    }
    assert admin("GET", "/api/v1/users?q=%25").get_json()["items"] == []
    for bad in ("cursor=zzz", "cursor=e30", "limit=0", "limit=101", "limit=x"):
        assert admin("GET", f"/api/v1/users?{bad}").status_code == 422, bad


def test_a_user_sees_others_without_their_address(client: FlaskClient, tenant: str) -> None:
    one, two = user_of(client, tenant), user_of(client, tenant)
    assert one("GET", "/api/v1/users/me").get_json()["email"]
    assert one("GET", f"/api/v1/users/{two.id}").get_json()["email"] is None
    for nobody in ("ext:none", "not-a-uuid", "00000000-0000-0000-0000-000000000000"):
        assert one("GET", f"/api/v1/users/{nobody}").status_code == 404


def test_a_failed_login_leaves_a_line_with_tenant_account_and_network_and_no_password(
    client: FlaskClient, tenant: str, logged: Callable[[], list[dict[str, Any]]]
) -> None:
    user = user_of(client, tenant)
    with tenant_tx(tenant) as tx:
        username = users.get(tx, UUID(user.id)).username
    typed = "MyPasswordInTheWrongField"
    for name in (username, typed):
        body = {"tenant": tenant, "username": name, "password": "not the right one"}
        assert client.post("/api/v1/auth/login", json=body).status_code == 401
    failed = [line for line in logged() if line["action"] == "audit.login.failed"]
    assert [line["tenantId"] for line in failed] == [tenant] * 2
    assert [line["data"]["account"] for line in failed] == [username, None]
    assert {line["data"]["address"] for line in failed} == {"127.0.0.0/24"}
    assert typed not in str(failed)
    assert "not the right one" not in str(failed)
