"""The plan of a step: what is committed before Redis is touched, and what is left until then."""

import pytest
from sqlalchemy import text

from analytics.boards import planning, progress, timeline
from analytics.boards.planning import Plan
from analytics.ingest.writes import EventKind, Item
from analytics.outbox import Kind
from tenants.db import Tx, tenant_tx, utcnow
from tests.analytics.boards.conftest import project
from tests.analytics.conftest import put_page, write_events
from tests.conftest import redis_unavailable

NOW = utcnow()


@pytest.fixture
def viewed(tenant: str) -> int:
    """A page with a view that no board has yet."""
    page_id = put_page(tenant, "a")
    project(tenant)
    write_events(tenant, Item(EventKind.VIEW, "a", utcnow()))
    return page_id


def plan_of(tenant: str) -> Plan:
    with tenant_tx(tenant) as tx:
        position, _ = progress.get_or_create(tx, now=NOW)
        return planning.make(tx, position, server=timeline.current(tx), now=utcnow(), limit=100)


def may_be_carried_out(tx: Tx, plan: Plan) -> bool:
    return tx.run(*progress.finding_planned(tx.tenant, plan.step)) != []


def recorded(tx: Tx) -> list[str]:
    return list(tx.scalars(text("SELECT member FROM projecting ORDER BY member")))


def test_a_plan_commits_its_intents_and_leaves_numbers_and_outbox_as_they_are(tenant: str, viewed: int) -> None:
    plan = plan_of(tenant)
    assert (plan.pages.members, len(plan.new_intents), plan.has_redis) == ({str(viewed)}, 1, True)
    with tenant_tx(tenant) as tx:
        assert recorded(tx) == [str(viewed)]
        assert tx.scalar(text("SELECT count(*) FROM page_stats")) == 0
        assert set(tx.scalars(text("SELECT id FROM outbox"))) == set(plan.rows[Kind.PAGE])


def test_only_the_last_plan_may_be_carried_out(tenant: str, viewed: int) -> None:
    first, second = plan_of(tenant), plan_of(tenant)
    with tenant_tx(tenant) as tx:
        assert [may_be_carried_out(tx, plan) for plan in (first, second)] == [False, True]
        tx.run(*progress.raising_step(tenant))
        assert not may_be_carried_out(tx, second)


def test_a_plan_that_has_nothing_to_do_changes_nothing(tenant: str) -> None:
    project(tenant)
    with tenant_tx(tenant) as tx:
        before = tx.scalar(text("SELECT step FROM projections"))
    with redis_unavailable():
        plan = plan_of(tenant)
    assert (plan.row_count, plan.chunks, plan.has_redis) == (0, [], False)
    with tenant_tx(tenant) as tx:
        assert tx.scalar(text("SELECT step FROM projections")) == before


def test_what_a_dead_step_intended_is_planned_again_without_new_intents(tenant: str, viewed: int) -> None:
    plan_of(tenant)
    project(tenant)
    with tenant_tx(tenant) as tx:
        tx.execute(
            text("INSERT INTO projecting (tenant_id, kind, member, scopes) VALUES (:t, 'page', :m, '{tenant}')"),
            {"t": tenant, "m": str(viewed)},
        )
    plan = plan_of(tenant)
    assert (plan.pages.members, plan.row_count, plan.new_intents) == ({str(viewed)}, 0, [])
    assert plan.chunks[0].writes.values, "all its values, although none has changed"
