"""How many attempts at passwords there may be: of an account, and of all accounts of a tenant."""

from dataclasses import replace
from typing import Any

import pytest
from flask.testing import FlaskClient

from app.settings import Settings
from app.web import create_app
from tenants import settings as tenant_settings
from tenants.db import tenant_tx, utcnow
from tests.people import PASSWORD, user_of

AGENT = {"User-Agent": "tests"}  # as the sessions of `user_of` have it


@pytest.fixture
def proxied(settings: Settings, client: FlaskClient) -> FlaskClient:
    return create_app(replace(settings, proxy_hops=1)).test_client()


def allow(tenant: str, logins_per_minute: int) -> None:
    with tenant_tx(tenant) as tx:
        tenant_settings.change(tx, {"limits": {"logins_per_minute": logins_per_minute}}, now=utcnow())


def log_in(http: FlaskClient, tenant: str, username: str, address: str, password: str = PASSWORD) -> Any:
    body = {"tenant": tenant, "username": username, "password": password}
    return http.post("/api/v1/auth/login", json=body, headers={"X-Forwarded-For": address, **AGENT})


def test_above_a_tenants_bound_new_devices_wait_and_known_ones_and_other_tenants_do_not(
    proxied: FlaskClient, tenant: str, other_tenant: str
) -> None:
    for name in (tenant, other_tenant):
        user_of(proxied, name, username="ada")
    allow(tenant, 10)
    guesses = [log_in(proxied, tenant, f"user_{n}", f"10.0.0.{n}", "guess-guess-guess") for n in range(12)]
    assert [answer.status_code for answer in guesses] == [401] * 10 + [429] * 2
    assert 1 <= int(guesses[-1].headers["Retry-After"]) <= 60
    assert guesses[-1].headers["RateLimit-Policy"] == '"login-tenant";q=10;w=60'
    assert log_in(proxied, tenant, "ada", "10.0.1.1").status_code == 429, "another network than theirs"
    assert log_in(proxied, tenant, "ada", "127.0.0.1").status_code == 200, "the device of their last session"
    assert log_in(proxied, tenant, "nobody", "127.0.0.1").status_code == 429, "a device is known for one user"
    assert log_in(proxied, other_tenant, "ada", "10.0.1.1").status_code == 200


def test_all_unknown_tenants_together_are_as_one(proxied: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "app.http.password_attempts.Limits", lambda: replace(tenant_settings.Limits(), logins_per_minute=10)
    )
    names = ["nobody-here", "' OR 1=1", "", "another-one", "UPPER"]
    codes = [log_in(proxied, names[n % len(names)], "ada", f"10.0.0.{n}").status_code for n in range(12)]
    assert codes == [401] * 10 + [429] * 2


def test_refusals_of_one_account_use_nothing_of_its_tenants_bound(proxied: FlaskClient, tenant: str) -> None:
    allow(tenant, 62)
    codes = [log_in(proxied, tenant, "victim", f"10.0.0.{n}", "guess-guess-guess").status_code for n in range(70)]
    assert codes == [401] * 60 + [429] * 10
    assert log_in(proxied, tenant, "somebody", "10.0.1.1").status_code == 401


def test_who_has_a_session_changes_a_password_whatever_happens_at_the_login(proxied: FlaskClient, tenant: str) -> None:
    user = user_of(proxied, tenant, username="ada")
    allow(tenant, 10)
    for n in range(11):
        log_in(proxied, tenant, f"user_{n}", f"10.0.0.{n}", "guess-guess-guess")
    body = {"old": PASSWORD, "new": "a better password"}
    changed = user("POST", "/api/v1/auth/password", json=body, headers={"X-Forwarded-For": "10.0.1.1"})
    assert changed.status_code == 204
