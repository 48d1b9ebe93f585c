"""The outbox: what is stale, in the transaction of the change, and one wake-up after it."""

import contextlib

from sqlalchemy import text

from analytics import outbox
from analytics.outbox import Kind
from analytics.wake import JOB
from tenants import registry
from tenants.db import owner_tx, tenant_tx, utcnow
from tenants.platform_calls import PlatformCalls
from tests.analytics.conftest import Jobs


def stale(tenant: str, kind: Kind, *, limit: int = 100) -> list[str]:
    with tenant_tx(tenant) as tx:
        return [row.member for row in tx.run(*outbox.oldest(tenant, kind, limit=limit))]


def test_members_are_stale_and_their_tenant_is_woken_after_the_commit(tenant: str, jobs: Jobs) -> None:
    with tenant_tx(tenant) as tx:
        outbox.mark_stale(tx, Kind.PAGE, [7, "7", 12])
        outbox.mark_stale(tx, Kind.USER, ["ada"])
        outbox.mark_sharing_stale(tx)
        assert jobs() == []
    assert jobs() == [JOB]
    assert (stale(tenant, Kind.PAGE), stale(tenant, Kind.USER)) == (["12", "7"], ["ada"])
    assert len(stale(tenant, Kind.SHARING)) == 1, "one row stands for every public page"


def test_nothing_is_stale_and_nobody_is_woken_after_a_rollback(tenant: str, jobs: Jobs) -> None:
    with contextlib.suppress(ZeroDivisionError), tenant_tx(tenant) as tx:
        outbox.mark_stale(tx, Kind.PAGE, [7])
        raise ZeroDivisionError
    with tenant_tx(tenant) as tx:
        outbox.mark_stale(tx, Kind.PAGE, [])
    assert (stale(tenant, Kind.PAGE), jobs()) == ([], [])


def test_what_a_query_selects_is_stale_without_a_wake_up(tenant: str, jobs: Jobs) -> None:
    with tenant_tx(tenant) as tx:
        outbox.mark_selected_stale(tx, Kind.PAGE, "SELECT unnest(CAST(:ids AS text[]))", {"ids": ["7", "8"]})
    assert (stale(tenant, Kind.PAGE), jobs()) == (["7", "8"], [])


def test_the_oldest_rows_are_read_and_those_deleted_by_id_stay_away(tenant: str, other_tenant: str) -> None:
    for member in ("2", "1", "2"):
        for tenant_id in (tenant, other_tenant):
            with tenant_tx(tenant_id) as tx:
                outbox.mark_stale(tx, Kind.PAGE, [member])
    assert stale(tenant, Kind.PAGE, limit=2) == ["2", "1"]
    with tenant_tx(tenant) as tx:
        outbox.delete(tx, Kind.PAGE, [row.id for row in tx.run(*outbox.oldest(tenant, Kind.PAGE, limit=2))])
    assert stale(tenant, Kind.PAGE) == ["2"], "a row written after the read remains"
    assert stale(other_tenant, Kind.PAGE) == ["2", "1", "2"]


def test_the_lag_is_the_age_of_the_oldest_row_of_all_tenants_but_deleted_ones(tenant: str, other_tenant: str) -> None:
    calls = PlatformCalls(max_connections=1)
    days = {tenant: 900, other_tenant: 800}  # older than what other tests have left
    with owner_tx() as tx:
        for one, age in days.items():
            tx.execute(
                text("""
                    INSERT INTO outbox (tenant_id, kind, member, marked_at)
                    VALUES (:t, 'page', '7', now() - :age * interval '1 day'), (:t, 'page', '8', now())
                """),
                {"t": one, "age": age},
            )
    assert int(calls.run(outbox.LAG)[0][0] / 86400) == 900
    with owner_tx() as tx:
        registry.mark_deleted(tx, tenant, now=utcnow())
    assert int(calls.run(outbox.LAG)[0][0] / 86400) == 800
    calls.close()
    with tenant_tx(other_tenant) as tx:
        tx.execute(text("DELETE FROM outbox"))
