"""Suspensions: in effect until their end, which one may set, move and remove."""

from datetime import timedelta
from typing import Any

import pytest
from flask import Flask

from app.http.services import services_of
from tenants import sessions, suspensions, users
from tenants.db import tenant_tx, utcnow
from tenants.errors import Invalid
from tenants.suspensions import MAX_LENGTH, Suspended
from tenants.users import User

NOW = utcnow()
HOUR = timedelta(hours=1)


@pytest.fixture
def user(tenant: str) -> User:
    with tenant_tx(tenant) as tx:
        return users.register(tx, username="ada", email=None, password_hash="x", now=NOW)


def change(user: User, at: Any, **changes: Any) -> User:
    with tenant_tx(user.tenant_id) as tx:
        return sessions.change_user(tx, users.get(tx, user.id), changes, now=at)


def state(user: User, at: Any) -> tuple[bool, Any]:
    with tenant_tx(user.tenant_id) as tx:
        current = users.get(tx, user.id)
    return suspensions.is_suspended(current, now=at), suspensions.end_of(current, now=at)


def test_a_suspension_is_over_at_its_end_which_can_be_moved_and_removed(user: User) -> None:
    first = change(user, NOW, suspended=True, suspended_until=NOW + HOUR)
    assert (state(user, NOW), state(user, NOW + HOUR)) == ((True, NOW + HOUR), (False, None))
    later = change(user, NOW + HOUR / 2, suspended_until=NOW + 2 * HOUR)
    assert (state(user, NOW + HOUR), later.suspended_at) == ((True, NOW + 2 * HOUR), first.suspended_at)
    change(user, NOW + HOUR, suspended_until=None)
    assert state(user, NOW + 9 * HOUR) == (True, None)
    change(user, NOW, suspended=True, suspended_until=NOW + HOUR)
    change(user, NOW, suspended=True)
    assert state(user, NOW + 9 * HOUR) == (True, None), "whoever suspends without an end means it"
    change(user, NOW, suspended=False)
    assert state(user, NOW) == (False, None)
    change(user, NOW, suspended=True, suspended_until=NOW + HOUR)
    again = change(user, NOW + 2 * HOUR, suspended=True)
    assert again.suspended_at == NOW + 2 * HOUR, "another suspension, not the one that has ended"


@pytest.mark.parametrize(
    "changes",
    [
        {"suspended": True, "suspended_until": NOW},
        {"suspended": True, "suspended_until": NOW + MAX_LENGTH + HOUR},
        {"suspended": False, "suspended_until": NOW + HOUR},
        {"suspended_until": NOW + HOUR},
    ],
)
def test_an_end_that_makes_no_sense_is_refused(user: User, changes: dict[str, Any]) -> None:
    with pytest.raises(Invalid) as refused:
        change(user, NOW, **changes)
    assert list(refused.value.errors or {}) == ["suspended_until"]
    assert state(user, NOW) == (False, None)


def test_the_refusal_says_until_when(user: User) -> None:
    for until in (None, NOW + HOUR):
        suspended = change(user, NOW, suspended=True, suspended_until=until)
        with pytest.raises(Suspended) as refused:
            suspensions.require_active(suspended, now=NOW)
        assert refused.value.members == {"suspended_until": until}
    suspensions.require_active(suspended, now=NOW + HOUR)


def test_sessions_from_before_stay_ended_and_those_from_after_the_end_are_valid(
    app: Flask, user: User, trusted_memory: None
) -> None:
    signer = services_of(app).signer
    signer.load()

    def start(at: Any) -> str:
        with tenant_tx(user.tenant_id) as tx:
            return str(sessions.start(tx, user, signer=signer, ip=None, agent=None, now=at).session_id)

    before = start(NOW)
    end = NOW + timedelta(milliseconds=1)
    change(user, NOW, suspended=True, suspended_until=end)
    meanwhile, after = start(NOW), start(end)
    for _ in range(2):  # the second time from memory
        for session, is_valid in ((before, False), (meanwhile, False), (after, True)):
            assert (sessions.rights_of(user.tenant_id, session) is not None) is is_valid
    change(user, end, suspended=True, suspended_until=end + HOUR)
    assert sessions.rights_of(user.tenant_id, after) is None


def test_those_past_their_end_are_cleared_and_no_others(user: User, tenant: str) -> None:
    change(user, NOW, suspended=True, suspended_until=NOW + HOUR)
    with tenant_tx(tenant) as tx:
        other = users.register(tx, username="bob", email=None, password_hash="x", now=NOW)
        users.change(tx, other, {"suspended": True}, now=NOW)
    for at, due in ((NOW, []), (NOW + HOUR, [user.id]), (NOW + HOUR, [])):
        assert (tenant in suspensions.tenants_with_due(now=at)) is bool(due)
        with tenant_tx(tenant) as tx:
            assert suspensions.end_due(tx, now=at) == due
    with tenant_tx(tenant) as tx:
        assert users.get(tx, user.id).suspended_at is None
    assert state(other, NOW) == (True, None)
