"""Password resets: no way from `users:write` to an admin's rights, in whatever order things happen."""

import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest
from flask.testing import FlaskClient
from sqlalchemy import update

from app.http.services import services_of
from app.settings import Settings
from tenants import passwords, resets, sessions, users
from tenants.db import Tx, tenant_tx, utcnow
from tenants.opaque_tokens import hash_token
from tenants.resets import PasswordReset
from tenants.users import Role
from tests.citus import not_on_citus
from tests.people import PASSWORD, Caller, client_of, user_of
from tests.secrets_seen import SEEN
from tests.service import blocked_connections, eventually


@pytest.fixture
def writer(client: FlaskClient, tenant: str) -> Caller:
    return client_of(client, tenant, "users:write")


@pytest.fixture
def victim(client: FlaskClient, tenant: str) -> Caller:
    return user_of(client, tenant, username="victim")


def change(tx: Tx, user: Caller, **changes: object) -> None:
    sessions.change_user(tx, users.get(tx, UUID(user.id)), changes, now=utcnow())


def offer(writer: Caller, user: Caller) -> str:
    answer = writer("POST", f"/api/v1/users/{user.id}/password-reset")
    assert answer.status_code == 201, answer.text
    SEEN.add(answer.get_json()["reset_token"])
    return str(answer.get_json()["reset_token"])


def spend(http: FlaskClient, token: str) -> int:
    return http.post("/api/v1/auth/reset", json={"reset_token": token, "password": "of the attacker"}).status_code


StartBlocked = Callable[[Callable[[], int]], Future[int]]


@pytest.fixture
def start_blocked(settings: Settings) -> Iterator[StartBlocked]:
    """Starts a call in another thread, and returns when it waits for a lock that the test has."""
    with ThreadPoolExecutor(1) as pool:

        def start(call: Callable[[], int]) -> Future[int]:
            started = pool.submit(call)
            eventually(lambda: started.done() or blocked_connections(settings.database_url or ""))
            assert not started.done(), "it waits for the lock"
            return started

        yield start


@pytest.mark.parametrize("role", [Role.ADMIN, Role.MEMBER])
def test_a_change_of_role_ends_open_resets(
    client: FlaskClient, writer: Caller, victim: Caller, tenant: str, role: Role
) -> None:
    admin = user_of(client, tenant, role=Role.ADMIN)
    token = offer(writer, victim)
    assert admin("PATCH", f"/api/v1/users/{victim.id}", json={"role": role.value}).status_code == 200
    assert spend(client, token) == 401
    token = offer(client_of(client, tenant), victim)
    with tenant_tx(tenant) as tx:  # as `plaudit user role` does it
        change(tx, victim, role=role.value)
    assert spend(client, token) == 401


@not_on_citus
def test_a_promotion_that_is_under_way_is_seen_by_an_offer(
    writer: Caller, victim: Caller, tenant: str, start_blocked: StartBlocked
) -> None:
    with tenant_tx(tenant) as tx:
        change(tx, victim, role="admin")
        answer = start_blocked(lambda: writer("POST", f"/api/v1/users/{victim.id}/password-reset").status_code)
    assert answer.result() == 403


@not_on_citus
def test_an_offer_that_is_under_way_is_ended_by_a_promotion(
    client: FlaskClient, writer: Caller, victim: Caller, tenant: str, start_blocked: StartBlocked
) -> None:
    admin = user_of(client, tenant, role=Role.ADMIN)
    with tenant_tx(tenant) as tx:
        user, signer = users.get(tx, UUID(victim.id)), services_of(client.application).signer
        token, _ = resets.create(tx, user, by_admin=False, signer=signer, now=utcnow())
        path = f"/api/v1/users/{victim.id}"
        answer = start_blocked(lambda: admin("PATCH", path, json={"role": "admin"}).status_code)
    assert answer.result() == 200
    assert spend(client, token) == 401


@not_on_citus
def test_spending_a_reset_while_its_user_is_promoted_ends_in_one_of_both_orders(
    client: FlaskClient, writer: Caller, victim: Caller, tenant: str, start_blocked: StartBlocked
) -> None:
    token = offer(writer, victim)
    with tenant_tx(tenant) as tx:
        users.change(tx, users.get(tx, UUID(victim.id)), {"segment": "x"}, now=utcnow())  # has the user's row
        answer = start_blocked(lambda: spend(client, token))
        change(tx, victim, role="admin")  # and now the reset's: no deadlock
    assert answer.result() == 401


@not_on_citus
def test_only_an_admin_erases_who_is_being_promoted(
    writer: Caller, victim: Caller, tenant: str, start_blocked: StartBlocked
) -> None:
    with tenant_tx(tenant) as tx:
        change(tx, victim, role="admin")
        answer = start_blocked(lambda: writer("DELETE", f"/api/v1/users/{victim.id}").status_code)
    assert answer.result() == 403
    with tenant_tx(tenant) as tx:
        assert users.get(tx, UUID(victim.id)).username == "victim"


def test_an_unknown_reset_token_costs_no_hash(
    client: FlaskClient, writer: Caller, victim: Caller, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent = offer(writer, victim)
    assert spend(client, spent) == 204
    hashed: list[str] = []

    def count(password: str, about: Any, **_of: Any) -> str:
        hashed.append(password)
        return "hash"

    monkeypatch.setattr(passwords, "hash_new", count)
    for token in (f"rst_{tenant}_{'A' * 43}", "rst_nobody-here_" + "A" * 43, spent):
        assert spend(client, token) == 401
    assert hashed == []
    good = offer(writer, victim)
    short = client.post("/api/v1/auth/reset", json={"reset_token": good, "password": "short"})
    assert (short.status_code, hashed) == (422, [])
    assert spend(client, good) == 204
    assert len(hashed) == 1


def test_made_up_reset_tokens_are_looked_up_seldom_and_those_of_the_release_before_still_work(
    client: FlaskClient, writer: Caller, victim: Caller, tenant: str
) -> None:
    signed = offer(writer, victim)
    old = f"rst_{tenant}_{secrets.token_urlsafe(32)}"
    with tenant_tx(tenant) as tx:
        tx.execute(update(PasswordReset).values(token_hash=hash_token(old)))
    assert spend(client, signed[:-1] + ("0" if signed[-1] != "0" else "1")) == 401
    assert spend(client, old) == 204
    assert [spend(client, f"rst_{tenant}_{'A' * n}") for n in range(40, 50)] == [401] * 8 + [429] * 2
    assert spend(client, offer(writer, victim)) == 204, "one that we signed"


def test_a_reset_that_is_taken_back_while_the_password_is_hashed_sets_nothing(
    client: FlaskClient, writer: Caller, victim: Caller, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, real = offer(writer, victim), passwords.hash_new

    def slowly(*of: Any, **more: Any) -> str:
        with tenant_tx(tenant) as tx:
            change(tx, victim, role="admin")
        return real(*of, **more)

    monkeypatch.setattr(passwords, "hash_new", slowly)
    assert spend(client, token) == 401
    body = {"tenant": tenant, "username": "victim", "password": PASSWORD}
    assert client.post("/api/v1/auth/login", json=body).status_code == 200
