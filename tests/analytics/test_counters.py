"""Counters: exact totals, which a recount repairs; and views that do not wait for them."""

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from uuid import uuid4

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from analytics import counters
from analytics.boards import checking, page_numbers, projection
from analytics.ingest import page_writes, writes
from analytics.ingest.reasons import Result
from analytics.ingest.visitors import Visit
from analytics.ingest.writes import EventKind, Item, WriteRequest, commit_together
from tenants.db import Tx, tenant_tx, utcnow
from tests.analytics.conftest import put_page, somebody_else_writes, views_of, write_events


@pytest.fixture
def pages(tenant: str) -> list[int]:
    """Two pages: one with three views and two likes, one with nothing."""
    ids = [put_page(tenant, name) for name in ("busy", "idle")]
    now = utcnow()
    views = [Item(EventKind.VIEW, "busy", now)] * 3
    write_events(tenant, *views, *(Item(EventKind.LIKE, "busy", now, user=user) for user in ("ada", "bob")))
    return ids


def totals(tx: Tx) -> list[tuple[int, int]]:
    return [
        (row.views, row.likes) for row in tx.execute(text("SELECT views, likes FROM page_counters ORDER BY page_id"))
    ]


def test_a_lock_keeps_others_out(pages: list[int], tenant: str) -> None:
    with tenant_tx(tenant, separate=True) as tx:
        counters.lock(tx, [*pages, 10**12])
        with tenant_tx(tenant, separate=True) as second:
            second.execute(text("SET LOCAL lock_timeout = 10"))
            with pytest.raises(OperationalError, match="lock timeout"):
                counters.lock(second, pages[1:])


def test_a_recount_sets_totals_to_the_rows_and_what_was_purged_of_them(pages: list[int], tenant: str) -> None:
    with tenant_tx(tenant) as tx:
        assert totals(tx) == [(3, 2), (0, 0)]
        tx.execute(text("UPDATE page_counters SET views = 99, likes = 99, views_purged = 40"))
        counters.recount(tx, pages[:1])
        assert totals(tx) == [(43, 2), (99, 99)], "of these pages only"
        counters.recount(tx, pages)
        assert totals(tx) == [(43, 2), (40, 0)]


def commit(tenant: str, *items: Item, shared: bool = True) -> list[Result]:
    """By the group commit's own path; `shared`: in a transaction that other tenants could share."""
    request = WriteRequest(tenant, items, utcnow(), room=10)
    assert commit_together([request], shared=shared) == []
    return [outcome.result for outcome in request.outcomes]


def waiting(tenant: str) -> int:
    with tenant_tx(tenant) as tx:
        return int(tx.execute(text("SELECT count(*) FROM outbox WHERE kind = 'views'")).scalar_one())


def project(tenant: str, limit: int = 5_000) -> None:
    projection.project_all(tenant, now=utcnow, limit=limit)
    assert checking.check(tenant, now=utcnow()).differences == []


def views_on_boards(tenant: str, page: str) -> dict[str, int]:
    found = page_numbers.stats(tenant, page, public_only=False, now=utcnow())
    assert found is not None
    return dict(found["views"])


def test_a_view_waits_for_no_lock_and_the_next_projection_counts_it(tenant: str) -> None:
    for page in ("busy", "free"):
        put_page(tenant, page)
    once = Item(EventKind.VIEW, "busy", utcnow(), event_key=uuid4(), visit=Visit(uuid4()))
    late = Item(EventKind.VIEW, "busy", utcnow() - timedelta(days=3))
    with somebody_else_writes(tenant):
        assert commit(tenant, once, late, Item(EventKind.VIEW, "free", utcnow())) == [Result.ACCEPTED] * 3
        assert commit(tenant, once) == [Result.DUPLICATE]
    assert (waiting(tenant), views_of(tenant)) == (3, 3), "two hours of one page, one of the other"
    with tenant_tx(tenant) as tx:
        assert totals(tx) == [(0, 0), (0, 0)]
    assert tenant in projection.stale_tenants(now=utcnow()), "the sweep finds it, whatever wake-up is lost"
    project(tenant)
    assert (waiting(tenant), views_of(tenant)) == (0, 3)
    assert views_on_boards(tenant, "busy") == {"1d": 1, "7d": 2, "30d": 2, "all": 2}
    with tenant_tx(tenant) as tx:
        assert totals(tx) == [(2, 0), (1, 0)]
        assert tx.execute(text("SELECT visitors FROM page_counters ORDER BY page_id")).scalars().all() == [1, 0]


