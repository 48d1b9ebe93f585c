"""A schema that is behind, an index that is gone, a month without a partition."""

from dataclasses import replace

import pytest
from sqlalchemy.engine import make_url

from analytics.maintenance import month_ahead, partition_of
from app.doctor import schema
from app.doctor.findings import Level
from app.doctor.installation import Installation
from app.run.data_folder import Addresses
from migrations.head import head_revision
from tenants import db
from tests.app.doctor.conftest import bad, execute


def test_a_fresh_schema_is_fine(scratch: Installation) -> None:
    for check in (schema.migrations, schema.visible_rows, schema.usable_roles, schema.indexes, schema.partitions):
        assert bad(check(scratch)) == [], check.__name__


def test_a_schema_that_is_behind_ahead_or_missing_is_said(scratch: Installation) -> None:
    execute("UPDATE alembic_version SET version_num = '0001'")
    (behind,) = schema.migrations(scratch)
    assert (behind.level, behind.what) == (Level.PROBLEM, f"It is at 0001, and this release needs {head_revision()}")
    assert behind.advice == "plaudit backup, then plaudit migrate"
    assert list(schema.indexes(scratch)) == [], "an old schema has other indexes"
    execute("UPDATE alembic_version SET version_num = '9999'")
    assert [level for level, _ in bad(schema.migrations(scratch))] == [Level.WARN]
    execute("DROP TABLE alembic_version")
    (missing,) = schema.migrations(scratch)
    assert "It is at nothing" in missing.what
    assert missing.advice == "plaudit migrate", "there is nothing to back up"


def test_an_index_that_is_missing_comes_with_the_statement_that_creates_it(scratch: Installation) -> None:
    execute("DROP INDEX ix_page_likes_user", "DROP INDEX uq_score_ledger_source", "DROP INDEX ix_action_events_user")
    found = {finding.what: finding for finding in schema.indexes(scratch)}
    assert found.keys() == {
        "The index ix_page_likes_user of page_likes is missing",
        "The index uq_score_ledger_source of score_ledger is missing",
        "The index ix_action_events_user of action_events is missing",
    }
    assert {finding.level for finding in found.values()} == {Level.PROBLEM}
    execute(*(finding.advice for finding in found.values()))
    assert bad(schema.indexes(scratch)) == [], "the advice helps"


def test_a_primary_key_that_is_missing_is_found(scratch: Installation) -> None:
    execute("ALTER TABLE seen_events DROP CONSTRAINT pk_seen_events")
    (finding,) = schema.indexes(scratch)
    execute(finding.advice)
    assert bad(schema.indexes(scratch)) == []


def test_an_index_that_was_never_completed_is_not_valid(scratch: Installation) -> None:
    """As CREATE INDEX CONCURRENTLY leaves one that failed."""
    execute(
        "DROP INDEX uq_pages_external_id",
        "INSERT INTO tenants (id, name, created_at) VALUES ('acme', 'Acme', now())",
        """INSERT INTO pages (tenant_id, external_id, space_key, title, url, created_at, updated_at)
           SELECT 'acme', 'same', 'eng', 'Same', 'https://wiki.example', now(), now() FROM generate_series(1, 2)""",
    )
    with pytest.raises(Exception, match="could not create unique index"):
        execute("CREATE UNIQUE INDEX CONCURRENTLY uq_pages_external_id ON pages (tenant_id, external_id)")
    (finding,) = schema.indexes(scratch)
    assert finding.what == "The index uq_pages_external_id of pages is not valid"
    execute("DELETE FROM pages", *finding.advice.split("; "))
    assert bad(schema.indexes(scratch)) == []


def test_a_month_without_a_partition_is_a_problem_when_it_is_near(scratch: Installation) -> None:
    months = [partition_of(month_ahead(scratch.now.date(), ahead)) for ahead in range(3)]
    execute(f"DROP TABLE {months[2]}")
    ((level, what),) = bad(schema.partitions(scratch))
    assert (level, what) == (Level.WARN, f"action_events has no partition {months[2]}")
    execute(f"DROP TABLE {months[0]}")
    assert [level for level, _ in bad(schema.partitions(scratch))] == [Level.PROBLEM]


def test_a_login_that_does_not_own_the_tables_is_told(scratch: Installation, servers: Addresses) -> None:
    if not servers.service_database_url:
        pytest.skip("there is one login only")
    db.configure(service_url=None, owner_url=scratch.settings.service_database_url)
    assert [level for level, _ in bad(schema.visible_rows(scratch))] == [Level.PROBLEM]


def test_a_login_without_the_roles_is_told_how_to_get_them(scratch: Installation, servers: Addresses) -> None:
    url = make_url(servers.database_url).set(username="nobody_here").render_as_string(hide_password=False)
    settings = replace(scratch.settings, service_database_url=url)
    (finding,) = schema.usable_roles(replace(scratch, settings=settings))
    assert finding.level is Level.PROBLEM
    assert "PLAUDIT_SERVICE_DATABASE_URL may not use plaudit_service and plaudit_platform" in finding.what
    assert finding.advice == "as a superuser: GRANT plaudit_service, plaudit_platform TO nobody_here"
