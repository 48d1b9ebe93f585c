"""The group commit: shared commits, own failures, bounds, and no deadlock."""

import contextlib
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from psycopg.errors import LockNotAvailable
from sqlalchemy import text
from sqlalchemy.exc import DataError, DBAPIError, OperationalError

from analytics.boards import checking, projection
from analytics.ingest import page_writes, rejections
from analytics.ingest.group_commit import GroupCommit, Overloaded
from analytics.ingest.reasons import Result
from analytics.ingest.writes import EventKind, Item, Outcome, WriteRequest, commit_together
from analytics.locks import Busy
from analytics.windows import hour_of
from app.settings import Settings
from tenants import credentials
from tenants.credentials import ClientToken
from tenants.db import LOCK_TIMEOUT_MS, SHARED_LOCK_TIMEOUT_MS, owner_tx, tenant_tx, utcnow
from tenants.shares import TenantBusy
from tenants.signing import BadToken
from tests.analytics.conftest import likes_of, views_of
from tests.service import ROOT, eventually


def make_pages(tenant: str, *external_ids: str) -> None:
    with tenant_tx(tenant) as tx:
        for external_id in external_ids:
            page_writes.put(tx, external_id, space="s", title="t", url=f"/{external_id}", now=utcnow())


def view(tenant: str, page: str) -> WriteRequest:
    now = utcnow()
    return WriteRequest(tenant, [Item(EventKind.VIEW, page, now)], now)


def like(tenant: str, page: str, user: str) -> WriteRequest:
    """Unlike a view, it waits for the page's counter."""
    now = utcnow()
    return WriteRequest(tenant, [Item(EventKind.LIKE, page, now, user=user)], now, room=100)


@pytest.fixture
def commits() -> list[int]:
    """How many parts each transaction had."""
    return []


@pytest.fixture
def group(commits: list[int]) -> GroupCommit:
    """A group commit that is slow enough for others to come meanwhile."""

    def counting(parts: Sequence[WriteRequest], shared: bool) -> list[WriteRequest]:
        commits.append(len(parts))
        time.sleep(0.02)
        return commit_together(parts, shared)

    return GroupCommit(commit=counting)


class Gate:
    """Commits nothing before it is opened."""

    def __init__(self) -> None:
        self._opened = threading.Event()
        self.open = self._opened.set

    def commit(self, parts: Sequence[WriteRequest], shared: bool) -> list[WriteRequest]:
        assert self._opened.wait(10)
        return commit_together(parts, shared)


def test_requests_in_flight_share_commits_across_tenants(
    tenant: str, other_tenant: str, group: GroupCommit, commits: list[int]
) -> None:
    make_pages(tenant, "a", "b")
    make_pages(other_tenant, "a")
    parts = [view(*where) for where in [(tenant, "a"), (other_tenant, "a"), (tenant, "b")] * 20]
    with ThreadPoolExecutor(60) as pool:
        outcomes = list(pool.map(group.write, parts))
    assert all(outcome == [Outcome(Result.ACCEPTED)] for outcome in outcomes)
    assert len(commits) < 30
    assert sum(commits) == 60
    assert (views_of(tenant, "a"), views_of(tenant, "b"), views_of(other_tenant)) == (20, 20, 20)


def test_a_part_that_fails_fails_its_own_callers_only(tenant: str, other_tenant: str, group: GroupCommit) -> None:
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


def test_when_too_much_waits_the_next_is_refused_at_once(tenant: str, other_tenant: str) -> None:
    make_pages(tenant, "a")
    make_pages(other_tenant, "a")
    gate = Gate()
    group = GroupCommit(max_items=4, commit=gate.commit)
    with ThreadPoolExecutor(8) as pool:
        running = [pool.submit(group.write, view(tenant, "a")) for _ in range(3)]
        eventually(lambda: group.items_in_flight == 3)
        with pytest.raises(TenantBusy):  # three quarters are its share
            group.write(view(tenant, "a"))
        running.append(pool.submit(group.write, view(other_tenant, "a")))
        eventually(lambda: group.items_in_flight == 4)
        with pytest.raises(Overloaded):
            group.write(view(other_tenant, "a"))
        gate.open()
        assert all(future.result() for future in running)
    assert (views_of(tenant), views_of(other_tenant), group.items_in_flight) == (3, 1, 0)
    assert group.write(view(tenant, "a")), "and afterwards it takes more"