def test_a_like_waits_since_its_answer_has_the_exact_count(tenant: str) -> None:
    put_page(tenant, "busy")
    liked = Item(EventKind.LIKE, "busy", utcnow(), user="ada")
    with ThreadPoolExecutor(1) as pool:
        with somebody_else_writes(tenant):
            with pytest.raises(OperationalError, match="lock timeout"):
                commit(tenant, liked, Item(EventKind.VIEW, "busy", utcnow()))
            answer = pool.submit(commit, tenant, liked)
        assert answer.result(30) == [Result.ACCEPTED]
    assert (waiting(tenant), views_of(tenant)) == (0, 0)


def test_views_of_a_page_that_is_deleted_while_they_wait_go_with_it(tenant: str) -> None:
    for page in ("gone", "kept"):
        put_page(tenant, page)
    with somebody_else_writes(tenant):
        commit(tenant, *(Item(EventKind.VIEW, page, utcnow()) for page in ("gone", "kept", "kept")))
    with tenant_tx(tenant) as tx:
        page_writes.delete(tx, "gone")
    project(tenant)
    assert (waiting(tenant), views_of(tenant)) == (0, 2)


def test_what_waits_is_counted_in_bounded_steps_and_left_alone_where_a_counter_stays_locked(
    tenant: str,
) -> None:
    put_page(tenant, "busy")
    with somebody_else_writes(tenant):
        for _ in range(5):
            commit(tenant, Item(EventKind.VIEW, "busy", utcnow()))
        projection.project_all(tenant, now=utcnow, limit=2)
        assert waiting(tenant) == 5, "and the projection did not fail"
    project(tenant, limit=2)
    assert (waiting(tenant), views_on_boards(tenant, "busy")["all"]) == (0, 5)


def test_a_visitor_whom_two_nodes_see_at_once_is_counted_once(tenant: str) -> None:
    put_page(tenant, "busy")
    loads = [Item(EventKind.VIEW, "busy", utcnow(), visit=Visit(uuid4(), uuid4(), is_load=True)) for _ in range(8)]
    with ThreadPoolExecutor(1) as pool:
        with tenant_tx(tenant, separate=True) as first:
            request = WriteRequest(tenant, loads, utcnow())
            with somebody_else_writes(tenant):
                writes.apply(first, request)
            second = pool.submit(commit, tenant, *reversed(loads))
            time.sleep(0.1)
            assert not second.done(), "who is first is not known yet"
        assert second.result(30) == [Result.DUPLICATE] * 8
    project(tenant)
    with tenant_tx(tenant) as tx:
        row = tx.execute(text("SELECT views, visitors FROM page_counters")).one()
    assert tuple(row) == (8, 8)


def test_nodes_that_see_the_same_visitors_in_another_order_never_deadlock(tenant: str) -> None:
    """Readers whom the site names: one node has a browser's load of each second one, the other a server's view."""
    put_page(tenant, "busy")
    visitors = sorted(uuid4() for _ in range(8))
    loads, views = (
        [Item(EventKind.VIEW, "busy", utcnow(), visit=Visit(visitor, is_load=is_load)) for visitor in visitors]
        for is_load in (True, False)
    )
    mixed = [loads[place] if place % 2 else views[place] for place in range(8)]
    others = [views[place] if place % 2 else loads[place] for place in range(8)]
    alone = partial(commit, tenant, shared=False)
    with ThreadPoolExecutor(2) as pool, somebody_else_writes(tenant):
        with tenant_tx(tenant, separate=True) as between:
            writes.apply(between, WriteRequest(tenant, loads[4:5], utcnow()))
            nodes = [pool.submit(alone, *mixed), pool.submit(alone, *reversed(others))]
            time.sleep(0.5)  # by then both wait: for the visitor in the middle, or for each other
        results = [node.result(30) for node in nodes]
    assert Counter(results[0] + results[1]) == {Result.ACCEPTED: 15, Result.DUPLICATE: 1}, "the repeated load"
    project(tenant)
    with tenant_tx(tenant) as tx:
        row = tx.execute(text("SELECT views, visitors FROM page_counters")).one()
    assert tuple(row) == (16, 8)


