"""What is open in all processes together stays below its limit, whatever happens to Redis or to a process."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from app.settings import Settings
from tenants import open_counts, redis
from tenants.open_counts import Group, OpenCounts
from tenants.redis_cluster import slot_of
from tests.conftest import redis_unavailable
from tests.redis_nodes import node_of_slot, running_nodes, url_of
from tests.service import eventually

ALL, OWN = ("acme", "all"), ("acme", "")


@pytest.fixture
def process(connected: None, tenant: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[], OpenCounts]:
    """Another process, listed, which beats when the test says so; counts of this test's own."""
    monkeypatch.setattr(OpenCounts, "_begin_beating", lambda _: None)

    def start() -> OpenCounts:
        counts = OpenCounts(f"test-{tenant}")
        counts.beat()
        return counts

    return start


def beat(*processes: OpenCounts) -> None:
    for process in processes:
        process.beat()


def test_a_limit_is_one_of_all_processes_together(process: Callable[[], OpenCounts]) -> None:
    a, b = process(), process()
    beat(a)
    limits: dict[Group, int] = {ALL: 10, OWN: 3}
    assert [one.open(limits) for one in (a, b, a)] == [None, None, None]
    assert [one.open(limits) for one in (a, b)] == [OWN, OWN]
    beat(a, b)
    assert b.open({ALL: 4, ("acme", "public"): 9}) is None, "what was refused is counted nowhere"
    assert b.open({ALL: 4, ("acme", "public"): 9}) == ALL
    a.close(limits)
    beat(a)
    assert b.open(limits) is None


def test_what_is_open_in_a_group_is_counted_in_all_processes(process: Callable[[], OpenCounts]) -> None:
    a, b = process(), process()
    beat(a)
    for one in (a, a, b):
        one.open({OWN: 9})
    assert (a.count(OWN), b.count(OWN), a.count(ALL)) == (3, 3, 0)
    with redis_unavailable():
        assert (a.count(OWN), b.count(OWN)) == (2, 1)
    beat(a, b)
    a.count(ALL)
    beat(a)
    with redis.boards().client() as client:
        assert client.hkeys(a._key(ALL)) == [], "nothing is left of a question"


def test_of_many_who_open_the_last_ones_at_once_only_so_many_do(process: Callable[[], OpenCounts]) -> None:
    processes = [process() for _ in range(4)]
    beat(*processes)
    with ThreadPoolExecutor(16) as pool:
        opened = list(pool.map(lambda number: processes[number % 4].open({OWN: 10}), range(80)))
    assert opened.count(None) <= 10
    beat(*processes)
    while processes[0].open({OWN: 10}) is None:
        opened.append(None)
    assert opened.count(None) == 10


