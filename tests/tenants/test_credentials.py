"""Clients, their secrets and tokens, and publishable keys: created, found inside their tenant, revoked."""

from datetime import timedelta

import pytest

from tenants import credentials, registry
from tenants import settings as tenant_settings
from tenants.credentials import Client, ClientToken
from tenants.db import owner_tx, tenant_tx, utcnow
from tenants.errors import Invalid, NotFound
from tenants.signing import Signer
from tests.secrets_seen import SEEN

SIGNER = Signer(issuer="https://a.example", secret_key="a secret of these tests' own, long enough")


@pytest.fixture
def created(tenant: str) -> credentials.NewSecret:
    with tenant_tx(tenant) as tx:
        created = credentials.create_client(tx, name="App", scopes=["admin", "pages:write", "admin"], now=utcnow())
    SEEN.add(created.secret)
    return created


def test_a_client_has_its_scopes_once_and_in_the_order_of_the_list(created: credentials.NewSecret) -> None:
    assert created.client.scopes == ["pages:write", "admin"]
    assert created.secret not in vars(created.client).values(), "only its hash is stored"


@pytest.mark.parametrize(
    ("name", "scopes", "field"),
    [("", ["admin"], "name"), ("a\nb", ["admin"], "name"), ("x", [], "scopes"), ("x", ["admin", "root"], "scopes")],
)
def test_a_wrong_client_is_refused_by_field(tenant: str, name: str, scopes: list[str], field: str) -> None:
    with tenant_tx(tenant) as tx, pytest.raises(Invalid) as refused:
        credentials.create_client(tx, name=name, scopes=scopes, now=utcnow())
    assert list(refused.value.errors or {}) == [field]


def test_after_a_rotation_both_secrets_are_accepted_for_a_day(created: credentials.NewSecret, tenant: str) -> None:
    now = utcnow()
    with tenant_tx(tenant) as tx:
        rotated = credentials.rotate_client(tx, created.client.id, now=now)
        SEEN.add(rotated.secret)
    for secret, later, accepted in (
        (rotated.secret, timedelta(days=400), True),
        (created.secret, credentials.OLD_SECRET_TTL - timedelta(seconds=1), True),
        (created.secret, credentials.OLD_SECRET_TTL, False),
        ("sk_another", timedelta(0), False),
        ("", timedelta(0), False),
    ):
        assert rotated.client.accepts(secret, now=now + later) is accepted, later


def test_a_client_is_found_until_it_or_its_tenant_is_deleted(created: credentials.NewSecret, tenant: str) -> None:
    client_id = created.client.id

    def is_found() -> bool:
        found = credentials.find_client(client_id, network="here")
        assert found is None or isinstance(found, Client)
        return found is not None

    assert is_found()
    assert [
        credentials.find_client(wrong, network="here") for wrong in ("", f"{tenant}.x", "nobody.0123456789abcdef")
    ] == [None] * 3
    with owner_tx() as tx:
        registry.mark_deleted(tx, tenant, now=utcnow())
    assert not is_found()


def test_a_revoked_client_and_a_revoked_token_are_valid_no_more(created: credentials.NewSecret, tenant: str) -> None:
    client_id = created.client.id

    def valid(jti: str) -> tuple[bool, bool]:
        with tenant_tx(tenant) as tx:
            stored = credentials.token_is_valid(tx, ClientToken(client_id, jti))
        return stored, credentials.client_token_is_valid(tenant, client_id, jti)

    assert (valid("t1"), valid("t2")) == ((True, True), (True, True))
    credentials.revoke_token(tenant, "t1", expires_at=utcnow() + timedelta(hours=1))
    assert (valid("t1"), valid("t2")) == ((False, False), (True, True))
    with tenant_tx(tenant) as tx:
        credentials.revoke_client(tx, client_id, now=utcnow())
        with pytest.raises(NotFound):
            credentials.revoke_client(tx, client_id, now=utcnow())
        assert credentials.list_clients(tx) == []
    assert valid("t2") == (False, False)
    assert credentials.find_client(client_id, network="here") is None


def test_a_key_has_its_own_and_the_tenants_origins_until_it_is_revoked(tenant: str) -> None:
    with tenant_tx(tenant) as tx:
        key = credentials.create_key(tx, signer=SIGNER, name="Wiki", origins=["https://a.example"], now=utcnow()).id
        tenant_settings.change(tx, {"allowed_origins": ["https://b.example"]}, now=utcnow())
    found = credentials.find_key(key)
    assert found is not None
    assert (found.tenant_id, sorted(found.origins)) == (tenant, ["https://a.example", "https://b.example"])
    with tenant_tx(tenant) as tx:
        credentials.revoke_key(tx, key, now=utcnow())
        assert credentials.list_keys(tx) == []
    for wrong in (key, f"pk_{tenant}_AAAAAAAAAAAA", "pk_", "sk_x"):
        assert credentials.find_key(wrong) is None, wrong


def test_pages_make_themselves_with_a_key_that_allows_it_or_if_the_tenant_does(
    tenant: str, trusted_memory: None
) -> None:
    def allowed() -> list[bool]:
        found = [credentials.find_key(key) for key in keys]
        return [key.auto_pages for key in found if key is not None]

    with tenant_tx(tenant) as tx:
        origins = ["https://a.example"]
        keys = [
            credentials.create_key(tx, signer=SIGNER, name="k", origins=origins, auto_pages=auto_pages, now=utcnow()).id
            for auto_pages in (False, True)
        ]
    assert allowed() == [False, True]
    with tenant_tx(tenant) as tx:
        tenant_settings.change(tx, {"auto_pages": True}, now=utcnow())
    assert allowed() == [True, True]


@pytest.mark.parametrize("origins", [[], ["https://a.example/path"], [f"https://{n}.example" for n in range(51)]])
def test_a_key_needs_one_to_fifty_origins(origins: list[str]) -> None:
    with pytest.raises(Invalid, match="1 to 50 origins"):
        credentials.check_origins(origins)
