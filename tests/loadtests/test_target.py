"""Tokens for the measured service: as the service signs them, and new ones before they expire."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.run.data_folder import Addresses
from loadtests import target as target_module
from loadtests.dataset import DataSet, TenantSize
from loadtests.service import Service
from loadtests.target import FRESH_S, Target
from tenants import credentials, db, users
from tenants.credentials import Scope
from tenants.signing import Signer

URL, SECRET = "http://127.0.0.1:8000", "k" * 32


@pytest.fixture
def target(tenant: str, addresses: Addresses, monkeypatch: pytest.MonkeyPatch) -> Target:
    """A target whose service is this process; its database is that of the tests, which stays connected."""
    with db.tenant_tx(tenant) as tx:
        credentials.create_client(tx, name="Bench", scopes=[scope.value for scope in Scope], now=db.utcnow())
        users.ensure_external(tx, "u000000", now=db.utcnow())
    monkeypatch.setattr(target_module, "read_state", lambda _: {"addresses": vars(addresses)})
    monkeypatch.setattr(target_module, "read_secrets", lambda _: {"secret_key": SECRET})
    monkeypatch.setattr(db, "configure", lambda **_: None)
    monkeypatch.setattr(db, "dispose", lambda: None)
    service = cast("Service", SimpleNamespace(url=URL, data_dir=None))
    return Target(service, DataSet("test", [TenantSize(tenant, 0, 1)]))


def claims_of(token: str) -> dict[str, Any]:
    return Signer(issuer=URL, secret_key=SECRET).verify(token)


def test_the_client_has_every_scope_and_users_have_sessions(target: Target) -> None:
    client, user = claims_of(target.client_token()), claims_of(target.user_tokens()[0])
    assert client["kind"] == "client"
    assert {*client["scope"].split()} == {scope.value for scope in Scope}
    assert user["kind"] == "user"
    with db.tenant_tx(target.tenant.id) as tx:
        assert str(users.find(tx, "ext:u000000").id) == user["sub"]
    assert target.port == 8000


def test_tokens_are_replaced_before_they_expire(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000.0]
    monkeypatch.setattr("loadtests.target.time.monotonic", lambda: now[0])
    first = target.client_token()
    assert target.client_token() == first
    now[0] += FRESH_S
    assert target.client_token() != first


def test_it_is_idle_when_nothing_is_stale(target: Target) -> None:
    with target.owner() as owner:
        insert = "INSERT INTO outbox (tenant_id, kind, member) VALUES (%s, 'page', '1')"
        owner.execute(insert, [target.tenant.id])
        assert target.wait_until_idle(within_s=0.2) >= 0.2
        owner.execute("DELETE FROM outbox; DELETE FROM projecting")
    assert target.wait_until_idle(within_s=60) < 60
