"""Tenants: created once, refused by field, deleted in two steps."""

import pytest

from tenants import registry
from tenants.db import owner_tx, utcnow
from tenants.errors import Conflict, Invalid, NotFound


def test_a_tenant_is_made_once(tenant: str) -> None:
    with owner_tx() as tx, pytest.raises(Conflict, match="already"):
        registry.create(tx, tenant, name="again", now=utcnow())


@pytest.mark.parametrize(
    ("tenant_id", "name", "field"),
    [("1abc", "x", "id"), ("a", "x", "id"), ("UPPER", "x", "id"), ("fine", "", "name"), ("fine", "a\x00b", "name")],
)
def test_a_bad_tenant_is_refused_by_field(connected: None, tenant_id: str, name: str, field: str) -> None:
    with owner_tx() as tx, pytest.raises(Invalid) as refused:
        registry.create(tx, tenant_id, name=name, now=utcnow())
    assert list(refused.value.errors or {}) == [field]


def test_a_deleted_tenant_is_gone_at_once_and_purged_later(tenant: str, other_tenant: str) -> None:
    with owner_tx() as tx:
        registry.mark_deleted(tx, tenant, now=utcnow())
        with pytest.raises(NotFound):
            registry.mark_deleted(tx, tenant, now=utcnow())
    with owner_tx() as tx:
        assert tenant not in {row.id for row in registry.live(tx)}
        with pytest.raises(NotFound):
            registry.get(tx, tenant)
        assert registry.get_even_deleted(tx, tenant).deleted_at is not None
        assert tenant in registry.deleted(tx)
        assert registry.get_even_deleted(tx, other_tenant).deleted_at is None
        with pytest.raises(NotFound):
            registry.get_even_deleted(tx, "nobody")
