"""Dead rows, missing statistics, open and old transactions."""

import time

import pytest
from sqlalchemy import text

from app.doctor import tables
from app.doctor.findings import Level
from app.doctor.installation import Installation
from tenants import db
from tenants.engines import make_engine
from tenants.queue import CRON_LEADER
from tests.app.doctor.conftest import bad, execute
from tests.citus import not_on_citus
from tests.service import eventually


def test_a_table_of_dead_rows_is_named(scratch: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MIN_DEAD_ROWS", 100)
    assert bad(tables.dead_rows(scratch)) == []
    execute(
        "ALTER TABLE outbox SET (autovacuum_enabled = off)",
        "INSERT INTO outbox (tenant_id, kind, member) SELECT 'acme', 'page', n::text FROM generate_series(1, 500) n",
        "DELETE FROM outbox",
    )
    db.dispose()  # a session reports its counts when it ends
    eventually(lambda: bad(tables.dead_rows(scratch)))
    ((level, what),) = bad(tables.dead_rows(scratch))
    assert (level, what) == (Level.WARN, "outbox has 500 dead rows beside 0 live ones; never vacuumed")
    execute("VACUUM outbox")
    eventually(lambda: not bad(tables.dead_rows(scratch)))


def test_a_large_table_without_statistics_is_named(scratch: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MIN_ROWS_TO_ANALYSE", 100)
    execute(
        "ALTER TABLE outbox SET (autovacuum_enabled = off)",
        "INSERT INTO outbox (tenant_id, kind, member) SELECT 'acme', 'page', n::text FROM generate_series(1, 500) n",
    )
    db.dispose()
    eventually(lambda: bad(tables.dead_rows(scratch)) == [(Level.WARN, "outbox was never analysed")])


@not_on_citus  # whose transactions may be those of other processes' tests
def test_a_transaction_that_is_open_for_long_is_named(scratch: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MAX_OPEN_TRANSACTION_S", 0.2)
    with make_engine(scratch.settings.database_url or "", pool_size=1).begin() as connection:
        connection.execute(text("SELECT 1"))
        time.sleep(0.3)
        ((level, what),) = bad(tables.open_transactions(scratch))
        assert (level, "is open for" in what) == (Level.WARN, True)
        connection.execute(text(f"SET LOCAL application_name = '{CRON_LEADER}'"))
        assert bad(tables.open_transactions(scratch)) == []


def test_old_transaction_ids_are_a_warning_and_then_a_problem(
    scratch: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bad(tables.transaction_age(scratch)) == []
    monkeypatch.setattr(tables, "HIGH_AGE", -1)
    assert [level for level, _ in bad(tables.transaction_age(scratch))] == [Level.WARN]
    monkeypatch.setattr(tables, "DANGEROUS_AGE", -1)
    assert [level for level, _ in bad(tables.transaction_age(scratch))] == [Level.PROBLEM]
