"""A caller who is known is who they were, until their token expires or anything about them changes."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from flask import Flask
from flask.testing import FlaskClient

from analytics import user_changes
from app.http import known_callers
from app.http.auth import Actor, BadCredentials, authenticate_bearer
from app.http.known_callers import KnownCallers
from app.http.services import services_of
from tenants import credentials, registry, sessions, users
from tenants import settings as tenant_settings
from tenants.db import owner_tx, tenant_tx, utcnow
from tenants.group_tx import Calls, read_together
from tenants.settings import VisiblePages
from tenants.signing import CLOCK_LEEWAY_S, Signer
from tenants.users import Role
from tests.people import Caller, client_of, user_of
from tests.tenants.conftest import trusted_memory

__all__ = ["trusted_memory"]


@pytest.fixture
def callers(app: Flask, trusted_memory: None) -> KnownCallers:
    return KnownCallers(services_of(app).signer)


@pytest.fixture
def authentications(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The headers that were authenticated in full."""
    seen: list[str] = []

    def watched(given: str, signer: Signer) -> Actor:
        seen.append(given)
        return authenticate_bearer(given, signer)

    monkeypatch.setattr("app.http.known_callers.authenticate_bearer", watched)
    return seen


def header_of(caller: Caller) -> str:
    return f"Bearer {caller.token}"


def test_the_second_call_is_the_same_actor_without_authenticating_again(
    callers: KnownCallers, client: FlaskClient, tenant: str, authentications: list[str]
) -> None:
    app, member = client_of(client, tenant), user_of(client, tenant)
    first = [callers.authenticate(header_of(caller)) for caller in (app, member)]
    assert [callers.authenticate(header_of(caller)) for caller in (app, member)] == first
    assert [actor.kind for actor in first] == ["client", "user"]
    assert authentications == [header_of(app), header_of(member)]


def test_a_token_is_known_in_every_spelling_of_its_header(
    callers: KnownCallers, client: FlaskClient, tenant: str, authentications: list[str]
) -> None:
    member = user_of(client, tenant)
    spellings = [f"{scheme} {space}{member.token}" for scheme in ("Bearer", "bearer", "BEARER") for space in ("", " ")]
    assert len({callers.authenticate(spelling) for spelling in spellings}) == 1
    assert authentications == spellings[:1]


def test_a_caller_and_a_tenant_make_us_forget_their_own_tokens_only(
    callers: KnownCallers, app: Flask, client: FlaskClient, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_callers, "MAX_TOKENS_OF_USER", 2)
    monkeypatch.setattr(known_callers, "MAX_TOKENS_OF_TENANT", 3)
    signer = services_of(app).signer
    ada, bob, carl = (user_of(client, tenant) for _ in range(3))
    claims = signer.verify(ada.token)
    tokens_of_ada = [f"Bearer {signer.sign(claims, ttl_s=600, now=utcnow())}" for _ in range(3)]

    def known() -> list[bool]:
        return [callers.find(header) is not None for header in (header_of(bob), *tokens_of_ada, header_of(carl))]

    for header in (header_of(bob), *tokens_of_ada):
        callers.authenticate(header)
    assert known() == [True, False, True, True, False]
    callers.authenticate(header_of(carl))
    assert known() == [False, False, True, True, True]


def test_a_client_with_many_workers_keeps_all_their_tokens(
    callers: KnownCallers, app: Flask, client: FlaskClient, tenant: str
) -> None:
    signer, worker = services_of(app).signer, client_of(client, tenant)
    claims = {name: value for name, value in signer.verify(worker.token).items() if name != "jti"}
    tokens = [f"Bearer {signer.sign(claims, ttl_s=600, now=utcnow())}" for _ in range(50)]
    for header in tokens:
        callers.authenticate(header)
    assert all(callers.find(header) is not None for header in tokens)


def end_session(member: Actor, _app: Actor) -> None:
    with tenant_tx(member.tenant_id) as tx:
        assert member.session_id is not None
        sessions.revoke(tx, member.session_id, now=utcnow())


def suspend(member: Actor, _app: Actor) -> None:
    with tenant_tx(member.tenant_id) as tx:
        user = users.get(tx, UUID(member.id))
        user_changes.change_user(tx, user, {"suspended": True}, now=utcnow())


def delete_tenant(member: Actor, _app: Actor) -> None:
    with owner_tx() as tx:
        registry.mark_deleted(tx, member.tenant_id, now=utcnow())


def revoke_client(_member: Actor, app: Actor) -> None:
    with tenant_tx(app.tenant_id) as tx:
        credentials.revoke_client(tx, app.id, now=utcnow())


def revoke_token(_member: Actor, app: Actor) -> None:
    credentials.revoke_token(app.tenant_id, app.token_id, expires_at=utcnow() + timedelta(hours=1))


