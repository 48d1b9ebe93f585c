"""Row-level security as migrations write it: a new table is restricted to the tenant of the transaction.

(tests/tenants/test_row_level_security.py covers the tables that exist.)
"""

import contextlib
from collections.abc import Iterator

import pytest
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError

from tenants import rls
from tenants.db import PLATFORM_ROLE, SERVICE_ROLE, Tx, owner_tx, run_together, set_role, set_tenant


class Undo(Exception):
    """Rolls the transaction back."""


@pytest.fixture
def tx(connected: None) -> Iterator[Tx]:
    """A transaction of the owner with a table of two tenants, which nobody else ever sees."""
    with contextlib.suppress(Undo), owner_tx() as tx:
        tx.execute(text("CREATE TABLE rls_notes (tenant_id text, note text)"))
        for statement in rls.isolate("rls_notes", service=("SELECT", "INSERT"), platform=("SELECT",)):
            tx.execute(text(statement))
        tx.execute(text("INSERT INTO rls_notes VALUES ('t-one', 'a'), ('t-two', 'b')"))
        yield tx
        raise Undo


def become(tx: Tx, role: str, tenant: str | None = None) -> None:
    run_together(tx.raw, *set_role(role), *([set_tenant(tenant)] if tenant else []))


def notes(tx: Tx) -> list[str]:
    return list(tx.scalars(text("SELECT note FROM rls_notes ORDER BY note")))


def refuses(tx: Tx, statement: str, why: str) -> None:
    with pytest.raises(ProgrammingError, match=why), tx.begin_nested():
        tx.execute(text(statement))


def test_the_service_has_the_rows_of_its_tenant_and_the_privileges_that_were_named(tx: Tx) -> None:
    become(tx, SERVICE_ROLE)
    assert notes(tx) == [], "no tenant is set"
    become(tx, SERVICE_ROLE, "t-one")
    tx.execute(text("INSERT INTO rls_notes VALUES ('t-one', 'c')"))
    assert notes(tx) == ["a", "c"]
    refuses(tx, "INSERT INTO rls_notes VALUES ('t-two', 'd')", "row-level security")
    refuses(tx, "DELETE FROM rls_notes", "permission denied")


def test_the_platform_has_all_rows_and_the_privileges_that_were_named(tx: Tx) -> None:
    become(tx, PLATFORM_ROLE)
    assert notes(tx) == ["a", "b"]
    refuses(tx, "INSERT INTO rls_notes VALUES ('t-one', 'd')", "permission denied")


def test_policies_are_forced_and_the_owner_has_one_for_all_rows(tx: Tx) -> None:
    assert notes(tx) == ["a", "b"]
    forced = text("SELECT relforcerowsecurity FROM pg_class WHERE oid = 'rls_notes'::regclass")
    assert tx.scalar(forced) is True


def test_creating_the_roles_again_changes_nothing(connected: None) -> None:
    roles = text("SELECT rolname, rolcanlogin, rolinherit FROM pg_roles WHERE rolname LIKE 'plaudit_%' ORDER BY 1")
    with owner_tx() as tx:
        before = tx.execute(roles).all()
        for statement in rls.create_roles():
            tx.execute(text(statement))
        assert tx.execute(roles).all() == before
        assert {SERVICE_ROLE, PLATFORM_ROLE} <= {row.rolname for row in before}