def test_a_view_with_a_visitor_does_not_wait_for_the_deletion_of_its_page(tenant: str) -> None:
    for page in ("going", "kept"):
        put_page(tenant, page)
    visits = [Visit(uuid4(), uuid4(), is_load=True), Visit(uuid4()), None]
    with tenant_tx(tenant, separate=True) as deleting:
        page_writes.delete(deleting, "going")
        results = [commit(tenant, Item(EventKind.VIEW, "going", utcnow(), visit=visit)) for visit in visits]
        assert (
            commit(tenant, *(Item(EventKind.VIEW, "kept", utcnow(), visit=visit) for visit in visits[:2]))
            == [Result.ACCEPTED] * 2
        )
    assert results == [[Result.UNKNOWN_PAGE], [Result.UNKNOWN_PAGE], [Result.ACCEPTED]]
    project(tenant)
    assert (waiting(tenant), views_of(tenant)) == (0, 2)


def test_a_page_whose_counter_stays_locked_delays_the_views_of_no_other(tenant: str) -> None:
    locked, _ = put_page(tenant, "locked"), put_page(tenant, "free")
    with somebody_else_writes(tenant):
        commit(tenant, *(Item(EventKind.VIEW, page, utcnow()) for page in ("locked", "free")))
    with tenant_tx(tenant, separate=True) as tx:
        counters.lock(tx, [locked])
        projection.project_all(tenant, now=utcnow)
        assert (waiting(tenant), views_on_boards(tenant, "free")["all"]) == (1, 1)
    project(tenant)
    assert (waiting(tenant), views_on_boards(tenant, "locked")["all"]) == (0, 1)


def test_views_that_come_just_before_a_projection_begins_do_not_wait_for_the_next(tenant: str) -> None:
    """Their wake-up finds one pending, which is this one: it must read after it has cleared that."""
    put_page(tenant, "busy")
    came: list[Result] = []

    def come_once() -> None:
        if not came:
            with ThreadPoolExecutor(1) as another, somebody_else_writes(tenant):
                came.extend(another.submit(commit, tenant, Item(EventKind.VIEW, "busy", utcnow())).result(10))

    projection.project_all(tenant, now=utcnow, locked=come_once)
    assert (came, waiting(tenant)) == ([Result.ACCEPTED], 0)
    assert views_on_boards(tenant, "busy")["all"] == 1


def test_a_projection_of_several_steps_says_once_that_it_has_begun(tenant: str) -> None:
    """Each time it would take back the flag of a job that was enqueued meanwhile, and let others enqueue one more."""
    put_page(tenant, "a")
    with somebody_else_writes(tenant):
        write_events(tenant, Item(EventKind.VIEW, "a", utcnow()))
    began: list[str] = []
    done = projection.project_all(tenant, now=utcnow, locked=lambda: began.append(tenant))
    assert done.rows > 0
    assert began == [tenant]
    assert views_of(tenant, "a") == 1


def test_a_projection_waits_for_few_locked_counters(tenant: str) -> None:
    """Other tenants wait for its worker."""
    pages = [f"p{number}" for number in range(8)]
    for page in pages:
        put_page(tenant, page)
    with somebody_else_writes(tenant):
        write_events(tenant, *(Item(EventKind.VIEW, page, utcnow()) for page in pages))
        began = time.monotonic()
        projection.project_all(tenant, now=utcnow)
        assert time.monotonic() - began < 3, "eight times half a second would be four"
    projection.project_all(tenant, now=utcnow)
    assert [views_of(tenant, page) for page in pages] == [1] * 8
