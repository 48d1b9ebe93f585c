"""Migrating: from nothing, at once, backwards; and what a migration makes of a database that was in use."""

import importlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, text

import migrations.versions
from migrations import run
from migrations.head import head_revision
from migrations.run import migrate
from tenants.errors import Conflict
from tests.service import ROOT


def migrate_up_to(engine: Engine, name: str, *, before: bool) -> None:
    """To the migration of this name, whatever its number is."""
    (file,) = Path(migrations.versions.__path__[0]).glob(f"*_{name}.py")
    module = importlib.import_module(f"migrations.versions.{file.stem}")
    migrate(engine, revision=module.down_revision if before else module.revision)


def test_of_two_at_once_one_migrates_and_a_newer_schema_is_refused(engine: Engine) -> None:
    with ThreadPoolExecutor(2) as threads:
        results = [future.result() for future in [threads.submit(migrate, engine) for _ in range(2)]]
    assert sorted(results, key=str) == [(head_revision(), head_revision()), (None, head_revision())]
    with engine.begin() as tx:
        tx.execute(text("UPDATE alembic_version SET version_num = '9999'"))  # as a later release leaves it
    with pytest.raises(Conflict, match="schema 9999, newer than this release's"):
        migrate(engine)


def test_each_migration_is_kept_when_a_later_one_fails(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """So none holds its locks while the next one works."""
    migrate_up_to(engine, "visitors", before=True)
    upgrade = run._upgrade
    steps: list[str] = []

    def fail_at_the_third(connection: Connection, revision: str) -> None:
        steps.append(revision)
        if len(steps) == 3:
            raise ZeroDivisionError
        upgrade(connection, revision)

    with monkeypatch.context() as patch:
        patch.setattr(run, "_upgrade", fail_at_the_third)
        with pytest.raises(ZeroDivisionError):
            migrate(engine)
    assert migrate(engine) == ("0020", head_revision())


def test_a_start_on_a_migrated_database_does_not_load_alembic(engine: Engine) -> None:
    migrate(engine)
    url = engine.url.render_as_string(hide_password=False)
    code = (
        "import sys; from migrations.run import migrate; from tenants.engines import make_engine;"
        f"migrate(make_engine({url!r}, pool_size=1)); print('alembic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n", "it takes a tenth of a second of each start"


def test_sign_up_stays_open_where_it_was_and_who_was_there_sees_all(engine: Engine) -> None:
    """Its default changes: what a tenant stored keeps its meaning, and what it did not store was true."""
    migrate_up_to(engine, "signup", before=True)
    stored = {
        "closed": '{"signup_open": false, "public_scoreboard": true}',
        "opened": '{"signup_open": true}',
        "other": '{"public_scoreboard": true, "limits": {"live_connections": 5}}',
    }
    with engine.begin() as tx:
        for tenant in ("silent", *stored):
            tx.execute(text("INSERT INTO tenants (id, name, created_at) VALUES (:id, :id, now())"), {"id": tenant})
        for tenant, overrides in stored.items():
            tx.execute(
                text("INSERT INTO tenant_settings VALUES (:id, 7, CAST(:overrides AS jsonb), '2020-01-01Z')"),
                {"id": tenant, "overrides": overrides},
            )
        tx.execute(
            text("""
                INSERT INTO users (tenant_id, id, username, created_at, updated_at)
                VALUES ('silent', gen_random_uuid(), 'ann', now(), now())
            """)
        )
    migrate_up_to(engine, "signup", before=False)
    with engine.connect() as tx:
        rows = tx.execute(text("SELECT tenant_id, version, overrides FROM tenant_settings")).all()
        assert {row.tenant_id: (row.version, row.overrides) for row in rows} == {
            "silent": (1, {"signup_open": True}),
            "closed": (7, {"signup_open": False, "public_scoreboard": True}),
            "opened": (7, {"signup_open": True}),
            "other": (8, {"signup_open": True, "public_scoreboard": True, "limits": {"live_connections": 5}}),
        }
        assert tx.scalars(text("SELECT sees_private FROM users")).all() == [True]


def test_a_stored_daily_cap_stays_a_number_of_times(engine: Engine) -> None:
    """`daily_cap` limited times, and limits points from now on: stored values keep what they did, as `daily_limit`."""
    migrate_up_to(engine, "daily_limit", before=True)
    with engine.begin() as tx:
        tx.execute(text("INSERT INTO tenants (id, name, created_at) VALUES ('acme', 'Acme', now())"))
        tx.execute(
            text("""
                INSERT INTO action_catalog (tenant_id, type, points, daily_cap, cooldown_s, updated_at)
                VALUES ('acme', 'capped', 100, 3, 60, '2020-01-01Z'), ('acme', 'free', 5, NULL, NULL, '2020-01-01Z')
            """)
        )
    migrate_up_to(engine, "daily_limit", before=False)
    with engine.begin() as tx:
        rows = tx.execute(
            text("SELECT type, points, daily_cap, daily_limit, cooldown_s FROM action_catalog ORDER BY type")
        ).all()
        assert [tuple(row) for row in rows] == [("capped", 100, None, 3, 60), ("free", 5, None, None, None)]
        tx.execute(text("UPDATE action_catalog SET daily_cap = 9007199254740991"))  # as many points as there can be


def test_the_storage_of_hot_tables_is_changed_beside_their_writers(engine: Engine) -> None:
    migrate_up_to(engine, "storage", before=True)
    with engine.begin() as writer:
        writer.execute(text("INSERT INTO tenants (id, name, created_at) VALUES ('acme', 'Acme', now())"))
        for table in ("outbox", "projecting"):
            writer.execute(text(f"DELETE FROM {table}"))
        writer.execute(text("INSERT INTO outbox (tenant_id, kind, member) VALUES ('acme', 'page', '1')"))
        writer.execute(text("UPDATE users SET current_score = current_score"))
        migrate_up_to(engine, "storage", before=False)
    with engine.connect() as tx:
        rows = tx.execute(text("SELECT relname, reloptions FROM pg_class WHERE reloptions IS NOT NULL")).all()
    options = {row.relname: {*row.reloptions} for row in rows}
    assert {"fillfactor=50", "autovacuum_vacuum_scale_factor=0.05"} <= options["page_counters"], "none is lost"
    assert "fillfactor=80" in options["users"]
    for queue in ("outbox", "projecting"):
        assert {"autovacuum_vacuum_scale_factor=0", "vacuum_truncate=off"} <= options[queue], "whatever its size"
    assert not [name for name, found in options.items() if "autovacuum_enabled=off" in found]
