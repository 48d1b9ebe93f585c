"""The group commit: shared commits, own failures, bounds, and no deadlock."""

import random
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DataError, DBAPIError

from analytics import ingest, pages
from analytics.ingest import Does, GroupCommit, Item, Outcome, Part, Result
from analytics.windows import hour_of
from app.settings import Settings
from tenants.db import owner_tx, tenant_tx, utcnow
from tenants.errors import Unavailable
from tests.analytics.conftest import likes_of, views_of
from tests.service import ROOT


def make_pages(tenant: str, *external_ids: str) -> None:
    with tenant_tx(tenant) as tx:
        for external_id in external_ids:
            pages.put(tx, external_id, space="s", title="t", url="/x", now=utcnow())


def view(tenant: str, page: str) -> Part:
    now = utcnow()
    return Part(tenant, [Item(Does.VIEW, page, now)], now)


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many parts each transaction had."""
    sizes: list[int] = []
    real = ingest._commit_together

    def counting(parts: Any) -> None:
        sizes.append(len(parts))
        time.sleep(0.02)
        real(parts)

    monkeypatch.setattr(ingest, "_commit_together", counting)
    return sizes


def test_requests_in_flight_share_commits_across_tenants(tenant: str, other_tenant: str, commits: list[int]) -> None:
    make_pages(tenant, "a", "b")
    make_pages(other_tenant, "a")
    group = GroupCommit()
    parts = [view(*where) for where in [(tenant, "a"), (other_tenant, "a"), (tenant, "b")] * 20]
    with ThreadPoolExecutor(60) as pool:
        outcomes = list(pool.map(group.write, parts))
    assert all(outcome == [Outcome(Result.ACCEPTED)] for outcome in outcomes)
    assert len(commits) < 30
    assert sum(commits) == 60
    assert (views_of(tenant, "a"), views_of(tenant, "b"), views_of(other_tenant)) == (20, 20, 20)


def test_a_part_that_fails_fails_its_own_callers_only(tenant: str, other_tenant: str, commits: list[int]) -> None:
    make_pages(tenant, "a", "poison")
    make_pages(other_tenant, "a")
    with tenant_tx(tenant) as tx:
        tx.execute(
            text("""
                INSERT INTO page_views_hour (tenant_id, page_id, bucket_hour, views)
                SELECT tenant_id, id, :hour, 9223372036854775807 FROM pages WHERE external_id = 'poison'
            """),
            {"hour": hour_of(utcnow())},
        )
    group = GroupCommit()
    where = [(tenant, "a"), (tenant, "poison"), (other_tenant, "a")] * 5
    results: Counter[str] = Counter()

    def write(place: tuple[str, str]) -> None:
        try:
            group.write(view(*place))
            results[f"ok {place[1]}"] += 1
        except DBAPIError as error:
            assert isinstance(error, DataError)
            results[f"failed {place[1]}"] += 1

    with ThreadPoolExecutor(15) as pool:
        list(pool.map(write, where))
    assert results == {"ok a": 10, "failed poison": 5}
    assert (views_of(tenant, "a"), views_of(other_tenant)) == (5, 5)
    assert views_of(tenant, "poison") == 2**63 - 1, "as before"


def test_when_too_much_waits_the_next_is_told_so_at_once(tenant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_pages(tenant, "a")
    group = GroupCommit(most_waiting_items=3)
    gate = threading.Event()
    real = ingest._commit_together

    def slow(parts: Any) -> None:
        gate.wait(10)
        real(parts)

    monkeypatch.setattr(ingest, "_commit_together", slow)
    with ThreadPoolExecutor(8) as pool:
        running = [pool.submit(group.write, view(tenant, "a")) for _ in range(4)]
        deadline = time.monotonic() + 5
        while group._waiting_items < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        with pytest.raises(Unavailable) as refused:
            group.write(view(tenant, "a"))
        assert refused.value.code == "overloaded"
        gate.set()
        assert all(future.result() for future in running)
    assert views_of(tenant) == 4
    assert group.write(view(tenant, "a")), "and afterwards it takes more"


def test_who_waits_too_long_leaves_and_the_lead_is_not_lost(tenant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_pages(tenant, "a")
    monkeypatch.setattr(ingest, "WAIT_S", 0.2)
    group = GroupCommit()
    real = ingest._commit_together
    gate = threading.Event()

    def slow(parts: Any) -> None:
        gate.wait(10)
        real(parts)

    monkeypatch.setattr(ingest, "_commit_together", slow)
    with ThreadPoolExecutor(4) as pool:
        leader = pool.submit(group.write, view(tenant, "a"))
        time.sleep(0.1)
        with pytest.raises(Unavailable):
            group.write(view(tenant, "a"))
        gate.set()
        assert leader.result()
    assert views_of(tenant) == 1
    assert group.write(view(tenant, "a"))


def test_a_page_deleted_meanwhile_is_unknown(tenant: str) -> None:
    make_pages(tenant, "a", "b")
    with tenant_tx(tenant) as tx:
        pages.delete(tx, "a")
    group = GroupCommit()
    assert group.write(view(tenant, "a")) == [Outcome(Result.UNKNOWN_PAGE)]
    assert group.write(view(tenant, "b")) == [Outcome(Result.ACCEPTED)]


def test_a_view_that_waits_for_a_deletion_finds_the_page_gone(tenant: str) -> None:
    make_pages(tenant, "a", "b")
    now = utcnow()
    both = Part(tenant, [Item(Does.VIEW, "a", now), Item(Does.VIEW, "b", now)], now)
    with ThreadPoolExecutor(1) as pool:
        with tenant_tx(tenant) as tx:
            pages.delete(tx, "a")
            waiting = pool.submit(GroupCommit().write, both)
            time.sleep(0.3)
            assert not waiting.done()
        assert waiting.result(10) == [Outcome(Result.UNKNOWN_PAGE), Outcome(Result.ACCEPTED)]
    assert (views_of(tenant, "b"), rejected(tenant)) == (1, {"unknown_page": 1})


def test_connections_that_the_server_closed_meanwhile_cost_no_request(tenant: str) -> None:
    make_pages(tenant, "a")
    group = GroupCommit()
    group.write(view(tenant, "a"))
    with owner_tx() as tx:
        closed = tx.execute(
            text("""
                SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
            """)
        ).scalar_one()
        assert closed
    time.sleep(0.2)
    assert group.write(view(tenant, "a")) == [Outcome(Result.ACCEPTED)]
    assert views_of(tenant) == 2


def rejected(tenant: str) -> dict[str, int]:
    with tenant_tx(tenant) as tx:
        return ingest.rejections(tx, since=utcnow())


def test_what_was_answered_is_committed(tenant: str) -> None:
    """P1: durable before the answer, with synchronous_commit on."""
    make_pages(tenant, "a")
    with owner_tx() as tx:
        assert tx.execute(text("SHOW synchronous_commit")).scalar_one() == "on"
    GroupCommit().write(view(tenant, "a"))
    with owner_tx() as tx:  # another connection sees it
        assert (
            tx.execute(text("SELECT sum(views) FROM page_views_hour WHERE tenant_id = :t"), {"t": tenant}).scalar_one()
            == 1
        )


HAMMER = """
import random, sys, threading, time
from analytics.ingest import Does, GroupCommit, Item, Part
from tenants import db
url, service_url, tenant, seed, seconds = sys.argv[1:]
db.configure(service_url=service_url or None, owner_url=url, pool_size=8)
group, end, sent = GroupCommit(), time.monotonic() + float(seconds), [0] * 4
def hammer(n):
    rng = random.Random(f"{seed}-{n}")
    while time.monotonic() < end:
        now = db.utcnow()
        items = [Item(Does.VIEW, f"p{rng.randrange(50)}", now) for _ in range(rng.randrange(1, 20))]
        for _ in range(3):
            does, page, user = rng.choice([Does.LIKE, Does.UNLIKE]), f"p{rng.randrange(50)}", f"u{rng.randrange(30)}"
            items.append(Item(does, page, now, user=user))
        rng.shuffle(items)
        group.write(Part(tenant, items, now))
        sent[n] += sum(item.does is Does.VIEW for item in items)
threads = [threading.Thread(target=hammer, args=(n,)) for n in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
print(sum(sent))
"""


def test_sixteen_writers_on_the_same_fifty_pages_never_deadlock_and_sum_up(tenant: str, settings: Settings) -> None:
    """Four processes of four threads each, in any order."""
    make_pages(tenant, *(f"p{number}" for number in range(50)))
    before = deadlocks()
    arguments = [settings.database_url or "", settings.service_database_url or "", tenant]
    seed = random.randrange(10**6)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", HAMMER, *arguments, f"{seed}-{n}", "10"], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for n in range(4)
    ]
    said = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, f"seed {seed}"
    assert views_of(tenant) == sum(int(text) for text in said), f"seed {seed}"
    for number in range(50):
        rows, counter = likes_of(tenant, f"p{number}")
        assert rows == counter
    assert deadlocks() == before


def deadlocks() -> int:
    time.sleep(1.2)  # the server's own statistics come a moment late
    with owner_tx() as tx:
        return int(
            tx.execute(text("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")).scalar_one()
        )