def test_a_count_that_is_late_replaces_no_newer_one_of_its_process(
    process: Callable[[], OpenCounts], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = process(), process()
    beat(a)
    second_is_counted = threading.Event()
    with redis.boards().client() as client:
        send = client.eval

        def send_late(*arguments: Any) -> Any:
            monkeypatch.setattr(client, "eval", send)
            second_is_counted.wait(0.5)
            return send(*arguments)

        monkeypatch.setattr(client, "eval", send_late)
    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(a.open, {OWN: 2})
        eventually(lambda: client.eval == send)
        assert a.open({OWN: 2}) is None
        second_is_counted.set()
        assert first.result() is None
    assert b.open({OWN: 2}) == OWN


def test_what_a_killed_process_had_open_is_free_when_it_is_listed_no_more(
    process: Callable[[], OpenCounts], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = process(), process()
    assert (b.open({OWN: 1}), a.open({OWN: 1})) == (None, None), "a has not heard of b yet"
    b.close([OWN])
    beat(b, a)
    assert b.open({OWN: 1}) == OWN
    monkeypatch.setattr(open_counts, "_BEAT", open_counts._BEAT.replace("< now - 5", "< now + 5"))
    beat(b)
    assert b.open({OWN: 1}) is None


def test_without_redis_each_counts_alone_and_what_redis_lost_is_written_again(
    process: Callable[[], OpenCounts],
) -> None:
    a, b = process(), process()
    beat(a)
    assert a.open({OWN: 2}) is None
    with redis_unavailable():
        assert [b.open({OWN: 2}) for _ in range(3)] == [None, None, OWN]
    b.close([OWN])
    with redis.boards().client() as client:
        for key in client.scan_iter("lim:test-*"):
            client.delete(key)
    beat(a, b, a)
    assert a.open({OWN: 2}) == OWN


def test_what_was_closed_while_redis_was_away_is_neither_remembered_nor_counted(
    process: Callable[[], OpenCounts],
) -> None:
    a, b = process(), process()
    assert (b.open({OWN: 1}), b.open({ALL: 1})) == (None, None)
    beat(b, a)
    with redis_unavailable():
        b.close([OWN])
        for number in range(100):
            b.open({("acme", f"network {number}"): 1})
            b.close([("acme", f"network {number}")])
        beat(b)
        assert list(b._unwritten) == [ALL]
    beat(b, a)
    assert (a.open({OWN: 1}), a.open({ALL: 1})) == (None, ALL)


def test_counts_of_processes_that_are_gone_are_removed(process: Callable[[], OpenCounts]) -> None:
    a, _ = process(), process()
    now = int(time.time())
    with redis.boards().client() as client:
        client.hset(a._key(OWN), "gone", f"1:{now - 2 * open_counts.REWRITE_EVERY_S - 5}")
        client.hset(a._key(OWN), "here", f"1:{now - 60}")
        assert a.open({OWN: 9}) is None
        beat(a)
        assert set(client.hkeys(a._key(OWN))) == {b"here", a._id}


def test_a_node_that_is_away_costs_only_the_groups_on_it(
    process: Callable[[], OpenCounts], settings: Settings, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_counts, "MAX_UNWRITTEN", 2)
    with running_nodes() as nodes:
        redis.configure(boards_url=url_of(nodes), queue_url=settings.queue_redis_url or "")
        one = process()
        listed = node_of(f"lim:test-{tenant}")
        groups = [(tenant, str(number)) for number in range(100)]
        away = [group for group in groups if node_of(one._key(group)) != listed]
        away = [group for group in away if node_of(one._key(group)) == node_of(one._key(away[0]))]
        there = next(group for group in groups if node_of(one._key(group)) == listed)
        before = one._id
        with nodes[node_of(one._key(away[0]))].hung():
            one.open({there: 1, away[0]: 1})
            one.close([away[0]])
            beat(one)
            assert (one._id, list(one._unwritten)) == (before, [away[0]])
            for group in away[1:4]:
                one.open({group: 1})
                one.close([group])
            beat(one)
            assert (one._id != before, list(one._unwritten)) == (True, [there])


def node_of(key: str) -> int:
    return node_of_slot(slot_of(("GET", key)))


def test_processes_that_have_nothing_open_know_of_each_other(
    connected: None, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_counts, "BEAT_S", 0.05)
    name = f"test-{tenant}"
    first, second = OpenCounts(name), OpenCounts(name)
    assert first.open({OWN: 2}) is None
    assert (second.open({OWN: 2}), second.open({OWN: 2})) == (None, OWN)
    for each in (first, second):
        each.close([OWN])
    eventually(lambda: first._others and not first._unwritten and not second._unwritten)
    assert (first.open({OWN: 1}), second.open({OWN: 1})) == (None, OWN)
    first.close([OWN])
    eventually(lambda: not first._unwritten)
    eventually(lambda: second.open({OWN: 1}) is None)
    assert first.open({OWN: 1}) == OWN, "whoever is first after an idle moment"
    second.close([OWN])


def test_a_process_that_is_alone_asks_nobody(
    process: Callable[[], OpenCounts], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = process()
    monkeypatch.setattr(open_counts, "boards", None)
    assert [alone.open({OWN: 2}) for _ in range(3)] == [None, None, OWN]