def test_who_waits_too_long_leaves_and_the_lead_is_not_lost(tenant: str) -> None:
    make_pages(tenant, "a")
    gate = Gate()
    group = GroupCommit(wait_s=0.2, commit=gate.commit)
    with ThreadPoolExecutor(4) as pool:
        leader = pool.submit(group.write, view(tenant, "a"))
        eventually(lambda: group.items_in_flight == 1)
        with pytest.raises(Overloaded):
            group.write(view(tenant, "a"))
        gate.open()
        assert leader.result()
    assert views_of(tenant) == 1
    assert group.write(view(tenant, "a"))


def test_a_tenant_fills_no_more_than_its_share_of_a_commit(tenant: str, other_tenant: str) -> None:
    make_pages(tenant, "a")
    make_pages(other_tenant, "a")
    gate, commits = Gate(), []

    def commit(parts: Sequence[WriteRequest], shared: bool) -> list[WriteRequest]:
        left = gate.commit(parts, shared)
        commits.append(Counter(part.tenant_id for part in parts for _ in part.items))
        return left

    group, now = GroupCommit(commit=commit), utcnow()
    thousand = [Item(EventKind.VIEW, "a", now)] * 1000
    with ThreadPoolExecutor(16) as pool:
        running = [pool.submit(group.write, view(tenant, "a"))]
        eventually(lambda: group.items_in_flight == 1)
        running += [pool.submit(group.write, WriteRequest(tenant, thousand, now)) for _ in range(12)]
        eventually(lambda: group.items_in_flight == 12_001)
        running.append(pool.submit(group.write, view(other_tenant, "a")))
        eventually(lambda: group.items_in_flight == 12_002)
        gate.open()
        assert all(future.result(30) for future in running)
    assert commits[1] == {tenant: 7_000, other_tenant: 1}, "the latecomer's view is in the very next commit"


def test_a_locked_row_delays_its_own_tenant_and_nobody_else(tenant: str, other_tenant: str) -> None:
    make_pages(tenant, "locked", "free")
    make_pages(other_tenant, "a")
    group = GroupCommit()
    slowest = 0.0
    with ThreadPoolExecutor(8) as pool, tenant_tx(tenant, separate=True) as holding:
        holding.execute(text("SELECT FROM page_counters WHERE tenant_id = :t FOR UPDATE"), {"t": holding.tenant})
        stuck = [pool.submit(group.write, like(tenant, page, "ada")) for page in ("locked", "free")]
        time.sleep(0.05)
        for place in range(40):
            began = time.monotonic()
            assert group.write(view(other_tenant, "a")) == [Outcome(Result.ACCEPTED)]
            if place:  # the first one finds the shared transaction waiting
                slowest = max(slowest, time.monotonic() - began)
            if place == 20:  # more of the slow tenant's does not bring the wait back
                stuck.append(pool.submit(group.write, like(tenant, "locked", "bob")))
        assert not any(future.done() for future in stuck)
        assert slowest < SHARED_LOCK_TIMEOUT_MS / 1000
        holding.rollback()
        assert [future.result(10) for future in stuck] == [[Outcome(Result.ACCEPTED, likes)] for likes in (1, 1, 2)]
    assert (likes_of(tenant, "locked"), views_of(other_tenant)) == ((2, 2), 40)


@pytest.mark.long
def test_a_row_that_stays_locked_fails_its_own_requests_once_and_together(tenant: str, other_tenant: str) -> None:
    make_pages(tenant, "locked")
    make_pages(other_tenant, "a")
    tries: list[tuple[int, bool]] = []

    def commit(parts: Sequence[WriteRequest], shared: bool) -> list[WriteRequest]:
        tries.append((len(parts), shared))
        return commit_together(parts, shared)

    group = GroupCommit(commit=commit)
    with ThreadPoolExecutor(8) as pool, tenant_tx(tenant, separate=True) as holding:
        holding.execute(text("SELECT FROM page_counters WHERE tenant_id = :t FOR UPDATE"), {"t": holding.tenant})
        began = time.monotonic()
        stuck = [pool.submit(group.write, like(tenant, "locked", "ada")) for _ in range(5)]
        for future in stuck:
            with pytest.raises(OperationalError):
                future.result(30)
        assert time.monotonic() - began < 2.5 * LOCK_TIMEOUT_MS / 1000, "not one wait for each"
        assert len([is_shared for _, is_shared in tries if not is_shared]) <= 2
        tries.clear()
        next_one = pool.submit(group.write, like(tenant, "locked", "ada"))
        eventually(lambda: tries)
        assert tries == [(1, False)], "the tenant stays apart: nobody waits with it again"
        holding.rollback()
        assert next_one.result(10) == [Outcome(Result.ACCEPTED, 1)], "and when the row is free it is written"
    assert likes_of(tenant, "locked") == (1, 1)


