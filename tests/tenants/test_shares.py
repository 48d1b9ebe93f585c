"""A tenant's share of a process: never more, a short wait, first come first served."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from tenants import shares
from tenants.shares import TenantBusy, TenantShare, share_of
from tests.service import eventually


def test_a_share_is_three_quarters_and_never_nothing() -> None:
    assert [share_of(total) for total in (64, 22, 4, 1)] == [48, 16, 3, 1]


def test_above_its_share_a_tenant_waits_briefly_and_is_refused_while_others_are_served() -> None:
    share = TenantShare(2, max_waiting=10)
    with share.of("b"), share.of("a"), share.of("a"):
        began = time.monotonic()
        with pytest.raises(TenantBusy) as refused:
            share.acquire("a")
        waited = time.monotonic() - began
        assert shares.WAIT_S <= waited < shares.WAIT_ALONE_S
        assert (refused.value.code, refused.value.retry_after_s) == ("tenant_busy", 1)
        began = time.monotonic()
        with share.of("b"):
            assert time.monotonic() - began < 1
    with share.of("a"), share.of("a"):
        pass  # what was given back is there again


def test_a_tenant_that_is_alone_waits_longer() -> None:
    share = TenantShare(1, max_waiting=1)
    share.acquire("a")
    threading.Timer(2 * shares.WAIT_S, share.release, ["a"]).start()
    with share.of("a"):
        pass


def is_waiting(share: TenantShare, number: int) -> bool:
    return len(share._queues.get("a", ())) == number


def test_who_waits_longest_is_next_and_no_more_wait_than_may() -> None:
    share, served = TenantShare(1, max_waiting=3), list[int]()

    def use(number: int) -> None:
        with share.of("a"):
            served.append(number)

    share.acquire("a")
    with ThreadPoolExecutor(3) as pool:
        waiting = []
        for number in range(3):
            waiting.append(pool.submit(use, number))
            eventually(partial(is_waiting, share, number + 1))
        began = time.monotonic()
        with pytest.raises(TenantBusy):
            share.acquire("a")
        assert time.monotonic() - began < shares.WAIT_ALONE_S, "where the queue is full nobody waits"
        share.release("a")
        for future in waiting:
            future.result(5)
    assert served == [0, 1, 2]
    assert (share._in_use, share._queues) == ({}, {}), "and nothing is remembered of tenants that left"


def test_forty_eight_at_once_of_one_tenant_are_never_refused() -> None:
    """Each in turn for a part of the threads and of the connections, a few milliseconds long. Nor are a hundred."""
    working = share_of(32)
    threads = TenantShare(working, max_waiting=share_of(160) - working)
    connections = TenantShare(share_of(17), max_waiting=10_000)

    def short(_number: int) -> None:
        with threads.of("a"), connections.of("a"):
            time.sleep(0.005)

    for at_once in (48, 100):
        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(short, range(at_once * 10)))
