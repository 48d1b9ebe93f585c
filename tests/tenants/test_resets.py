"""Password resets: one token for each user, used once, for an hour."""

import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import text

from app.http.services import services_of
from tenants import resets, users
from tenants.db import tenant_tx, utcnow
from tenants.errors import Forbidden
from tenants.resets import BadResetToken
from tenants.users import Role
from tests.people import client_of, log_in, user_of
from tests.secrets_seen import SEEN


def test_a_reset_token_is_good_once_and_for_an_hour(client: FlaskClient, tenant: str) -> None:
    app = client_of(client, tenant, "users:write")
    user = user_of(client, tenant, username="grace")
    first = app("POST", f"/api/v1/users/{user.id}/password-reset").get_json()["reset_token"]
    second = app("POST", f"/api/v1/users/{user.id}/password-reset").get_json()["reset_token"]

    def spend(token: str, password: str = "another password") -> int:
        body = {"reset_token": token, "password": password}
        return client.post("/api/v1/auth/reset", json=body).status_code

    assert spend(first) == 401, "a new offer replaces the old one"
    assert spend(second, password="short") == 422
    assert spend(second) == 204
    assert spend(second) == 401
    assert log_in(client, tenant, "grace", "another password")
    with tenant_tx(tenant) as tx:
        stored = tx.execute(text("SELECT string_agg(token_hash, ' ') FROM password_resets")).scalar()
    assert second not in str(stored)


def test_a_reset_expires_after_an_hour_and_no_longer_names_its_user(app: Flask, tenant: str) -> None:
    now = utcnow()
    with tenant_tx(tenant) as tx:
        user = users.register(tx, username="ada", email=None, password_hash="x", now=now)
        token, expires_at = resets.create(tx, user, by_admin=False, signer=services_of(app).signer, now=now)
        SEEN.add(token)
        assert (resets.tenant_of(token), resets.user_of(tx, token, now=now)) == (tenant, user.id)
        assert expires_at == now + resets.RESET_TTL
        with pytest.raises(BadResetToken):
            resets.user_of(tx, token, now=expires_at)
        with pytest.raises(BadResetToken):
            resets.consume(tx, token, "another hash", now=expires_at)
        tx.refresh(user)
        assert user.password_hash == "x"


def test_only_an_admin_creates_a_reset_for_an_admin(app: Flask, tenant: str) -> None:
    signer = services_of(app).signer
    with tenant_tx(tenant) as tx:
        admin = users.register(tx, username="boss", email=None, password_hash="x", role=Role.ADMIN, now=utcnow())
        with pytest.raises(Forbidden):
            resets.create(tx, admin, by_admin=False, signer=signer, now=utcnow())
        assert resets.create(tx, admin, by_admin=True, signer=signer, now=utcnow())
