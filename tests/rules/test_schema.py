"""Rules of the schema. Each is a function that lists what breaks it, tried on a broken example too."""

from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, Engine, Row, text

from app.settings import Settings
from migrations.head import head_revision
from migrations.run import alembic_config, load_models, migrate
from tenants.db import Base
from tenants.engines import make_engine

# The few tables that are nobody's: each with its reason.
NOT_A_TENANTS = {
    "alembic_version": "the schema's own version",
    "global_boards": "versions of the boards that are over all tenants",
    "processes": "the processes that answer requests, of every tenant",
    "visitor_salts": "a browser's visitors are hashed with the salt of the day; the tenant is in the hash",
    "signing_keys": "the service signs for every tenant with the same keys",
}

TABLES = text("""
    SELECT c.relname AS name, c.relrowsecurity AND c.relforcerowsecurity AS forced,
           (SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[0]
            WHERE i.indrelid = c.oid AND i.indisprimary) AS leads,
           (SELECT array_agg(p.polname::text) FROM pg_policy p WHERE p.polrelid = c.oid) AS policies, c.relispartition,
           has_table_privilege('plaudit_service', c.oid, 'SELECT') AS can_be_read
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'public' AND c.relkind IN ('r', 'p')
""")


def unprotected(connection: Connection) -> list[str]:
    def complaint(table: Row[Any]) -> str | None:
        lead = "id" if table.name == "tenants" else "tenant_id"
        if not table.forced:
            return f"{table.name}: row-level security is not forced"
        if table.leads != lead:
            return f"{table.name}: its key leads with {table.leads}, not {lead}"
        if table.relispartition:  # reached through its parent only
            return f"{table.name}: a partition can be read" if table.can_be_read else None
        if not {"tenant", "owner"} <= set(table.policies or []):
            return f"{table.name}: a policy is missing"
        return None

    tables = [row for row in connection.execute(TABLES) if row.name not in NOT_A_TENANTS]
    assert tables, "there are tables"
    return [said for table in tables if (said := complaint(table)) is not None]


@pytest.fixture
def engine(settings: Settings) -> Engine:
    return make_engine(settings.database_url or "", pool_size=1)


def test_every_tenant_table_has_forced_rls_and_a_key_that_leads_with_the_tenant(engine: Engine) -> None:
    with engine.connect() as connection:
        assert unprotected(connection) == []


@pytest.mark.parametrize(
    ("ddl", "complaint"),
    [
        ("CREATE TABLE bad (tenant_id text, id int, PRIMARY KEY (tenant_id, id))", "not forced"),
        (
            """CREATE TABLE bad (tenant_id text, id int, PRIMARY KEY (id, tenant_id));
            ALTER TABLE bad ENABLE ROW LEVEL SECURITY; ALTER TABLE bad FORCE ROW LEVEL SECURITY""",
            "leads with id",
        ),
        ("ALTER TABLE tenants NO FORCE ROW LEVEL SECURITY", "not forced"),
        ("DROP POLICY tenant ON tenants", "policy is missing"),
    ],
)
def test_the_rule_notices_a_table_that_breaks_it(engine: Engine, ddl: str, complaint: str) -> None:
    with engine.connect() as connection:
        connection.execute(text(ddl))
        assert any(complaint in said for said in unprotected(connection)), "rolled back at the end"


def test_models_equal_migrations(engine: Engine) -> None:
    load_models()
    with engine.connect() as connection:
        # Partitions are made by the month, beside the models.
        options = {"include_name": lambda name, kind, _: kind != "table" or not name.startswith("action_events_")}
        assert compare_metadata(MigrationContext.configure(connection, opts=options), Base.metadata) == []
        connection.execute(text("ALTER TABLE tenants ADD COLUMN surplus text"))
        assert compare_metadata(MigrationContext.configure(connection, opts=options), Base.metadata) != []


def test_migrations_are_one_numbered_line(engine: Engine) -> None:
    from alembic.script import ScriptDirectory

    revisions = [script.revision for script in ScriptDirectory.from_config(alembic_config()).walk_revisions()]
    assert sorted(revisions) == [f"{number:04}" for number in range(1, len(revisions) + 1)]
    assert head_revision() == max(revisions)


def test_migrating_again_changes_nothing(engine: Engine, settings: Settings) -> None:
    assert migrate(engine, service_url=settings.service_database_url) == (head_revision(), head_revision())


def test_every_policy_says_what_it_should_and_foreign_keys_lead_with_the_tenant(engine: Engine) -> None:
    with engine.connect() as connection:
        policies = connection.execute(text("SELECT * FROM pg_policies WHERE schemaname = 'public'")).all()
        keys = connection.execute(
            text("""
                SELECT c.conname AS name, t.relname AS "table", a.attname AS leads, c.confdeltype AS on_delete
                FROM pg_constraint c JOIN pg_class t ON t.oid = c.conrelid
                JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = c.conkey[1]
                WHERE c.contype = 'f' AND t.relnamespace = 'public'::regnamespace
            """)
        ).all()
    assert policies
    for policy in policies:
        if policy.policyname == "tenant":
            column = "id" if policy.tablename == "tenants" else "tenant_id"
            expected = f"({column} = NULLIF(current_setting('plaudit.tenant'::text, true), ''::text))"
            assert (policy.roles, policy.cmd, policy.qual, policy.with_check) == (
                ["plaudit_service"],
                "ALL",
                expected,
                expected,
            ), policy.tablename
        elif policy.policyname == "owner":
            assert not {"public", "plaudit_service", "plaudit_platform"} & set(policy.roles)
        else:
            assert (policy.roles, policy.policyname) == (["plaudit_platform"], f"platform_{policy.cmd.lower()}")
    assert {key.name: key.leads for key in keys if key.leads != "tenant_id"} == {}
    assert [key.name for key in keys if key.on_delete not in "ac"] == [], "a distributed key cannot be SET NULL"
