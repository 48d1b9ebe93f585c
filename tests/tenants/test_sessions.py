"""Sessions: refresh tokens that are used once, and the rights of a session's user."""

from datetime import timedelta
from uuid import uuid4

import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import text

from app.http.services import services_of
from tenants import sessions, users
from tenants.db import Tx, tenant_tx, utcnow
from tenants.sessions import BrowserSession, Rights
from tenants.signing import Signer
from tenants.users import Role, User
from tests.people import client_of, user_of


def test_new_rights_bring_no_session_back_that_has_run_out(client: FlaskClient, tenant: str) -> None:
    user, admin = user_of(client, tenant), client_of(client, tenant)
    with tenant_tx(tenant) as tx:
        tx.execute(text("UPDATE sessions SET expires_at = now() - interval '1 minute'"))
    assert admin("PATCH", f"/api/v1/users/{user.id}", json={"role": "admin"}).status_code == 200
    assert user("GET", "/api/v1/me").status_code == 401


def test_refreshing_gives_new_tokens_and_the_old_session(client: FlaskClient, tenant: str) -> None:
    user = user_of(client, tenant)
    answer = client.post("/api/v1/auth/refresh", json={"refresh_token": user.refresh_token}).get_json()
    assert answer["refresh_token"] != user.refresh_token
    user.token = answer["access_token"]
    assert len(user("GET", "/api/v1/auth/sessions").get_json()["items"]) == 1


def test_who_knows_a_sessions_id_cannot_end_it(client: FlaskClient, tenant: str) -> None:
    user = user_of(client, tenant)
    prefix = "_".join(user.refresh_token.split("_")[:3])
    for forged in (f"{prefix}_x", f"{prefix}_{'0' * 48}_{'0' * 32}", user.refresh_token[:-1] + "é"):
        assert client.post("/api/v1/auth/refresh", json={"refresh_token": forged}).status_code == 401
    assert user("GET", "/api/v1/me").status_code == 200
    assert client.post("/api/v1/auth/refresh", json={"refresh_token": user.refresh_token}).status_code == 200


def test_a_session_that_ran_out_is_not_called_reused(client: FlaskClient, tenant: str) -> None:
    user = user_of(client, tenant)
    with tenant_tx(tenant) as tx:
        tx.execute(text("UPDATE sessions SET expires_at = now() - interval '1 minute'"))
    answer = client.post("/api/v1/auth/refresh", json={"refresh_token": user.refresh_token})
    assert answer.status_code == 401
    assert "used before" not in answer.text


def test_a_reused_refresh_token_ends_the_newest_one_too(client: FlaskClient, tenant: str) -> None:
    user = user_of(client, tenant)
    newest = client.post("/api/v1/auth/refresh", json={"refresh_token": user.refresh_token}).get_json()["refresh_token"]
    client.post("/api/v1/auth/refresh", json={"refresh_token": user.refresh_token})
    assert client.post("/api/v1/auth/refresh", json={"refresh_token": newest}).status_code == 401


def test_a_session_that_has_run_out_cannot_be_refreshed(client: FlaskClient, tenant: str, app: Flask) -> None:
    user = user_of(client, tenant)
    later = utcnow() + sessions.SESSION_TTL + timedelta(seconds=1)
    with app.app_context(), pytest.raises(sessions.BadRefreshToken):
        sessions.refresh(user.refresh_token, signer=services_of(app).signer, now=later)


@pytest.fixture
def signer(app: Flask) -> Signer:
    """With its keys: it reads none inside a transaction."""
    signer = services_of(app).signer
    signer.load()
    return signer


def started(tx: Tx, signer: Signer) -> tuple[User, sessions.Tokens]:
    user = users.register(tx, username="ada", email=None, password_hash="x", sees_private=False, now=utcnow())
    return user, sessions.start(tx, user, signer=signer, ip="10.0.0.1", agent="Firefox", now=utcnow())


def test_rights_follow_the_user_and_end_with_the_session(signer: Signer, tenant: str) -> None:
    with tenant_tx(tenant) as tx:
        user, tokens = started(tx, signer)
    session = str(tokens.session_id)
    assert sessions.rights_of(tenant, session) == Rights(Role.MEMBER, public_only=True)
    for changes, expected in (
        ({"sees_private": True}, Rights(Role.MEMBER, public_only=False)),
        ({"sees_private": False, "role": Role.ADMIN}, Rights(Role.ADMIN, public_only=False)),
        ({"suspended": True}, None),
    ):
        with tenant_tx(tenant) as tx:
            sessions.change_user(tx, users.get(tx, user.id), changes, now=utcnow())
        assert sessions.rights_of(tenant, session) == expected, changes
    assert sessions.rights_of(tenant, "not-a-uuid") is None


def test_a_cookie_names_its_session_only_if_we_signed_it(signer: Signer, tenant: str) -> None:
    with tenant_tx(tenant) as tx:
        user, tokens = started(tx, signer)
        cookie = sessions.start_in_browser(tx, user, signer=signer, ip=None, agent=None, now=utcnow())
    assert sessions.parse_cookie(cookie.value, signer) == BrowserSession(tenant, user.id, cookie.session_id)
    another = cookie.value.replace(cookie.session_id.hex, tokens.session_id.hex)
    for forged in ("", cookie.value[:-1], another, tokens.refresh_token, tokens.refresh_token.replace("rt_", "ds_")):
        assert sessions.parse_cookie(forged, signer) is None, forged


def test_a_device_is_known_by_its_network_and_agent(signer: Signer, tenant: str) -> None:
    with tenant_tx(tenant) as tx:
        started(tx, signer)
        cases = [
            ("ADA", "10.0.0.0/24", "Firefox", timedelta(0), True),
            ("ada", "10.0.1.0/24", "Firefox", timedelta(0), False),
            ("ada", "10.0.0.0/24", "curl", timedelta(0), False),
            ("bob", "10.0.0.0/24", "Firefox", timedelta(0), False),
            ("ada", "10.0.0.0/24", "Firefox", sessions.SESSION_TTL, False),
        ]
        for username, network, agent, later, known in cases:
            found = sessions.is_known_device(tx, username, network=network, agent=agent, now=utcnow() + later)
            assert found is known, (username, network, agent, later)


def test_sessions_are_fetched_together_and_follow_their_users(
    signer: Signer, tenant: str, other_tenant: str, trusted_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tenant_tx(tenant) as tx:
        user, tokens = started(tx, signer)
    session, nobody = str(tokens.session_id), str(uuid4())
    sessions.fetch([(tenant, session), (tenant, nobody), (other_tenant, session), (tenant, session)])
    with monkeypatch.context() as patch:
        patch.setattr(sessions, "read_one", lambda *_: pytest.fail("it is in memory"))
        sessions.fetch([(tenant, session)])
        assert sessions.rights_of(tenant, session) == Rights(Role.MEMBER, public_only=True)
        assert sessions.rights_of(tenant, nobody) is None
        assert sessions.rights_of(other_tenant, session) is None
    with tenant_tx(tenant) as tx:
        sessions.change_user(tx, users.get(tx, user.id), {"suspended": True}, now=utcnow())
    assert sessions.rights_of(tenant, session) is None
