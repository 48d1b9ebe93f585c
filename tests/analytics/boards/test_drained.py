"""A step of a backlog costs the same, however much was drained before; and nothing is left out for long."""

import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import text

from analytics import outbox
from analytics.boards import drained, planning, projection
from analytics.boards.drained import FROM_START_EVERY_S, Drained
from analytics.outbox import Kind
from app.settings import Settings
from tenants.db import Query, tenant_tx, utcnow
from tests.analytics.boards.conftest import leave_unfinished

STEP = 100
FRONTS = {Kind.PAGE: 7, Kind.USER: 0}


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "MAX_MEMBERS_PER_STEP", STEP)
    monkeypatch.setattr(projection, "_drained", Drained())


@pytest.fixture
def old_snapshot(settings: Settings) -> Iterator[None]:
    """A transaction that may still see every row that is deleted from now on."""
    with psycopg.connect(str(settings.database_url)) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute("SELECT 1 FROM tenants LIMIT 1")
        yield


def make_backlog(tenant: str, rows: int) -> None:
    projection.project_all(tenant, now=utcnow)
    with tenant_tx(tenant) as tx:
        outbox.mark_selected_stale(tx, Kind.PAGE, "SELECT n::text FROM generate_series(1, :n) n", {"n": rows})


def step(tenant: str) -> projection.Projected:
    return projection.project_step(tenant, now=utcnow(), limit=2 * STEP)


def waiting(tenant: str) -> list[str]:
    with tenant_tx(tenant) as tx:
        return list(tx.scalars(text("SELECT member FROM outbox WHERE tenant_id = :t ORDER BY id"), {"t": tenant}))


def blocks(tenant: str, query: Query) -> int:
    """How many blocks of the table and its index a query reads."""
    with tenant_tx(tenant) as tx:
        plan = tx.execute(text(f"EXPLAIN (ANALYZE, BUFFERS) {query[0].text}"), query[1]).scalars()
        return sum(map(int, re.findall(r"(?:hit|read)=([0-9]+)", next(line for line in plan if "Buffers" in line))))


@pytest.mark.usefixtures("small_steps", "old_snapshot")
def test_a_step_reads_past_no_rows_that_were_deleted_before(tenant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drained, "FROM_START_EVERY_S", 600.0)
    asked: list[Query] = []

    def watched(*arguments: Any, **options: Any) -> Query:
        asked.append(oldest(*arguments, **options))
        return asked[-1]

    oldest = outbox.oldest
    monkeypatch.setattr(outbox, "oldest", watched)
    make_backlog(tenant, 100 * STEP)
    costs = []
    for _ in range(90):
        asked.clear()
        assert step(tenant).rows == STEP
        costs.append(max(blocks(tenant, query) for query in asked))
    assert max(costs[50:]) <= 2 * max(costs[:5])


@pytest.mark.usefixtures("small_steps")
def test_rows_that_are_committed_late_are_projected_when_the_backlog_ends(tenant: str) -> None:
    with tenant_tx(tenant, separate=True) as late:
        outbox.mark_stale(late, Kind.PAGE, [987654])
        outbox.mark_stale(late, Kind.USER, [])
        make_backlog(tenant, 5 * STEP)
        assert step(tenant).more
    assert waiting(tenant)[0] == "987654"
    step(tenant)
    assert waiting(tenant)[0] == "987654", "it is before what this process reads"
    leave_unfinished(tenant, "123456")
    projection.project_all(tenant, now=utcnow, limit=2 * STEP)
    assert waiting(tenant) == []
    with tenant_tx(tenant) as tx:
        assert list(tx.scalars(text("SELECT member FROM projecting"))) == []


def test_every_few_seconds_a_step_reads_from_the_start() -> None:
    now = 100.0
    known = Drained(clock=lambda: now)
    assert known.fronts("acme") == {}
    known.note("acme", FRONTS, from_start=True)
    assert (known.fronts("acme"), known.fronts("other")) == (FRONTS, {})
    for _ in range(4):
        now += FROM_START_EVERY_S / 4 - 0.01
        known.note("acme", {**FRONTS, Kind.PAGE: 8}, from_start=False)
        assert known.fronts("acme") == {**FRONTS, Kind.PAGE: 8}
    now += 0.1
    assert known.fronts("acme") == {}
    known.note("acme", FRONTS, from_start=False)
    assert known.fronts("acme") == {}, "it began before"
    known.note("acme", FRONTS, from_start=True)
    known.note("acme", {}, from_start=False)
    assert known.fronts("acme") == {}, "there is no backlog any more"
