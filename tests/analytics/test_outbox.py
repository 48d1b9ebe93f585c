"""The outbox: what is stale, in the transaction of the change, and one wake-up after it."""

import contextlib

from analytics import outbox
from analytics.outbox import Kind, Lag
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
        outbox.delete(tx, [row.id for row in tx.run(*outbox.oldest(tenant, Kind.PAGE, limit=2))])
    assert stale(tenant, Kind.PAGE) == ["2"], "a row written after the read remains"
    assert stale(other_tenant, Kind.PAGE) == ["2", "1", "2"]


def test_the_lag_is_the_age_of_the_oldest_row_as_far_as_earlier_looks_tell() -> None:
    lag = Lag()
    assert lag.seconds((None, None), now=100) == 0
    assert lag.seconds((5, 9), now=110) == 0, "when they were written, nobody knows"
    assert lag.seconds((5, 14), now=125) == 15
    assert lag.seconds((12, 20), now=140) == 15, "12 was there at the look of 125, and not yet at that of 110"
    assert lag.seconds((21, 30), now=155) == 0, "all that were seen before are projected: it follows"
    assert lag.seconds((21, 21), now=170) == 15
    assert lag.seconds((None, None), now=200) == 0
    assert lag.seconds((22, 22), now=230) == 0


def test_the_ids_that_wait_are_those_of_all_tenants_but_deleted_ones(tenant: str, other_tenant: str) -> None:
    calls = PlatformCalls(max_connections=1)
    for one in (other_tenant, tenant):
        with tenant_tx(one) as tx:
            outbox.mark_selected_stale(tx, Kind.PAGE, "SELECT unnest(CAST(:ids AS text[]))", {"ids": ["7", "8"]})
            newest = max(row.id for row in tx.run(*outbox.oldest(one, Kind.PAGE, limit=10)))
    assert calls.run(outbox.IDS_WAITING)[0][1] == newest
    with owner_tx() as tx:
        registry.mark_deleted(tx, tenant, now=utcnow())
    assert calls.run(outbox.IDS_WAITING)[0][1] == newest - 2
    calls.close()
