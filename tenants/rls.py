"""Row-level security, as migrations write it.

Policies are forced, so that they also apply to the owner of the tables, which gets a policy of its own. The tenant of a
transaction is `plaudit.tenant`; after the transaction that setting is an empty string, not NULL, hence NULLIF.
"""

from collections.abc import Iterator
from typing import Literal

from tenants.db import PLATFORM_ROLE, SERVICE_ROLE

CURRENT_TENANT = "NULLIF(current_setting('plaudit.tenant', true), '')"

Privilege = Literal["SELECT", "INSERT", "UPDATE", "DELETE"]
ALL: tuple[Privilege, ...] = ("SELECT", "INSERT", "UPDATE", "DELETE")


def isolate(
    table: str,
    *,
    service: tuple[Privilege, ...] = ALL,
    platform: tuple[Privilege, ...] = (),
    tenant_column: str = "tenant_id",
) -> Iterator[str]:
    """The statements that restrict `table` to the current tenant, with these privileges for each role."""
    yield f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY"
    yield f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY"
    same_tenant = f"{tenant_column} = {CURRENT_TENANT}"
    yield f"CREATE POLICY tenant ON {table} TO {SERVICE_ROLE} USING ({same_tenant}) WITH CHECK ({same_tenant})"
    yield f"CREATE POLICY owner ON {table} TO CURRENT_USER USING (true) WITH CHECK (true)"
    if service:
        yield f"GRANT {', '.join(service)} ON {table} TO {SERVICE_ROLE}"
    for privilege in platform:
        check = "WITH CHECK (true)" if privilege == "INSERT" else "USING (true)"
        yield f"CREATE POLICY platform_{privilege.lower()} ON {table} FOR {privilege} TO {PLATFORM_ROLE} {check}"
        yield f"GRANT {privilege} ON {table} TO {PLATFORM_ROLE}"


def create_roles() -> Iterator[str]:
    """Create the roles, once per server. All databases of a server share them, so they may already exist."""
    for role in (SERVICE_ROLE, PLATFORM_ROLE):
        yield f"""
            DO $$ BEGIN
                IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{role}') THEN
                    CREATE ROLE {role} NOLOGIN NOINHERIT;
                END IF;
            EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
            END $$"""
        # SET ROLE needs a grant of the role, except for a superuser. Since PostgreSQL 16 the creator of a role does not
        # have it automatically, but may grant it to itself.
        yield f"""
            DO $$ BEGIN
                IF NOT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
                    EXECUTE format('GRANT {role} TO %I', current_user);
                END IF;
            EXCEPTION WHEN insufficient_privilege THEN NULL;  -- another owner's role: that owner grants it
            END $$"""  # noqa: S608  the names above
        yield f"GRANT USAGE ON SCHEMA public TO {role}"
