"""What is open in all processes together stays below its limit, whatever happens to Redis or to a process."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tenants import open_counts, redis
from tenants.open_counts import Group, OpenCounts
from tests.conftest import redis_unavailable
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


def test_a_process_beats_while_it_has_any_open(connected: None, tenant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_counts, "BEAT_S", 0.05)
    name = f"test-{tenant}"
    first, second = OpenCounts(name), OpenCounts(name)
    assert first.open({OWN: 2}) is None
    assert (second.open({OWN: 2}), second.open({OWN: 2})) == (None, OWN)
    for each in (first, second):
        each.close([OWN])
    eventually(lambda: not any(thread.name == f"open-{name}" for thread in threading.enumerate()))
    assert first.open({OWN: 1}) is None
    first.close([OWN])


def test_a_process_that_is_alone_asks_nobody(
    process: Callable[[], OpenCounts], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = process()
    monkeypatch.setattr(open_counts, "boards", None)
    assert [alone.open({OWN: 2}) for _ in range(3)] == [None, None, OWN]
