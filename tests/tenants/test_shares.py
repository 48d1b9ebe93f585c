"""A tenant's share of a process, and a caller's part of it: never more, a short wait, fair turns."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pytest

from tenants import shares
from tenants.shares import Refusals, TenantBusy, TenantShare, half_of, share_of
from tests.service import eventually


def test_a_share_is_three_quarters_and_never_nothing() -> None:
    assert [share_of(total) for total in (64, 22, 4, 1)] == [48, 16, 3, 1]


def test_above_its_share_a_tenant_waits_briefly_and_is_refused_while_others_are_served() -> None:
    share = TenantShare(2, max_waiting=10)
    with share.of("b", "x"), share.of("a", "x"), share.of("a", "x"):
        began = time.monotonic()
        with pytest.raises(TenantBusy) as refused:
            share.acquire("a", "x")
        waited = time.monotonic() - began
        assert shares.WAIT_S <= waited < shares.WAIT_ALONE_S
        assert (refused.value.code, refused.value.retry_after_s) == ("tenant_busy", 1)
        began = time.monotonic()
        with share.of("b", "x"):
            assert time.monotonic() - began < 1
    with share.of("a", "x"), share.of("a", "x"):
        pass  # what was given back is there again


def test_a_tenant_that_is_alone_waits_longer() -> None:
    share = TenantShare(1, max_waiting=1)
    share.acquire("a", "x")
    threading.Timer(2 * shares.WAIT_S, share.release, ["a", "x"]).start()
    with share.of("a", "x"):
        pass


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(20) as made:
        yield made


def is_waiting(share: TenantShare, number: int) -> bool:
    tenant = share._tenants.get("a")
    return tenant is not None and tenant.waiting == number


def test_who_waits_longest_is_next_and_no_more_wait_than_may() -> None:
    share, served = TenantShare(1, max_waiting=3), list[int]()

    def use(number: int) -> None:
        with share.of("a", "x"):
            served.append(number)

    share.acquire("a", "x")
    with ThreadPoolExecutor(3) as pool:
        waiting = []
        for number in range(3):
            waiting.append(pool.submit(use, number))
            eventually(partial(is_waiting, share, number + 1))
        began = time.monotonic()
        with pytest.raises(TenantBusy):
            share.acquire("a", "x")
        assert time.monotonic() - began < shares.WAIT_ALONE_S, "where the queue is full nobody waits"
        share.release("a", "x")
        for future in waiting:
            future.result(5)
    assert served == [0, 1, 2]
    assert share._tenants == {}, "and nothing is remembered of tenants that left"


def test_forty_eight_at_once_of_one_tenant_are_never_refused() -> None:
    """Each in turn for a part of the threads and of the connections, a few milliseconds long. Nor are a hundred."""
    working = share_of(32)
    threads = TenantShare(working, max_waiting=share_of(160) - working)
    connections = TenantShare(share_of(17), max_waiting=10_000)

    def short(_number: int) -> None:
        with threads.of("a", "x"), connections.of("a", "x"):
            time.sleep(0.005)

    for at_once in (48, 100):
        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(short, range(at_once * 10)))


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody gives up while a test looks on."""
    monkeypatch.setattr(shares, "WAIT_S", 60.0)


class Clock:
    """The time that shares read, in seconds."""

    now = 1_000.0

    def monotonic(self) -> float:
        return self.now


class Waiting:
    """Requests that wait for a unit of the tenant `a`, in the order in which they began to wait."""

    def __init__(self, share: TenantShare, pool: ThreadPoolExecutor) -> None:
        self._share, self._pool = share, pool
        # Whose request got a unit, in this order.
        self.served: list[str] = []

    def add(self, caller: str) -> "Future[None]":
        queues = self._share._tenants["a"].queues
        before = len(queues.get(caller, ()))
        request = self._pool.submit(self._wait, caller)
        eventually(lambda: len(queues.get(caller, ())) > before)
        return request

    def _wait(self, caller: str) -> None:
        self._share.acquire("a", caller)
        self.served.append(caller)

    def release_of(self, caller: str) -> str:
        """Whose request gets the unit that this caller gives back."""
        before = len(self.served)
        self._share.release("a", caller)
        eventually(lambda: len(self.served) > before)
        return self.served[-1]


@pytest.mark.usefixtures("_patient")
def test_one_callers_queue_delays_another_caller_by_one_turn(pool: ThreadPoolExecutor) -> None:
    share = TenantShare(4, max_waiting=100)
    for _ in range(4):
        share.acquire("a", "flood")
    waiting = Waiting(share, pool)
    for caller in ("flood", "flood", "flood", "bob", "bob", "bob", "eve"):
        waiting.add(caller)
    turns = [waiting.release_of(caller) for caller in ("flood", "flood", "bob", "bob")]
    assert turns == ["bob", "eve", "bob", "bob"], "the fewest units, and of equals the one that waits longest"
    assert waiting.release_of("eve") == "flood", "once nobody else waits"
    for caller in ("flood", "flood"):
        waiting.release_of(caller)
    for caller in ("flood", "flood", "flood", "bob"):
        share.release("a", caller)
    assert share._tenants == {}


