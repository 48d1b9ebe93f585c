"""What the owner does by the hour, for every tenant by itself."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from analytics import maintenance
from analytics.boards import recomputing
from analytics.ingest import page_writes
from app.settings import Settings
from tenants import across, db
from tenants.db import owner_tx, tenant_tx, utcnow
from tenants.pipelines import Statement
from tests.analytics.conftest import make_page, views_of
from tests.analytics.scores.conftest import UPDATE, claim_of
from tests.conftest import make_tenant
from tests.outages import lost_node
from tests.people import Caller
from tests.service import blocked_connections, eventually


def purge_history(now: datetime | None = None) -> dict[str, int]:
    return maintenance.purge_history(now=now or utcnow(), is_over=lambda: False).rows


def test_a_tenants_locked_row_keeps_nobody_elses_history(
    tenant: str, other_tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tenant_id in (tenant, other_tenant):
        with tenant_tx(tenant_id) as tx:
            page_writes.put(tx, "a", space="s", title="t", url="/a", now=utcnow())
            tx.execute(
                text("""
                    INSERT INTO page_views_hour (tenant_id, page_id, bucket_hour, views)
                    SELECT tenant_id, id, date_trunc('hour', now()) - interval '2 years', 7 FROM pages
                """)
            )
    monkeypatch.setattr(db, "OWNER_OPENING", [Statement(b"SET LOCAL lock_timeout = 100")])
    first, second = sorted([tenant, other_tenant])
    with tenant_tx(first, separate=True) as holding:
        holding.execute(text("SELECT FROM page_counters WHERE tenant_id = :t FOR UPDATE"), {"t": holding.tenant})
        assert purge_history()["page_views_hour"] >= 1
        assert (views_of(first), views_of(second)) == (7, 0)
    purge_history(now=utcnow() + timedelta(hours=1))
    with owner_tx() as tx:
        assert not tx.scalar(text("SELECT count(*) FROM page_views_hour WHERE tenant_id = :t"), {"t": first})


def test_a_purge_whose_turn_is_over_continues_after_the_last_tenant(connected: None) -> None:
    made = {make_tenant(), make_tenant()}
    purged, after, runs = set[str](), "", 0
    while True:
        done = maintenance.purge_history(now=utcnow(), is_over=lambda: True, after=after)
        runs += 1
        if done.continue_after is None:
            break
        assert done.continue_after > after, "one tenant a turn, each of them once"
        purged.add(after := done.continue_after)
    assert made <= purged
    assert runs > 2


def test_old_history_goes_and_totals_stay(admin: Caller, player: Caller, tenant: str) -> None:
    make_page(admin, "p")
    admin("POST", "/api/v1/pages/p/views")
    player("POST", UPDATE, json=claim_of())
    with owner_tx() as tx:
        for table in ("page_views_hour", "user_points_hour"):
            moved = text(
                f"UPDATE {table} SET bucket_hour = date_trunc('hour', CAST(:then AS timestamptz)) WHERE tenant_id = :t"
            )
            tx.execute(moved, {"t": tenant, "then": utcnow() - timedelta(days=401)})
        tx.execute(text("UPDATE seen_events SET seen_on = seen_on - 50 WHERE tenant_id = :t"), {"t": tenant})
    purged = purge_history()
    assert purged["page_views_hour"] >= 1
    assert purged["user_points_hour"] >= 1
    recomputing.recompute_tenant(tenant, now=utcnow, progress=lambda _: None)
    stats = admin("GET", "/api/v1/pages/p/stats").get_json()
    assert (stats["views"]["30d"], stats["views"]["all"]) == (0, 1)
    assert admin("GET", f"/api/v1/users/{player.id}").get_json()["score"] == 10


def months() -> set[str]:
    with owner_tx() as tx:
        return set(
            tx.scalars(
                text("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'action_events'::regclass")
            )
        )


def test_the_audits_months_are_made_ahead_and_dropped_when_they_are_over(tenant: str) -> None:
    now = utcnow()
    with owner_tx() as tx:
        tx.execute(text("SELECT make_month_of_actions('2020-01-01')"))
    assert "action_events_2020_01" in months()
    maintenance.keep_months(now=now)
    maintenance.keep_months(now=now)
    assert "action_events_2020_01" not in months()
    assert f"action_events_{now:%Y_%m}" in months()
    assert len(months()) >= 3


def test_while_a_node_is_lost_no_month_is_dropped(
    tenant: str, monkeypatch: pytest.MonkeyPatch, logged: Callable[[], list[dict[str, Any]]]
) -> None:
    """A tenant there may keep it for longer than all others."""

    def fail(*_: object) -> list[Any]:
        raise lost_node()

    with owner_tx() as tx:
        tx.execute(text("SELECT make_month_of_actions('2020-01-01')"))
    with monkeypatch.context() as lost:
        lost.setattr(across, "_read", fail)
        maintenance.keep_months(now=utcnow())
    assert "action_events_2020_01" in months()
    assert "partitions.late" in {line.get("action") for line in logged()}
    maintenance.keep_months(now=utcnow())
    assert "action_events_2020_01" not in months()


def test_months_are_made_and_dropped_by_two_processes_at_once(connected: None, settings: Settings) -> None:
    now = utcnow()
    newest = maintenance.month_ahead(now.date(), maintenance.MONTHS_AHEAD)
    name = maintenance.partition_of(newest)
    with owner_tx() as tx:
        tx.execute(text("SELECT make_month_of_actions('2020-01-01')"))
        tx.execute(text(f"DROP TABLE {name}"))
    with ThreadPoolExecutor(1) as other_process, ExitStack() as open_transaction:
        first = open_transaction.enter_context(owner_tx())
        first.execute(text("SELECT make_month_of_actions(:month)"), {"month": newest})
        first.execute(text("DROP TABLE action_events_2020_01"))
        second = other_process.submit(maintenance.keep_months, now=now)
        eventually(lambda: blocked_connections(settings.database_url or ""))
        open_transaction.close()
        second.result(timeout=60)
    assert name in months()
    assert "action_events_2020_01" not in months()
