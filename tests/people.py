"""Clients and users for tests, with their tokens: created by the domain, which is quicker than by the API."""

from dataclasses import dataclass
from secrets import token_hex
from typing import Any

from flask.testing import FlaskClient
from sqlalchemy import text
from werkzeug.test import TestResponse

from app.http.services import services_of
from tenants import credentials, passwords, sessions, tickets, users
from tenants import settings as tenant_settings
from tenants.db import tenant_tx, utcnow
from tenants.tickets import Holder
from tenants.users import Role
from tests.secrets_seen import SEEN

PASSWORD = "correct horse battery"  # the tests' own
_hash: list[str] = []


@dataclass
class Caller:
    """A test client with the token of a client or user."""

    http: FlaskClient
    tenant: str
    token: str
    id: str
    secret: str = ""
    refresh_token: str = ""

    def __call__(self, method: str, path: str, **options: Any) -> TestResponse:
        headers = {"Authorization": f"Bearer {self.token}", **options.pop("headers", {})}
        return self.http.open(path, method=method, headers=headers, **options)


def client_of(http: FlaskClient, tenant: str, *scopes: str) -> Caller:
    with tenant_tx(tenant) as tx:
        created = credentials.create_client(tx, name="Test app", scopes=scopes or ["admin"], now=utcnow())
    signer = services_of(http.application).signer
    token = credentials.client_token(created.client, " ".join(created.client.scopes), signer=signer, now=utcnow())
    SEEN.update({created.secret, token})
    return Caller(http, tenant, token, created.client.id, created.secret)


def token_of(http: FlaskClient, client_id: str, secret: str, **extra: str) -> str:
    answer = http.post("/oauth/token", data={"grant_type": "client_credentials", **extra}, auth=(client_id, secret))
    assert answer.status_code == 200, answer.text
    return str(answer.get_json()["access_token"])


def user_of(
    http: FlaskClient,
    tenant: str,
    *,
    role: Role = Role.MEMBER,
    username: str | None = None,
    sees_private: bool = True,
    must_change_password: bool = False,
) -> Caller:
    """A user with a login. A self-registered user has `sees_private` false."""
    username = username or f"user_{token_hex(4)}"
    if not _hash:
        _hash.append(passwords.hash_password(PASSWORD))
    signer = services_of(http.application).signer
    signer.load()
    with tenant_tx(tenant) as tx:
        user = users.register(
            tx,
            username=username,
            email=f"{username}@example.org",
            password_hash=_hash[0],
            role=role,
            sees_private=sees_private,
            must_change_password=must_change_password,
            now=utcnow(),
        )
        tokens = sessions.start(tx, user, signer=signer, ip="127.0.0.1", agent="tests", now=utcnow())
    SEEN.update({tokens.access_token, tokens.refresh_token})
    return Caller(http, tenant, tokens.access_token, str(user.id), refresh_token=tokens.refresh_token)


def static_token_of(creator: Caller, *scopes: str, **more: Any) -> Caller:
    """A caller with a new static token. Its `id` is the token's."""
    body = {"name": "Grafana", "scopes": scopes or ["stats:read"], **more}
    answer = creator("POST", "/api/v1/tokens", json=body)
    assert answer.status_code == 201, answer.text
    created = answer.get_json()
    SEEN.add(created["token"])
    return Caller(creator.http, creator.tenant, created["token"], created["id"])


def let_suspension_end(tenant: str, user_id: str) -> None:
    """As if the time of a user's suspension had passed; nobody has done anything about it."""
    with tenant_tx(tenant) as tx:
        past = "(suspended_at AT TIME ZONE 'UTC' - interval '1 minute') AT TIME ZONE 'UTC'"
        moved = text(f"UPDATE users SET suspended_until = {past} WHERE tenant_id = :tenant AND id = :user")
        tx.execute(moved, {"tenant": tenant, "user": user_id})


def open_signup(tenant: str) -> str:
    """Let anybody register in this tenant."""
    with tenant_tx(tenant) as tx:
        tenant_settings.change(tx, {"signup_open": True}, now=utcnow())
    return tenant


def log_in(http: FlaskClient, tenant: str, username: str, password: str = PASSWORD) -> dict[str, Any]:
    answer = http.post("/api/v1/auth/login", json={"tenant": tenant, "username": username, "password": password})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.get_json()
    return body


def use_ticket(http: FlaskClient, ticket: str) -> Holder:
    """Use up a ticket, as the live process does."""
    signer = services_of(http.application).signer
    return tickets.consume(ticket, signer=signer, network="127.0.0.1", now=utcnow())