def test_a_neighbours_dead_token_and_locked_row_count_nothing_twice(tenant: str, other_tenant: str) -> None:
    """What a shared transaction has committed is settled, whatever becomes of what it could not write."""
    make_pages(tenant, "a")
    make_pages(other_tenant, "a")
    with tenant_tx(other_tenant) as tx:
        clients = [credentials.create_client(tx, name="c", scopes=["admin"], now=utcnow()).client.id for _ in range(2)]
        credentials.revoke_client(tx, clients[0], now=utcnow())
    dead, good = (
        WriteRequest(
            other_tenant,
            [Item(EventKind.LIKE, "a", utcnow(), user="ada")],
            utcnow(),
            token=ClientToken(client, client),
            room=100,
        )
        for client in clients
    )
    gate = Gate()
    group = GroupCommit(commit=gate.commit)
    with ThreadPoolExecutor(8) as pool, tenant_tx(other_tenant, separate=True) as holding:
        holding.execute(text("SELECT FROM page_counters WHERE tenant_id = :t FOR UPDATE"), {"t": holding.tenant})
        first = pool.submit(group.write, view(tenant, "a"))
        eventually(lambda: group.items_in_flight == 1)
        together = [pool.submit(group.write, part) for part in (view(tenant, "a"), dead, good)]
        eventually(lambda: group.items_in_flight == 4)
        gate.open()
        assert [first.result(10), together[0].result(10)] == [[Outcome(Result.ACCEPTED)]] * 2
        with pytest.raises(BadToken):
            together[1].result(10)
        time.sleep(2 * SHARED_LOCK_TIMEOUT_MS / 1000)
        holding.rollback()
        assert together[2].result(10) == [Outcome(Result.ACCEPTED, 1)]
    assert (views_of(tenant), likes_of(other_tenant, "a")) == (2, (1, 1))


def test_nobody_is_forgotten_or_woken_twice_whatever_fails_and_however_threads_take_turns() -> None:
    """Nearly a third of the shared transactions fail; threads are switched a thousand times as often as usual."""
    written: Counter[str] = Counter()
    rng, lock = random.Random(11), threading.Lock()

    def commit(parts: Sequence[WriteRequest], shared: bool) -> list[WriteRequest]:
        with lock:
            fails, leaves = shared and rng.random() < 0.3, rng.random() < 0.1
        if fails:
            raise OperationalError("commit", {}, LockNotAvailable())
        left = list(parts[1:]) if leaves else []
        with lock:
            written.update(part.tenant_id for part in parts if part not in left)
        return left

    group, end, sent = GroupCommit(commit=commit), time.monotonic() + 3, Counter[str]()

    def keep_writing(number: int) -> None:
        tenant_id = f"t{number % 6}"
        while time.monotonic() < end:
            group.write(WriteRequest(tenant_id, [Item(EventKind.VIEW, "a", utcnow())], utcnow()))
            with lock:
                sent[tenant_id] += 1

    usual = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    try:
        with ThreadPoolExecutor(48) as pool:
            for future in [pool.submit(keep_writing, number) for number in range(48)]:
                future.result(30)
    finally:
        sys.setswitchinterval(usual)
    assert sent == written
    assert (group.items_in_flight, group._shared.is_led, len(group._shared.waiting)) == (0, False, 0)
    assert not any(lane.is_led or lane.waiting for lane in group._apart.values())


def test_a_page_deleted_meanwhile_is_unknown(tenant: str) -> None:
    make_pages(tenant, "a", "b")
    with tenant_tx(tenant) as tx:
        page_writes.delete(tx, "a")
    group = GroupCommit()
    assert group.write(view(tenant, "a")) == [Outcome(Result.UNKNOWN_PAGE)]
    assert group.write(view(tenant, "b")) == [Outcome(Result.ACCEPTED)]