def test_a_tenant_with_a_single_caller_keeps_all_of_its_share() -> None:
    share = TenantShare(8, max_waiting=0)
    for _ in range(3):
        assert [share.try_acquire("a", "app") for _ in range(9)] == [True] * 8 + [False]
        with pytest.raises(TenantBusy):
            share.acquire("a", "app")
        assert share.try_acquire("b", "other"), "another tenant's caller is no caller of this one"
        share.release("b", "other")
        for _ in range(8):
            share.release("a", "app")


def test_while_another_caller_was_refused_lately_a_caller_has_half(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(shares, "time", clock)
    share = TenantShare(8, max_waiting=0)
    assert all(share.try_acquire("a", "flood") for _ in range(8))
    assert not share.try_acquire("a", "bob")
    for _ in range(2):
        share.release("a", "flood")
    assert not share.try_acquire("a", "flood"), "it has six of eight"
    assert [share.try_acquire("a", "bob") for _ in range(3)] == [True, True, False]
    for _ in range(3):
        share.release("a", "flood")
    assert [share.try_acquire("a", "flood") for _ in range(2)] == [True, False]
    assert share.try_acquire("a", "bob")
    clock.now += shares.ALONE_AFTER_S + 0.1
    assert share.try_acquire("a", "flood"), "nobody else has asked for a while"


def test_half_is_rounded_so_that_two_callers_can_use_all() -> None:
    assert [half_of(share) for share in (1, 2, 3, 24)] == [1, 1, 2, 12]


def test_only_refusals_of_others_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(shares, "time", clock)
    refusals = Refusals(for_s=1.0)
    assert not refusals.are_of_others("ada")
    refusals.note("ada")
    assert (refusals.are_of_others("ada"), refusals.are_of_others("bob")) == (False, True)
    for _ in range(3):
        refusals.note("bob")
    assert (refusals.are_of_others("ada"), refusals.are_of_others("bob")) == (True, True)
    clock.now += 1.1
    refusals.note("bob")
    assert (refusals.are_of_others("ada"), refusals.are_of_others("bob")) == (True, False)


@pytest.mark.usefixtures("_patient")
def test_who_waits_while_free_units_are_anothers_half_gets_one_when_that_is_over(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares, "WAIT_S", 0.05)
    monkeypatch.setattr(shares, "WAIT_ALONE_S", 60.0)
    monkeypatch.setattr(shares, "ALONE_AFTER_S", 0.5)
    share = TenantShare(2, max_waiting=5)
    share.acquire("a", "flood")
    with share.of("a", "bob"):
        assert not share.try_acquire("a", "bob")
    waiting = Waiting(share, pool)
    waiting.add("flood").result(30)
    assert share._tenants["a"].in_use == {"flood": 2}


@pytest.mark.usefixtures("_patient")
def test_where_there_is_one_unit_callers_take_turns(pool: ThreadPoolExecutor) -> None:
    share = TenantShare(1, max_waiting=100)
    share.acquire("a", "ada")
    waiting = Waiting(share, pool)
    for caller in ("ada", "ada", "ada", "bob", "bob", "eve"):
        waiting.add(caller)
    holder, turns = "ada", list[str]()
    for _ in range(6):
        turns.append(holder := waiting.release_of(holder))
    assert turns == ["ada", "bob", "eve", "ada", "bob", "ada"]
    share.release("a", holder)


@pytest.mark.usefixtures("_patient")
def test_a_full_queue_has_room_for_a_caller_with_fewer_waiting(pool: ThreadPoolExecutor) -> None:
    share = TenantShare(1, max_waiting=3)
    share.acquire("a", "flood")
    waiting = Waiting(share, pool)
    flood = [waiting.add("flood") for _ in range(3)]
    with pytest.raises(TenantBusy):
        share.acquire("a", "flood")
    waiting.add("bob")
    with pytest.raises(TenantBusy):
        flood[2].result(30)
    assert not any(request.done() for request in flood[:2]), "the newest makes room"
    with pytest.raises(TenantBusy):
        share.acquire("a", "bob")  # then both had two: they would only replace each other
    assert [waiting.release_of(caller) for caller in ("flood", "flood", "bob")] == ["flood", "bob", "flood"]
    share.release("a", "flood")
    assert share._tenants == {}


@pytest.mark.usefixtures("_patient")
def test_what_is_held_for_long_a_caller_never_has_more_than_half_of(pool: ThreadPoolExecutor) -> None:
    share = TenantShare(4, max_waiting=5, keeps_half=True)
    assert [share.try_acquire("a", "flood") for _ in range(3)] == [True, True, False]
    waiting = Waiting(share, pool)
    waiting.add("flood")
    assert share.try_acquire("a", "bob"), "at once, whoever else waits"
    share.release("a", "bob")
    assert waiting.served == [], "what bob gives back is not for the flood"
    assert waiting.release_of("flood") == "flood"


def test_callers_at_once_get_no_more_than_there_is_and_all_of_it_is_given_back() -> None:
    share, most, lock, now = TenantShare(3, max_waiting=100), [0], threading.Lock(), [0]

    def use(number: int) -> None:
        with share.of("a", f"user:{number % 7}"):
            with lock:
                now[0] += 1
                most[0] = max(most[0], now[0])
            time.sleep(0.001)
            with lock:
                now[0] -= 1

    with ThreadPoolExecutor(30) as many:
        list(many.map(use, range(600)))
    assert most == [3]
    assert share._tenants == {}
