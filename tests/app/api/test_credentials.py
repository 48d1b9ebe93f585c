"""Clients and keys over HTTP: secrets are shown once, and a revocation is effective at once."""

from datetime import timedelta
from typing import Any

from flask.testing import FlaskClient
from sqlalchemy import text

from tenants import credentials
from tenants.db import tenant_tx, utcnow
from tests.attacks.conftest import admin, key
from tests.beacons import ORIGIN, send
from tests.people import Caller, client_of, token_of

__all__ = ["admin", "key"]


def test_a_rotated_secret_leaves_the_old_one_a_day(client: FlaskClient, tenant: str) -> None:
    app = client_of(client, tenant)
    new = app("POST", f"/api/v1/clients/{app.id}/rotate").get_json()["client_secret"]
    assert token_of(client, app.id, new)
    assert token_of(client, app.id, app.secret)
    with tenant_tx(tenant) as tx:
        row = credentials.list_clients(tx)[0]
    assert row.accepts(app.secret, now=utcnow())
    assert not row.accepts(app.secret, now=utcnow() + timedelta(days=1, seconds=1))
    assert row.last_used_at is not None


def test_the_secret_is_shown_once_and_stored_as_a_hash(client: FlaskClient, tenant: str) -> None:
    admin = client_of(client, tenant)
    made: dict[str, Any] = admin("POST", "/api/v1/clients", json={"name": "x", "scopes": ["stats:read"]}).get_json()
    listed = admin("GET", "/api/v1/clients").get_json()["items"]
    assert made["client_id"] in {row["client_id"] for row in listed}
    assert all("client_secret" not in row for row in listed)
    with tenant_tx(tenant) as tx:
        for row in tx.execute(text("SELECT oauth_clients::text FROM oauth_clients")).scalars():
            assert made["client_secret"] not in row


def test_a_revoked_key_is_out_at_once(client: FlaskClient, admin: Caller, key: str) -> None:
    assert send(client, key).status_code == 202
    assert admin("DELETE", f"/api/v1/keys/{key}").status_code == 204
    assert send(client, key).status_code == 401


def test_a_key_says_whether_pages_make_themselves(admin: Caller, key: str) -> None:
    other = admin("POST", "/api/v1/keys", json={"origins": [ORIGIN], "auto_pages": True}).get_json()["key"]
    listed = {one["key"]: one["auto_pages"] for one in admin("GET", "/api/v1/keys").get_json()["items"]}
    assert listed == {key: False, other: True}
    wrong = admin("POST", "/api/v1/keys", json={"origins": [ORIGIN], "auto_pages": "yes"})
    assert list(wrong.get_json()["errors"]) == ["auto_pages"]


def test_keys_are_listed_in_slices_until_they_are_revoked(admin: Caller, key: str) -> None:
    others = [admin("POST", "/api/v1/keys", json={"origins": [ORIGIN]}).get_json()["key"] for _ in range(2)]
    first = admin("GET", "/api/v1/keys?limit=2").get_json()
    rest = admin("GET", f"/api/v1/keys?limit=2&cursor={first['next_cursor']}").get_json()
    assert [one["key"] for one in first["items"] + rest["items"]] == sorted([key, *others])
    assert rest["next_cursor"] is None
    assert admin("DELETE", f"/api/v1/keys/{key}").status_code == 204
    assert [one["key"] for one in admin("GET", "/api/v1/keys").get_json()["items"]] == sorted(others)


def test_only_admins_see_and_change_credentials(client: FlaskClient, tenant: str, key: str) -> None:
    reader = client_of(client, tenant, "stats:read", "users:write")
    for method, path in (
        ("GET", "/api/v1/clients"),
        ("POST", f"/api/v1/clients/{reader.id}/rotate"),
        ("DELETE", f"/api/v1/clients/{reader.id}"),
        ("GET", "/api/v1/keys"),
        ("DELETE", f"/api/v1/keys/{key}"),
    ):
        assert reader(method, path).get_json()["code"] == "insufficient_scope", path
