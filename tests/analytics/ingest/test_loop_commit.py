"""The group commit of an event loop: shared commits, own failures, bounds; what is unusual is left to threads."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from analytics.ingest import loop_commit
from analytics.ingest.group_commit import Overloaded
from analytics.ingest.loop_commit import LoopCommit
from analytics.ingest.loop_writes import commit_on_loop
from analytics.ingest.reasons import Result
from analytics.ingest.writes import Unwritable, WriteRequest
from tenants.credentials import ClientToken
from tenants.db import SHARED_LOCK_TIMEOUT_MS, owner_tx, tenant_tx
from tenants.loop_connection import LoopConnection
from tenants.signing import BadToken
from tests.analytics.conftest import likes_of, somebody_else_writes, views_of
from tests.analytics.ingest.test_group_commit import like, make_pages, view
from tests.citus import not_on_citus
from tests.loops import run

Make = Callable[..., LoopCommit]


@pytest.fixture
def commits() -> list[int]:
    """How many requests each transaction had."""
    return []


@pytest.fixture
def make(commits: list[int]) -> Make:
    """Makes a group commit of the running loop."""

    def make(commit: Any = None, **options: Any) -> LoopCommit:
        loop = asyncio.get_running_loop()
        connection = LoopConnection(loop)

        async def counting(requests: Sequence[WriteRequest]) -> list[WriteRequest]:
            commits.append(len(requests))
            return await (commit(requests, connection) if commit is not None else commit_on_loop(requests, connection))

        return LoopCommit(loop, counting, **{"max_requests": 256, **options})

    return make


def submit(group: LoopCommit, request: WriteRequest) -> "asyncio.Future[bool]":
    decided: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    group.submit(request, decided.set_result)
    return decided


async def written(group: LoopCommit, *requests: WriteRequest) -> list[bool]:
    return await asyncio.gather(*(submit(group, request) for request in requests))


def test_requests_in_flight_share_commits_across_tenants(
    tenant: str, other_tenant: str, make: Make, commits: list[int]
) -> None:
    for tenant_id in (tenant, other_tenant):
        make_pages(tenant_id, "a")
    followed: list[str] = []

    async def test() -> None:
        group = make(after=followed.extend)
        requests = [view(tenant_id, "a") for tenant_id in (tenant, other_tenant) * 15]
        assert await written(group, *requests) == [True] * 30
        assert [request.outcomes[0].result for request in requests] == [Result.ACCEPTED] * 30
        assert await written(group, view(tenant, "nowhere")) == [True]

    run(test())
    assert (views_of(tenant), views_of(other_tenant)) == (15, 15)
    assert commits == [1, 29, 1], "the first comes alone, and the others meet while it is committed"
    assert {*followed} == {tenant, other_tenant}


def test_no_commit_has_more_than_its_bound_and_no_tenant_more_than_its_share_of_it(
    tenant: str, other_tenant: str, make: Make, commits: list[int]
) -> None:
    for tenant_id in (tenant, other_tenant):
        make_pages(tenant_id, "a")

    async def test() -> None:
        group = make(max_requests=4)
        first = submit(group, view(tenant, "a"))
        others = [submit(group, view(tenant, "a")) for _ in range(9)]
        quick = submit(group, view(other_tenant, "a"))
        await first
        await quick
        assert sum(other.done() for other in others) == 3, "it was in the next commit, beside three quarters"
        assert all(await asyncio.gather(*others))

    run(test())
    assert (views_of(tenant), views_of(other_tenant)) == (10, 1)
    assert commits == [1, 4, 3, 3]


def test_a_lone_caller_is_not_kept_waiting_for_others(tenant: str, make: Make) -> None:
    make_pages(tenant, "a")

    async def test() -> None:
        group = make()
        for _ in range(3):
            decided = submit(group, view(tenant, "a"))
            assert group._gathering is None
            assert await decided
        await written(group, *(view(tenant, "a") for _ in range(8)))
        decided = submit(group, view(tenant, "a"))
        assert group._gathering is not None, "there were eight a moment ago"
        assert await decided, "and it is committed without them"

    run(test())


def test_where_a_token_is_revoked_its_request_is_refused_and_the_others_are_left_to_threads(
    tenant: str, other_tenant: str, make: Make
) -> None:
    for tenant_id in (tenant, other_tenant):
        make_pages(tenant_id, "a")
    bad = view(tenant, "a")
    bad.token = ClientToken("nobody", "nothing")

    async def test() -> None:
        group = make()
        first = submit(group, view(other_tenant, "a"))  # so that the next ones share a commit
        assert await written(group, bad, view(tenant, "a"), view(other_tenant, "a")) == [True, False, True]
        assert await first
        assert await written(group, view(tenant, "a"), bad, view(tenant, "a")) == [False, True, False], (
            "only one tenant"
        )

    run(test())
    assert isinstance(bad.error, BadToken)
    assert (views_of(tenant), views_of(other_tenant)) == (0, 2)


def test_what_a_bug_raises_is_the_error_of_every_caller_and_nothing_is_written_again(tenant: str, make: Make) -> None:
    make_pages(tenant, "a")

    async def fail_after_the_commit(requests: Sequence[WriteRequest], connection: LoopConnection) -> list[WriteRequest]:
        await commit_on_loop(requests, connection)
        raise ZeroDivisionError

    async def test() -> None:
        group = make(fail_after_the_commit)
        requests = [view(tenant, "a") for _ in range(3)]
        assert await written(group, *requests) == [True] * 3
        assert {type(request.error) for request in requests} == {ZeroDivisionError}

    run(test())
    assert views_of(tenant) == 3


def test_who_waits_too_long_is_refused_while_the_database_does_not_answer(tenant: str, make: Make) -> None:
    make_pages(tenant, "a")
    late, last = view(tenant, "a"), view(tenant, "a")

    async def test() -> None:
        gate = asyncio.Event()

        async def hang(requests: Sequence[WriteRequest], connection: LoopConnection) -> list[WriteRequest]:
            await gate.wait()
            return await commit_on_loop(requests, connection)

        group = make(hang, wait_s=0.1)
        first = submit(group, view(tenant, "a"))
        assert await submit(group, late), "refused"
        assert not first.done(), "it may be committed: only the database knows"
        gate.set()
        assert await first
        assert await submit(group, last), "the next commit begins"

    run(test())
    assert (type(late.error), last.error, views_of(tenant)) == (Overloaded, None, 2)


def test_when_too_many_wait_the_next_is_left_to_a_thread(
    tenant: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_pages(tenant, "a")
    monkeypatch.setattr(loop_commit, "MAX_WAITING", 2)

    async def test() -> None:
        decided = await written(make(), *(view(tenant, "a") for _ in range(5)))
        assert decided == [True, True, True, False, False]

    run(test())
    assert views_of(tenant) == 3


def test_a_tenants_locked_rows_delay_the_others_only_once(tenant: str, other_tenant: str, make: Make) -> None:
    for tenant_id in (tenant, other_tenant):
        make_pages(tenant_id, "a")

    async def test() -> None:
        group = make()
        await written(group, view(other_tenant, "a"))
        with tenant_tx(tenant) as locking:
            locking.execute(text("SELECT FROM page_counters WHERE tenant_id = :t FOR UPDATE"), {"t": tenant})
            first = submit(group, view(other_tenant, "a"))
            together = await written(group, like(tenant, "a", "ada"), view(other_tenant, "a"))
            assert await first
            assert together == [False, True]
            began = time.monotonic()
            assert await written(group, like(tenant, "a", "ada"), view(other_tenant, "a")) == [False, True]
            assert time.monotonic() - began < SHARED_LOCK_TIMEOUT_MS / 1000, "it was left to threads at once"

    run(test())
    assert (likes_of(tenant, "a"), views_of(other_tenant)) == ((0, 0), 4)


def test_a_view_is_committed_while_others_write_to_its_page(tenant: str, make: Make) -> None:
    make_pages(tenant, "a")

    async def test() -> None:
        with somebody_else_writes(tenant):
            assert await written(make(), view(tenant, "a")) == [True], "not left to a thread"

    run(test())
    assert views_of(tenant) == 1


def test_after_a_commit_that_failed_tenants_are_tried_alone_only_for_a_while(
    make: Make, commits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_commit, "MAX_RETRY_S", 0.1)

    async def fail(_requests: Sequence[WriteRequest], _connection: LoopConnection) -> list[WriteRequest]:
        await asyncio.sleep(0.04)
        raise Unwritable

    async def leave(requests: Sequence[WriteRequest], _connection: LoopConnection) -> list[WriteRequest]:
        return [*requests]

    async def test() -> None:
        requests = [view(f"t{number}", "a") for number in range(20)]
        assert await written(make(fail), *requests) == [False] * 20
        assert 2 < len(commits) < 8, "the others are left to threads"
        commits.clear()
        assert await written(make(leave), *requests) == [False] * 20
        assert commits == [1, 19], "what is returned has not failed, and is not tried again"

    run(test())


def test_an_error_of_what_follows_does_not_stop_the_next_commit(tenant: str, make: Make) -> None:
    make_pages(tenant, "a")

    def fail(_tenants: object) -> None:
        raise ZeroDivisionError

    async def test() -> None:
        group = make(after=fail)
        for _ in range(3):
            assert await written(group, view(tenant, "a"), view(tenant, "a")) == [True, True]

    run(test())
    assert views_of(tenant) == 6


@not_on_citus
def test_after_a_connection_is_lost_in_a_commit_nothing_is_sent_again(tenant: str, make: Make) -> None:
    """The server may have committed what it did not answer."""
    make_pages(tenant, "a")
    lost = like(tenant, "a", "ada")
    terminate = text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")

    async def test() -> None:
        group = make()
        await written(group, view(tenant, "a"))
        with owner_tx() as locking:
            locking.execute(text("SELECT FROM page_counters WHERE tenant_id = :t FOR UPDATE"), {"t": tenant})
            decided = submit(group, lost)
            await asyncio.sleep(0.1)  # it waits for the lock
            assert locking.execute(terminate).all()
            assert await decided
        assert await submit(group, view(tenant, "a")), "over a new connection"

    run(test())
    assert isinstance(lost.error, DBAPIError)
    assert lost.error.connection_invalidated
    assert views_of(tenant) == 2


def test_a_connection_that_the_server_closed_meanwhile_costs_no_request(tenant: str, make: Make) -> None:
    make_pages(tenant, "a")
    terminate = text("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE state = 'idle'")

    async def test() -> None:
        group = make()
        await written(group, view(tenant, "a"))
        with owner_tx() as owner:
            assert owner.scalar(terminate)
        await asyncio.sleep(0.1)
        request = view(tenant, "a")
        assert await written(group, request) == [True]
        assert request.error is None

    run(test())
    assert views_of(tenant) == 2