def test_a_like_that_waits_for_a_deletion_finds_the_page_gone(tenant: str) -> None:
    make_pages(tenant, "a", "b")
    now = utcnow()
    both = WriteRequest(
        tenant, [Item(EventKind.LIKE, "a", now, user="ada"), Item(EventKind.VIEW, "b", now)], now, room=1
    )
    with ThreadPoolExecutor(1) as pool:
        with tenant_tx(tenant, separate=True) as tx:
            page_writes.delete(tx, "a")
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
        return rejections.by_reason(tx, since=utcnow())


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
import random, sys, threading
from uuid import UUID
from analytics.ingest.group_commit import GroupCommit
from analytics.ingest.reasons import Result
from analytics.ingest.visitors import Visit
from analytics.ingest.writes import EventKind, Item, WriteRequest
from tenants import db
url, service_url, tenant, seed, times = sys.argv[1:]
db.configure(service_url=service_url or None, owner_url=url, pool_size=8)
group, sent = GroupCommit(), [0] * 4
def visit(rng):
    visitor = rng.randrange(40)
    if visitor < 25:
        return Visit(UUID(int=visitor), UUID(int=visitor % 4), True)
    return Visit(UUID(int=visitor), None, rng.random() < 0.5) if visitor < 35 else None
def hammer(n):
    rng = random.Random(f"{seed}-{n}")
    for _ in range(int(times)):
        now = db.utcnow()
        viewed = [f"p{rng.randrange(50)}" for _ in range(rng.randrange(1, 20))]
        items = [Item(EventKind.VIEW, page, now, visit=visit(rng)) for page in viewed]
        for _ in range(3):
            kind = rng.choice([EventKind.LIKE, EventKind.UNLIKE])
            items.append(Item(kind, f"p{rng.randrange(50)}", now, user=f"u{rng.randrange(30)}"))
        rng.shuffle(items)
        outcomes = group.write(WriteRequest(tenant, items, now))
        accepted = [item.kind for item, outcome in zip(items, outcomes) if outcome.result is Result.ACCEPTED]
        sent[n] += accepted.count(EventKind.VIEW)
threads = [threading.Thread(target=hammer, args=(n,)) for n in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
print(sum(sent))
"""


@pytest.mark.processes
def test_sixteen_writers_on_the_same_fifty_pages_never_deadlock_and_sum_up(tenant: str, settings: Settings) -> None:
    """Four processes of four threads each, in any order: views, some of them of the same visitors, and likes; beside a
    projection that counts what waits."""
    make_pages(tenant, *(f"p{number}" for number in range(50)))
    before = deadlocks()
    arguments = [settings.database_url or "", settings.service_database_url or "", tenant]
    seed = random.randrange(10**6)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", HAMMER, *arguments, f"{seed}-{n}", "20"], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for n in range(4)
    ]
    while any(process.poll() is None for process in processes):
        with contextlib.suppress(Busy):
            projection.project_all(tenant, now=utcnow)
    said = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, f"seed {seed}"
    assert views_of(tenant) == sum(int(text) for text in said), f"seed {seed}"
    for number in range(50):
        rows, counter = likes_of(tenant, f"p{number}")
        assert rows == counter
    assert deadlocks() == before
    projection.project_all(tenant, now=utcnow)
    assert views_of(tenant) == sum(int(text) for text in said), "also when all that waited is counted"
    with tenant_tx(tenant) as tx:
        counted, rows = tx.execute(
            text("SELECT (SELECT sum(visitors) FROM page_counters), (SELECT count(*) FROM page_visitors)")
        ).one()
    assert counted == rows > 0
    assert checking.check(tenant, now=utcnow()).differences == []


def deadlocks() -> int:
    time.sleep(1.2)  # the server's own statistics come a moment late
    with owner_tx() as tx:
        return int(
            tx.execute(text("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")).scalar_one()
        )


def test_an_error_of_what_follows_a_commit_does_not_lose_the_lead(tenant: str) -> None:
    make_pages(tenant, "a")

    def fail(_tenants: object) -> None:
        raise ZeroDivisionError

    group = GroupCommit(after=fail)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(group.write, [view(tenant, "a") for _ in range(40)]))
    assert views_of(tenant) == 40
