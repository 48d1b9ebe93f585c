"""Sessions end when they are not used, and a user has a bounded number of them."""

import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import text

from app.http.services import services_of
from tenants import liveness, session_use, sessions, users
from tenants import settings as tenant_settings
from tenants.db import tenant_tx, utcnow
from tenants.settings import TenantSettings
from tenants.users import Role
from tests.people import PASSWORD, Caller, user_of
from tests.tenants.conftest import trusted_memory

__all__ = ["trusted_memory"]


def unused_for(tenant: str, days: float) -> None:
    """As if all sessions of the tenant had last been used so long ago, and none were in memory."""
    with tenant_tx(tenant) as tx:
        past = text("UPDATE sessions SET last_used_at = :at WHERE tenant_id = :tenant")
        tx.execute(past, {"tenant": tenant, "at": utcnow() - timedelta(days=days)})
        liveness.record(tx, [liveness.SETTINGS])


def last_used(tenant: str) -> Any:
    with tenant_tx(tenant) as tx:
        return tx.scalar(text("SELECT max(last_used_at) FROM sessions WHERE tenant_id = :tenant"), {"tenant": tenant})


def change_settings(tenant: str, **changes: int) -> None:
    with tenant_tx(tenant) as tx:
        tenant_settings.change(tx, changes, now=utcnow())


def sign_in(http: FlaskClient, tenant: str, username: str) -> None:
    body = {"tenant": tenant, "username": username, "password": PASSWORD}
    assert http.post("/dashboard/login", json=body, headers={"X-Plaudit-Dashboard": "1"}).status_code == 204


@pytest.mark.parametrize(("role", "days"), [(Role.MEMBER, 14), (Role.ADMIN, 1)])
def test_a_session_that_is_not_used_ends(client: FlaskClient, tenant: str, role: Role, days: int) -> None:
    user = user_of(client, tenant, role=role, username="ada")
    unused_for(tenant, days - 0.01)
    assert user("GET", "/api/v1/me").status_code == 200
    unused_for(tenant, days + 0.01)
    assert user("GET", "/api/v1/me").status_code == 401
    answer = client.post("/api/v1/auth/refresh", json={"refresh_token": user.refresh_token})
    assert (answer.status_code, answer.get_json()["code"]) == (401, "invalid_refresh_token")
    assert "used before" not in answer.text
    with tenant_tx(tenant) as tx:
        assert session_use.list_for(tx, users.by_username(tx, "ada"), now=utcnow()) == []  # type: ignore[arg-type]


def test_the_tenants_settings_say_how_long_at_once(client: FlaskClient, tenant: str, trusted_memory: None) -> None:
    member, admin = user_of(client, tenant), user_of(client, tenant, role=Role.ADMIN)
    unused_for(tenant, 2)
    assert [caller("GET", "/api/v1/me").status_code for caller in (member, admin)] == [200, 401]
    change_settings(tenant, session_idle_days=1, admin_session_idle_days=3)
    assert [caller("GET", "/api/v1/me").status_code for caller in (member, admin)] == [401, 200]


def test_what_is_in_memory_ends_at_the_right_time_too(
    client: FlaskClient, tenant: str, trusted_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    user_of(client, tenant)
    with tenant_tx(tenant) as tx:
        session = str(tx.scalar(text("SELECT id FROM sessions WHERE tenant_id = :tenant"), {"tenant": tenant}))
    rights = sessions.rights_of(tenant, session)
    assert rights is not None
    assert abs(rights.expires_at - (utcnow() + timedelta(days=14)).timestamp()) < 600
    monkeypatch.setattr("tenants.sessions.time.time", lambda: rights.expires_at + 1)
    monkeypatch.setattr(sessions, "read_one", lambda *_: pytest.fail("it is in memory"))
    assert sessions.rights_of(tenant, session) is None


def test_a_session_that_is_refreshed_shortly_before_its_end_goes_on_at_once(
    client: FlaskClient, tenant: str, trusted_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = user_of(client, tenant)
    unused_for(tenant, 14 - 5 / 1440)
    assert user("GET", "/api/v1/me").status_code == 200, "in memory until then"
    answer = client.post("/api/v1/auth/refresh", json={"refresh_token": user.refresh_token})
    new = replace(user, token=answer.get_json()["access_token"], refresh_token=answer.get_json()["refresh_token"])
    in_six_minutes = time.time() + 360
    monkeypatch.setattr("tenants.sessions.time.time", lambda: in_six_minutes)
    assert new("GET", "/api/v1/me").status_code == 200
    answer = client.post("/api/v1/auth/refresh", json={"refresh_token": new.refresh_token})
    assert answer.status_code == 200


def test_a_cookie_is_touched_when_it_is_used_once_an_hour(
    client: FlaskClient, tenant: str, trusted_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    user_of(client, tenant, username="ada")
    sign_in(client, tenant, "ada")
    unused_for(tenant, 0.5 / 24)
    before = last_used(tenant)
    assert client.get("/api/v1/me").status_code == 200
    assert last_used(tenant) == before, "half an hour ago is recent"
    unused_for(tenant, 13)
    assert client.get("/api/v1/me").status_code == 200
    touched = last_used(tenant)
    assert utcnow() - touched < timedelta(minutes=10)
    monkeypatch.setattr(session_use, "touch", lambda *_, **__: pytest.fail("it was touched a moment ago"))
    assert client.get("/api/v1/me").status_code == 200


def test_an_ended_session_is_not_touched_to_life(client: FlaskClient, tenant: str) -> None:
    user_of(client, tenant, username="ada")
    sign_in(client, tenant, "ada")
    unused_for(tenant, 15)
    before = last_used(tenant)
    assert [client.get("/api/v1/me").status_code for _ in range(2)] == [401, 401]
    assert last_used(tenant) == before


def test_refreshing_is_using(client: FlaskClient, tenant: str) -> None:
    user = user_of(client, tenant)
    unused_for(tenant, 13)
    answer = client.post("/api/v1/auth/refresh", json={"refresh_token": user.refresh_token})
    assert answer.status_code == 200
    assert utcnow() - last_used(tenant) < timedelta(minutes=10)


def test_a_twenty_first_session_ends_the_oldest_everywhere(app: Flask, tenant: str, trusted_memory: None) -> None:
    http, signer = app.test_client(), services_of(app).signer
    first, other = user_of(http, tenant, username="ada"), user_of(http, tenant)
    assert first("GET", "/api/v1/me").status_code == 200
    callers = [first]
    for _ in range(session_use.MAX_SESSIONS_OF_USER):
        with tenant_tx(tenant) as tx:
            user = users.by_username(tx, "ada")
            assert user is not None
            tokens = sessions.start(tx, user, signer=signer, ip=None, agent=None, now=utcnow())
        callers.append(Caller(http, tenant, tokens.access_token, first.id))
        assert callers[-1]("GET", "/api/v1/me").status_code == 200
    assert [caller("GET", "/api/v1/me").status_code for caller in callers] == [401] + [200] * 20
    assert len(callers[-1]("GET", "/api/v1/auth/sessions").get_json()["items"]) == 20
    assert other("GET", "/api/v1/me").status_code == 200


def test_admins_have_a_limit_of_their_own() -> None:
    settings = TenantSettings(session_idle_days=3, admin_session_idle_days=2)
    assert session_use.idle_limit(settings, Role.MEMBER) == timedelta(days=3)
    assert session_use.idle_limit(settings, Role.ADMIN) == timedelta(days=2)