@pytest.mark.parametrize(
    ("end", "ended"),
    [
        (end_session, {"user"}),
        (suspend, {"user"}),
        (revoke_client, {"client"}),
        (revoke_token, {"client"}),
        (delete_tenant, {"user", "client"}),
    ],
)
def test_whoever_is_revoked_is_known_no_longer(
    callers: KnownCallers,
    client: FlaskClient,
    tenant: str,
    end: Callable[[Actor, Actor], None],
    ended: set[str],
) -> None:
    headers = {"client": header_of(client_of(client, tenant)), "user": header_of(user_of(client, tenant))}
    actors = {kind: callers.authenticate(header) for kind, header in headers.items()}
    end(actors["user"], actors["client"])
    for kind, header in headers.items():
        if kind in ended:
            with pytest.raises(BadCredentials):
                callers.authenticate(header)
        else:
            assert callers.authenticate(header) == actors[kind]


def test_another_role_or_setting_is_another_actor(callers: KnownCallers, client: FlaskClient, tenant: str) -> None:
    header = header_of(user_of(client, tenant))
    member = callers.authenticate(header)
    with tenant_tx(tenant) as tx:
        user_changes.change_user(tx, users.get(tx, UUID(member.id)), {"sees_private": False}, now=utcnow())
    assert callers.authenticate(header).public_only
    with tenant_tx(tenant) as tx:
        tenant_settings.change(tx, {"signup_sees": VisiblePages.ALL}, now=utcnow())
    assert not callers.authenticate(header).public_only
    with tenant_tx(tenant) as tx:
        user_changes.change_user(tx, users.get(tx, UUID(member.id)), {"role": Role.ADMIN}, now=utcnow())
    assert callers.authenticate(header).role is Role.ADMIN


def test_an_expired_token_or_another_set_of_keys_is_authenticated_again(
    callers: KnownCallers, client: FlaskClient, tenant: str, authentications: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    header = header_of(client_of(client, tenant))
    actor = callers.authenticate(header)
    callers._signer._loaded = None  # read again, as once a minute
    callers.authenticate(header)
    assert len(authentications) == 1, "with the same keys"
    callers._signer.rotate(now=utcnow())
    callers.authenticate(header)
    assert len(authentications) == 2
    monkeypatch.setattr("time.time", lambda: actor.expires_at + CLOCK_LEEWAY_S + 1)
    with pytest.raises(BadCredentials):
        callers.authenticate(header)
    assert len(authentications) == 3


def test_what_is_not_valid_is_not_kept_and_what_is_kept_is_bounded(
    callers: KnownCallers, client: FlaskClient, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadCredentials):
        callers.authenticate("Bearer nonsense")
    assert not callers._known
    monkeypatch.setattr(known_callers, "MAX_TOKENS", 1)
    first, second = header_of(client_of(client, tenant)), header_of(user_of(client, tenant))
    for header in (first, second):
        callers.authenticate(header)
    assert len(callers._known) == 1
    assert not any(token in str(callers._known._values) for token in (first[7:], second[7:])), "no token is kept"


def test_an_actor_knows_what_it_depends_on(callers: KnownCallers, client: FlaskClient, tenant: str) -> None:
    app, member = (callers.authenticate(header_of(c)) for c in (client_of(client, tenant), user_of(client, tenant)))
    assert set(app.names) == {f"client:{app.id}", f"token:{app.token_id}", "tenant"}
    assert set(member.names) == {f"session:{member.session_id}", f"user:{member.id}", "settings", "tenant"}
    assert replace(app, expires_at=0.0) == app


def test_callers_are_learned_together_and_whoever_is_not_valid_stays_unknown(
    callers: KnownCallers, client: FlaskClient, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, ended, *members = client_of(client, tenant), *(user_of(client, tenant) for _ in range(4))
    assert ended("POST", "/api/v1/auth/logout").status_code == 204
    trips: list[Calls] = []

    def counted(calls: Calls) -> list[list[Any]]:
        trips.append(calls)
        return read_together(calls)

    monkeypatch.setattr("tenants.sessions.read_together", counted)
    monkeypatch.setattr("tenants.sessions.read_one", lambda *_: pytest.fail("nobody is looked up alone"))
    unknown = ["", "Basic x", "Bearer nonsense", header_of(ended)]
    callers.learn([*unknown, *map(header_of, members), header_of(app)])
    assert len(trips) == 1
    assert [callers.find(header) for header in unknown] == [None] * 4
    assert [callers.find(header_of(member)) for member in members] == [
        callers.authenticate(header_of(member)) for member in members
    ]
    assert callers.find(header_of(app)) is not None
