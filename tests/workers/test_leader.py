"""Of several cron processes one leads, whatever happens to it or to its connection."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import text

from tenants import pipelines
from tenants.db import owner_tx, service_engine
from tenants.engines import make_engine
from tenants.pipelines import BEGIN
from tenants.queue import CRON_LEADER
from tests.service import eventually
from workers import leader
from workers.leader import LOST_AFTER_S, Leadership


@contextlib.contextmanager
def contending() -> Iterator[Leadership]:
    leadership = Leadership()
    with leadership.contend():
        yield leadership


@pytest.fixture
def quick(connected: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "BEAT_S", 0.05)


def open_transactions() -> list[Any]:
    with owner_tx() as tx:
        statement = """SELECT pid, state, backend_xmin, backend_xid FROM pg_stat_activity
                       WHERE application_name = :name AND datname = current_database()"""
        return list(tx.execute(text(statement), {"name": CRON_LEADER}))


def test_one_leads_and_when_it_stops_another_does(quick: None, logged: Callable[[], list[dict[str, Any]]]) -> None:
    with contextlib.ExitStack() as first_process:
        first = first_process.enter_context(contending())
        eventually(first.is_held)
        with contending() as second:
            time.sleep(0.2)
            assert (first.is_held(), second.is_held()) == (True, False)
            first_process.close()
            eventually(second.is_held)
            assert not first.is_held()
    assert [line["action"] for line in logged() if line["action"].startswith("cron.")] == ["cron.leads"] * 2


def test_its_open_transaction_keeps_no_dead_row_from_being_removed(quick: None) -> None:
    with contending() as leadership:
        eventually(leadership.is_held)
        # A beat may be under way just when it is looked at.
        states = [row for _ in range(20) for row in open_transactions() if row.state == "idle in transaction"]
        assert states
        assert {(row.backend_xmin, row.backend_xid) for row in states} == {(None, None)}


def test_who_loses_the_connection_leads_no_more_until_it_has_the_lock_again(
    quick: None, logged: Callable[[], list[dict[str, Any]]]
) -> None:
    with contending() as leadership:
        eventually(leadership.is_held)
        ((before, *_),) = open_transactions()
        with owner_tx() as tx:
            tx.execute(text("SELECT pg_terminate_backend(CAST(:pid AS int))"), {"pid": before})
        eventually(lambda: any(line["action"] == "cron.lost" for line in logged()))
        eventually(leadership.is_held)
        assert [row.pid for row in open_transactions()] != [before]


def test_one_that_cannot_lead_says_so_once_and_tries_again_whatever_the_reason_was(
    quick: None, logged: Callable[[], list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lines() -> list[tuple[str, str, str]]:
        cron = [line for line in logged() if line["action"].startswith("cron.")]
        return [(line["level"], line["action"], line["data"].get("error", "")) for line in cron]

    nowhere = make_engine("postgresql+psycopg://cron:wrong@127.0.0.1:1/plaudit", pool_size=1)
    with monkeypatch.context() as patch:
        patch.setattr(leader, "service_engine", lambda: nowhere)
        with contending():
            eventually(lines)
            time.sleep(0.3)
    assert lines() == [("warning", "cron.failed", "OperationalError")]
    run, attempts = pipelines.run, iter(range(3))

    def fail_at_first(*arguments: Any, **options: Any) -> Any:
        if next(attempts, None) is not None:
            raise RuntimeError
        return run(*arguments, **options)

    monkeypatch.setattr(pipelines, "run", fail_at_first)
    with contending() as leadership:
        eventually(leadership.is_held)
    assert lines()[1:] == [("error", "cron.failed", "RuntimeError"), ("info", "cron.leads", "")]


def test_a_machine_that_is_gone_leads_for_a_few_seconds_at_most(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the lock, and sends nothing any more."""
    gone = make_engine(service_engine().url.render_as_string(hide_password=False), pool_size=1)
    driver: Any = gone.raw_connection().driver_connection
    timeout = b"SET LOCAL idle_in_transaction_session_timeout = %d" % (LOST_AFTER_S * 1000)
    assert timeout in [statement.sql for statement in leader._OPENING]
    sooner = [one._replace(sql=one.sql.replace(timeout, timeout[:-3])) for one in leader._OPENING]
    (locked,) = pipelines.rows(driver, pipelines.run(driver, (BEGIN, *sooner[1:], leader._TRY_LOCK))[-1])
    assert locked.is_locked
    with contending() as leadership:
        eventually(leadership.is_held)
        monkeypatch.setattr(leadership, "_beat_at", time.monotonic() - LOST_AFTER_S)
        assert not leadership.is_held(), "nor does it believe so itself"
    gone.dispose()
