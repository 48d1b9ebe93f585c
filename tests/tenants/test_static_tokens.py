"""Static tokens: proved by their MAC, valid until they expire or anything about them ends."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from secrets import token_hex
from uuid import UUID

import pytest
from flask.testing import FlaskClient
from sqlalchemy import text

from analytics import privacy, user_changes
from tenants import registry, sessions, static_tokens, users
from tenants.credentials import Scope
from tenants.db import owner_tx, tenant_tx, utcnow
from tenants.errors import DomainError, Invalid, NotFound
from tenants.signing import Signer
from tenants.static_tokens import NewToken, Rights, Shown, StaticToken, TooManyTokens
from tenants.users import Role
from tests.people import let_suspension_end, user_of
from tests.secrets_seen import SEEN
from tests.tenants.conftest import trusted_memory

__all__ = ["trusted_memory"]

SIGNER = Signer(issuer="https://a.example", secret_key="a secret of these tests' own, long enough")
ANOTHER = Signer(issuer="https://a.example", secret_key="the secret of another installation, long")


def create(
    tenant: str,
    *scopes: str,
    user_id: str | None = None,
    expires_at: datetime | None = None,
    now: datetime | None = None,
) -> NewToken:
    with tenant_tx(tenant) as tx:
        user = users.get(tx, UUID(user_id)) if user_id is not None else None
        created = static_tokens.create(
            tx,
            signer=SIGNER,
            name="Grafana",
            scopes=scopes or ["stats:read"],
            user=user,
            expires_at=expires_at,
            now=now or utcnow(),
        )
    SEEN.add(created.token)
    return created


def rights_of(created: NewToken) -> Rights | None:
    return static_tokens.rights_of(created.row.tenant_id, created.row.id, hashed=created.row.token_hash)


def test_a_token_says_what_it_is_and_is_stored_as_a_hash(tenant: str) -> None:
    created = create(tenant, "stats:read", "events:write")
    assert created.token.startswith(f"plt_{tenant}_{created.row.id}_")
    shown = static_tokens.parse(created.token, SIGNER)
    assert shown == Shown(tenant, created.row.id, created.row.token_hash)
    with tenant_tx(tenant) as tx:
        assert created.token not in str(tx.execute(text("SELECT x::text FROM static_tokens x")).all())
    rights = rights_of(created)
    assert rights == Rights(frozenset({Scope.STATS_READ, Scope.EVENTS_WRITE}), None, None, False, None)
    assert static_tokens.rights_of(tenant, created.row.id, hashed="another") is None


def test_a_token_that_we_did_not_issue_is_no_token(tenant: str) -> None:
    token = create(tenant).token
    body, _, mac = token.rpartition("_")
    wrong = [
        *("", "plt_", "plt_____", f"{token}_", f"{token}0", token.upper(), f"{body}_{mac[::-1]}", f"{token}ä"),
        token.replace("plt_", "rt_"),
        token.replace(f"_{tenant}_", "_another_"),
        f"plt_{tenant}_{token_hex(16)}_{token_hex(24)}_{token_hex(16)}",
        "plt_" + "x" * 100_000,
    ]
    assert [static_tokens.parse(one, SIGNER) for one in wrong] == [None] * len(wrong)
    assert static_tokens.parse(token, ANOTHER) is None


def test_a_token_is_valid_until_it_expires_also_in_memory(
    tenant: str, trusted_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    expires_at = utcnow() + timedelta(hours=1)
    created = create(tenant, expires_at=expires_at)
    rights = rights_of(created)
    assert rights is not None
    assert rights.expires_at == expires_at.timestamp()
    monkeypatch.setattr("time.time", expires_at.timestamp)
    assert rights_of(created) is None


@pytest.mark.parametrize(
    ("scopes", "name", "field"),
    [((), "x", "scopes"), (("root",), "x", "scopes"), (("admin",), "", "name"), (("admin",), "x" * 101, "name")],
)
def test_a_token_has_a_name_and_known_scopes(tenant: str, scopes: tuple[str, ...], name: str, field: str) -> None:
    with pytest.raises(Invalid) as refused, tenant_tx(tenant) as tx:
        static_tokens.create(tx, signer=SIGNER, name=name, scopes=scopes, now=utcnow())
    assert list(refused.value.errors or ()) == [field]


def test_a_token_does_not_begin_expired(tenant: str) -> None:
    with pytest.raises(Invalid, match="future"):
        create(tenant, expires_at=utcnow())


def revoke(created: NewToken, _user: UUID) -> None:
    with tenant_tx(created.row.tenant_id) as tx:
        static_tokens.revoke(tx, created.row.id, now=utcnow())


def suspend(created: NewToken, user: UUID) -> None:
    with tenant_tx(created.row.tenant_id) as tx:
        user_changes.change_user(tx, users.get(tx, user), {"suspended": True}, now=utcnow())


def end_all_sessions(created: NewToken, user: UUID) -> None:
    with tenant_tx(created.row.tenant_id) as tx:
        sessions.revoke_all(tx, user, now=utcnow())


def erase(created: NewToken, user: UUID) -> None:
    with tenant_tx(created.row.tenant_id) as tx:
        privacy.erase(tx, users.get(tx, user), by_admin=True, now=utcnow())
        assert tx.get(StaticToken, (created.row.tenant_id, created.row.id)) is None


def delete_tenant(created: NewToken, _user: UUID) -> None:
    with owner_tx() as tx:
        registry.mark_deleted(tx, created.row.tenant_id, now=utcnow())


End = Callable[[NewToken, UUID], None]


@pytest.mark.parametrize("end", [revoke, suspend, end_all_sessions, erase, delete_tenant])
def test_a_users_token_ends_with_whatever_ends_their_sessions(
    client: FlaskClient, tenant: str, trusted_memory: None, end: End
) -> None:
    user = user_of(client, tenant)
    created, others = create(tenant, user_id=user.id), create(tenant)
    assert rights_of(created) is not None
    end(created, UUID(user.id))
    assert rights_of(created) is None
    assert (rights_of(others) is None) == (end is delete_tenant)


def test_a_token_that_began_after_a_suspension_is_valid(client: FlaskClient, tenant: str) -> None:
    user = user_of(client, tenant)
    before = create(tenant, user_id=user.id)
    with tenant_tx(tenant) as tx:
        changes = {"suspended": True, "suspended_until": utcnow() + timedelta(days=1)}
        user_changes.change_user(tx, users.get(tx, UUID(user.id)), changes, now=utcnow())
    let_suspension_end(tenant, user.id)
    assert rights_of(create(tenant, user_id=user.id)) is not None
    assert rights_of(before) is None


def test_a_users_token_has_the_role_and_the_view_that_they_have_at_the_moment(
    client: FlaskClient, tenant: str, trusted_memory: None
) -> None:
    admin = user_of(client, tenant, role=Role.ADMIN, sees_private=False)
    created = create(tenant, "admin", user_id=admin.id)
    expected = Rights(frozenset({Scope.ADMIN}), UUID(admin.id), Role.ADMIN, False, None)
    assert rights_of(created) == expected
    with tenant_tx(tenant) as tx:
        user_changes.change_user(tx, users.get(tx, UUID(admin.id)), {"role": Role.MEMBER}, now=utcnow())
    assert rights_of(created) == replace(expected, role=Role.MEMBER, public_only=True)
    with pytest.raises(Invalid, match="scopes"):
        create(tenant, "admin", user_id=admin.id)


def test_a_user_revokes_their_own_tokens_only_and_once(client: FlaskClient, tenant: str) -> None:
    ada, bob = (UUID(user_of(client, tenant).id) for _ in range(2))
    created = create(tenant, user_id=str(ada))
    with tenant_tx(tenant) as tx:
        assert [row.id for row in static_tokens.list_tokens(tx, user_id=ada)] == [created.row.id]
        assert static_tokens.list_tokens(tx, user_id=bob) == []
        with pytest.raises(NotFound):
            static_tokens.revoke(tx, created.row.id, user_id=bob, now=utcnow())
        static_tokens.revoke(tx, created.row.id, user_id=ada, now=utcnow())
        with pytest.raises(NotFound):
            static_tokens.revoke(tx, created.row.id, now=utcnow())
        assert static_tokens.list_tokens(tx) == []


def test_tenants_and_users_have_a_bounded_number_of_valid_tokens(
    client: FlaskClient, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(static_tokens, "MAX_TOKENS_OF_TENANT", 2)
    monkeypatch.setattr(static_tokens, "MAX_TOKENS_OF_USER", 1)
    first, _ = create(tenant), create(tenant)
    ada, bob = (user_of(client, tenant).id for _ in range(2))
    create(tenant, user_id=ada)
    create(tenant, user_id=bob)
    for user_id in (None, ada):
        with pytest.raises(TooManyTokens, match="At most"):
            create(tenant, user_id=user_id)
    revoke(first, UUID(ada))
    create(tenant, expires_at=utcnow() + timedelta(seconds=1), now=utcnow() - timedelta(seconds=5))
    with pytest.raises(DomainError):
        create(tenant)
    create(tenant, now=utcnow() + timedelta(minutes=1))


def test_a_users_tokens_are_in_the_export_of_their_data(client: FlaskClient, tenant: str) -> None:
    user = user_of(client, tenant)
    created = create(tenant, user_id=user.id)
    with tenant_tx(tenant) as tx:
        (exported,) = privacy.export(tx, users.get(tx, UUID(user.id)))["static_tokens"]
    assert (exported["id"], exported["name"]) == (created.row.id, "Grafana")
    assert created.row.token_hash not in str(exported)
