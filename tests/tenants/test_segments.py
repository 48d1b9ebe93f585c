"""Segments: up to eight in an order, of which `segment` is the first; and what the release before writes counts."""

from typing import Any

import pytest
from sqlalchemy import text

from tenants import segments, users
from tenants.db import Tx, tenant_tx, utcnow
from tenants.errors import Invalid
from tenants.users import User


def user_in(tx: Tx, *names: str) -> User:
    user = users.get(tx, users.ensure_external(tx, "ada", now=utcnow()))
    return users.change(tx, user, {"segments": list(names)}, now=utcnow())


@pytest.mark.parametrize(
    ("before", "changes", "after"),
    [
        ([], {"segments": ["eu", "pro"]}, ["eu", "pro"]),
        (["eu", "pro"], {"segments": ["pro"]}, ["pro"]),
        (["eu", "pro"], {"segments": []}, []),
        ([], {"segment": "eu"}, ["eu"]),
        (["eu", "pro"], {"segment": "us"}, ["us", "pro"]),
        (["eu", "pro", "beta"], {"segment": "pro"}, ["pro", "beta"]),
        (["eu", "pro"], {"segment": None}, []),
        (["eu", "pro"], {"bio": "new"}, ["eu", "pro"]),
    ],
)
def test_segment_is_the_first_of_segments(
    tenant: str, before: list[str], changes: dict[str, Any], after: list[str]
) -> None:
    with tenant_tx(tenant) as tx:
        user = users.change(tx, user_in(tx, *before), changes, now=utcnow())
        assert (user.segments, user.segment) == (after, after[0] if after else None)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"segments": ["a b"]}, "segments"),
        ({"segments": ["a", "a"]}, "segments"),
        ({"segments": [f"s{n}" for n in range(9)]}, "segments"),
        ({"segments": ["a"], "segment": "a"}, "segment"),
    ],
)
def test_wrong_segments_change_nothing(tenant: str, changes: dict[str, Any], field: str) -> None:
    with tenant_tx(tenant) as tx:
        user = user_in(tx, "eu")
        with pytest.raises(Invalid) as refused:
            users.change(tx, user, changes, now=utcnow())
        assert list(refused.value.errors or {}) == [field]
        tx.refresh(user)
        assert user.segments == ["eu"]


@pytest.mark.parametrize(
    ("written", "after"),
    [
        ("segment = 'us'", ["us", "pro"]),
        ("segment = 'pro'", ["pro"]),
        ("segment = NULL", []),
    ],
)
def test_what_the_release_before_writes_counts(tenant: str, written: str, after: list[str]) -> None:
    with tenant_tx(tenant) as tx:
        user = user_in(tx, "eu", "pro")
        tx.execute(text(f"UPDATE users SET {written} WHERE tenant_id = :tenant"), {"tenant": tenant})
        tx.refresh(user)
        assert user.segments == after
        if after:
            users.change(tx, user, {"segment": "new"}, now=utcnow())
            assert user.segments == ["new", *after[1:]]


def test_every_segment_is_counted_once_wherever_it_stands(tenant: str) -> None:
    with tenant_tx(tenant) as tx:
        user_in(tx, "eu", "pro", "beta")
        other = users.get(tx, users.ensure_external(tx, "bob", now=utcnow()))
        users.change(tx, other, {"segments": ["pro", "us"]}, now=utcnow())
        assert [segments.count(tx, limit) for limit in (10, 3)] == [4, 3]
