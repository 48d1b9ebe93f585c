"""On the thread of an event loop nothing waits: whatever would is refused before it begins."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tenants import ceilings, redis, users, waiting
from tenants.ceilings import Ceiling
from tenants.db import owner_tx, platform_tx, tenant_tx
from tenants.group_tx import run_in_one_trip
from tenants.platform_calls import PlatformCalls
from tenants.waiting import WouldWait


@pytest.fixture
def loop_thread() -> Iterator[ThreadPoolExecutor]:
    """One thread in which nothing may wait."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(waiting.forbid_in_this_thread).result()
        yield threads
        threads.submit(waiting.allow_in_this_thread).result()


def enter(transaction: Any) -> None:
    with transaction:
        pass


WAITS: list[Callable[[str], Any]] = [
    lambda tenant: enter(tenant_tx(tenant)),
    lambda _: enter(platform_tx()),
    lambda _: enter(owner_tx()),
    lambda tenant: run_in_one_trip([(tenant, "SELECT 1", ())], shared=True),
    lambda _: PlatformCalls(max_connections=1).run("SELECT 1"),
    lambda _: redis.boards().read(("EXISTS", "a")),
    lambda _: redis.queue().is_up(),
    lambda tenant: ceilings.room(tenant, Ceiling.USERS, users.count),
]


@pytest.mark.parametrize("wait", WAITS)
def test_what_would_wait_is_refused_there_and_nowhere_else(
    tenant: str, loop_thread: ThreadPoolExecutor, wait: Callable[[str], Any]
) -> None:
    with pytest.raises(WouldWait):
        loop_thread.submit(wait, tenant).result()
    wait(tenant)


def test_a_count_that_is_refused_there_is_done_by_the_next_caller(
    tenant: str, loop_thread: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ceilings, "_counts", {})
    before = ceilings.room(tenant, Ceiling.USERS, users.count)
    (counted,) = ceilings._counts.values()
    counted.until, counted.number = 0.0, 99
    with pytest.raises(WouldWait):
        loop_thread.submit(ceilings.room, tenant, Ceiling.USERS, users.count).result()
    assert ceilings.room(tenant, Ceiling.USERS, users.count) == before, "it was counted again"
