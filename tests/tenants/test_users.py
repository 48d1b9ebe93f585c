"""Users: found, created once, unique by name, and locked against erasure."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import update

from tenants import users
from tenants.db import tenant_tx, utcnow
from tenants.errors import Invalid
from tenants.users import NameTaken, Role, User, UserNotFound


def test_external_users_are_made_on_first_sight_and_once(tenant: str) -> None:

    def see(_: int) -> str:
        with tenant_tx(tenant) as tx:
            return str(users.ensure_external(tx, "u-42", now=utcnow()))

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(see, range(24)))) == 1


def test_a_taken_name_is_refused_by_field_and_the_transaction_continues(tenant: str) -> None:
    with tenant_tx(tenant) as tx:
        users.register(tx, username="ada", email="ada@example.org", password_hash="x", now=utcnow())
        for field, names in {"username": ("ADA", "b@example.org"), "email": ("bob", "Ada@Example.org")}.items():
            with pytest.raises(NameTaken) as taken:
                users.register(tx, username=names[0], email=names[1], password_hash="x", now=utcnow())
            assert list(taken.value.errors or {}) == [field]
        assert [user.username for user in users.search(tx, q=None, after=None, limit=10)] == ["ada"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"email": "not an address"}, "email"),
        ({"segment": "has space"}, "segment"),
        ({"avatar_url": "javascript:alert(1)"}, "avatar_url"),
        ({"avatar_url": "//evil.example/x"}, "avatar_url"),
        ({"external_id": "x" * 129}, "user"),
        ({"username": "no spaces"}, "username"),
        ({"wallet": "0x5aaeb6053F3E94C9b9A09f33669435E7Ef1BeAed"}, "wallet"),
    ],
)
def test_a_wrong_field_changes_nothing(tenant: str, changes: dict[str, Any], field: str) -> None:
    with tenant_tx(tenant) as tx:
        user = users.register(tx, username="ada", email=None, password_hash="x", now=utcnow())
        with pytest.raises(Invalid) as refused:
            users.change(tx, user, {"bio": "new", **changes}, now=utcnow())
        assert list(refused.value.errors or {}) == [field]
        tx.refresh(user)
        assert user.bio is None


def test_a_suspension_keeps_its_first_time_until_it_is_lifted(tenant: str) -> None:
    first = utcnow()
    with tenant_tx(tenant) as tx:
        user = users.register(tx, username="ada", email=None, password_hash="x", now=first)
        for suspended, at in ((True, first), (True, first), (False, None)):
            users.change(tx, user, {"suspended": suspended}, now=first if at is None else utcnow())
            assert (user.suspended_at is None) is (at is None)


def test_who_has_another_password_meanwhile_is_not_the_same(tenant: str) -> None:
    with tenant_tx(tenant) as tx:
        before = users.register(tx, username="ada", email=None, password_hash="x", now=utcnow())
        assert users.lock_unchanged(tx, before) is before
    with tenant_tx(tenant) as tx:
        users.set_password(tx, before.id, "y", now=utcnow())
    with tenant_tx(tenant) as tx:
        assert users.lock_unchanged(tx, before) is None


def test_names_and_addresses_are_unique_when_they_change_and_a_new_address_is_not_verified(tenant: str) -> None:
    with tenant_tx(tenant) as tx:
        users.register(tx, username="ada", email="ada@example.org", password_hash="x", now=utcnow())
        bob = users.register(tx, username="bob", email="bob@example.org", password_hash="x", now=utcnow())
        users.ensure_external(tx, "u-1", now=utcnow())
        for taken in ({"username": "ADA"}, {"email": "Ada@example.org"}, {"external_id": "u-1"}):
            with pytest.raises(NameTaken) as refused:
                users.change(tx, bob, taken, now=utcnow())
            assert list(refused.value.errors or {}) == list(taken)
        verified = users.change(tx, bob, {"email_verified": True, "email": "bob@example.org"}, now=utcnow())
        assert users.change(tx, bob, {"email": "bob@example.org", "username": "Bob_2"}, now=utcnow()).email_verified
        assert not users.change(tx, verified, {"email": "new@example.org"}, now=utcnow()).email_verified
        assert (bob.username, bob.email) == ("Bob_2", "new@example.org")
        assert set(users.find_all(tx, [bob.id, uuid4()])) == {bob.id}


def test_an_erased_user_is_found_by_nobody(tenant: str) -> None:
    now = utcnow()
    with tenant_tx(tenant) as tx:
        kept, erased = (users.ensure_external(tx, name, now=now) for name in ("kept", "erased"))
        assert users.find(tx, "ext:kept").id == users.find(tx, str(kept)).id == kept
        tx.execute(update(User).where(User.id == erased).values(erased_at=now, external_id=None))
        assert users.count(tx, 10) == 2, "an erased user is still included"
        for reference in (str(erased), "ext:erased", "not-a-uuid", str(uuid4())):
            with pytest.raises(UserNotFound):
                users.find(tx, reference)


def test_a_search_is_for_the_beginning_of_a_name_and_knows_no_wildcards(tenant: str) -> None:
    with tenant_tx(tenant) as tx:
        users.register(tx, username="Ada_L", email="x@example.org", password_hash="x", role=Role.ADMIN, now=utcnow())
        users.ensure_external(tx, "adax", now=utcnow())

        def found(q: str) -> list[str]:
            return sorted(
                user.username or user.external_id or "" for user in users.search(tx, q=q, after=None, limit=9)
            )

        assert found("ada") == ["Ada_L", "adax"]
        assert (found("ada_"), found("X@"), found("%"), found("l")) == (["Ada_L"], ["Ada_L"], [], [])
