"""P5: the database itself keeps tenants apart. Tried as the service's role, with raw SQL and real commits."""

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, ProgrammingError

from tenants import registry
from tenants.db import SERVICE_ROLE, owner_tx, platform_tx, tenant_tx, utcnow
from tenants.errors import Conflict, Invalid, NotFound


def test_a_tenant_sees_itself_and_nobody_else(tenant: str, other_tenant: str) -> None:
    with tenant_tx(tenant) as tx:
        assert list(tx.scalars(text("SELECT id FROM tenants"))) == [tenant]


def test_without_a_tenant_nothing_is_seen(tenant: str) -> None:
    with tenant_tx(tenant) as tx:
        tx.execute(text("RESET plaudit.tenant"))
        assert tx.execute(text("SELECT count(*) FROM tenants")).scalar_one() == 0
        tx.execute(text("SET LOCAL plaudit.tenant = ''"))
        assert tx.execute(text("SELECT count(*) FROM tenants")).scalar_one() == 0


def test_the_next_transaction_on_the_same_connection_has_no_tenant_left(tenant: str) -> None:
    with tenant_tx(tenant) as tx:
        tx.execute(text("SELECT 1"))
    with platform_tx() as tx:
        assert tx.scalar(text("SELECT NULLIF(current_setting('plaudit.tenant', true), '')")) is None


def test_the_service_role_owns_nothing_and_cannot_bypass(tenant: str) -> None:
    with tenant_tx(tenant) as tx:
        role = tx.execute(
            text("SELECT rolname, rolsuper, rolbypassrls, rolcanlogin FROM pg_roles WHERE rolname = current_user")
        ).one()
        assert tuple(role) == (SERVICE_ROLE, False, False, False)
        owned = text("SELECT count(*) FROM pg_class WHERE relowner = current_user::regrole")
        assert tx.execute(owned).scalar_one() == 0


@pytest.mark.parametrize(
    "statement",
    ["UPDATE tenants SET name = 'x'", "DELETE FROM tenants", "INSERT INTO tenants (id, name) VALUES ('evil', 'x')"],
)
def test_the_service_role_cannot_change_the_registry(tenant: str, statement: str) -> None:
    with pytest.raises(ProgrammingError, match="permission denied"), tenant_tx(tenant) as tx:
        tx.execute(text(statement))


@pytest.mark.parametrize("statement", ["UPDATE tenants SET name = 'x'", "DELETE FROM tenants"])
def test_the_platform_role_reads_across_tenants_and_changes_nothing(
    tenant: str, other_tenant: str, statement: str
) -> None:
    with platform_tx() as tx:
        assert {tenant, other_tenant} <= {row.id for row in registry.live(tx)}
    with pytest.raises(ProgrammingError, match="permission denied"), platform_tx() as tx:
        tx.execute(text(statement))


@pytest.mark.parametrize("hostile", ["x'; DROP TABLE tenants; --", "", "A", "a" * 64, "_all", "tenant\x00", "ténant"])
def test_an_impossible_tenant_id_is_not_found_and_never_reaches_sql(connected: None, hostile: str) -> None:
    with pytest.raises(NotFound), tenant_tx(hostile):
        pytest.fail("the transaction opened")


def test_an_error_rolls_everything_back(connected: None) -> None:
    def half_done() -> None:
        with owner_tx() as tx:
            registry.create(tx, "rolled-back", name="x", now=utcnow())
            tx.execute(text("SELECT 1/0"))

    with pytest.raises(DBAPIError):
        half_done()
    with owner_tx() as tx, pytest.raises(NotFound):
        registry.get(tx, "rolled-back")


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
    with owner_tx() as tx:
        assert tenant not in {row.id for row in registry.live(tx)}
        with pytest.raises(NotFound):
            registry.get(tx, tenant)
    for _ in range(2):  # a second run finds nothing to do
        with owner_tx() as tx:
            registry.purge(tx, tenant)
            registry.purge(tx, other_tenant)
    with owner_tx() as tx:
        assert tenant not in registry.deleted(tx)
        assert registry.get(tx, other_tenant).id == other_tenant, "only a marked tenant is purged"
