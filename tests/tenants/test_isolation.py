"""P5: the database itself keeps tenants apart. Tried as the service's role, with raw SQL and real commits."""

import pytest
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError

from tenants import registry
from tenants.db import SERVICE_ROLE, platform_tx, tenant_tx
from tests import citus


def test_a_tenant_sees_itself_and_nobody_else(tenant: str, other_tenant: str) -> None:
    with tenant_tx(tenant) as tx:
        assert list(tx.scalars(text("SELECT id FROM tenants"))) == [tenant]


def test_without_a_tenant_nothing_is_seen(tenant: str) -> None:
    with tenant_tx(tenant) as tx:
        tx.execute(text("RESET plaudit.tenant"))
        assert tx.execute(text("SELECT count(*) FROM tenants")).scalar_one() == 0
        tx.execute(text("SET LOCAL plaudit.tenant = ''"))
        assert tx.execute(text("SELECT count(*) FROM tenants")).scalar_one() == 0


def test_the_service_role_owns_nothing_and_cannot_bypass(tenant: str) -> None:
    with tenant_tx(tenant) as tx:
        role = tx.execute(
            text("SELECT rolname, rolsuper, rolbypassrls, rolcanlogin FROM pg_roles WHERE rolname = current_user")
        ).one()
        # On a Citus the coordinator logs in as the role.
        assert tuple(role) == (SERVICE_ROLE, False, False, citus.URL is not None)
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
