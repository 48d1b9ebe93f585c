"""What a job adds to the function it calls: it is safe to run twice, and one tenant's trouble stops no other."""

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from rq import Queue
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError

from analytics import locks, outbox, wake
from analytics.boards import projection, retiring
from analytics.boards.retiring import Retired
from analytics.outbox import Kind
from app.settings import Settings
from tenants import db, purging, signing
from tenants import redis as tenants_redis
from tenants.db import tenant_tx, utcnow
from tenants.redis import RedisUnavailable
from tests.outages import read_only
from tests.service import eventually
from tests.workers.conftest import delete, is_there, stop_redis
from workers import jobs, run, schedule


@pytest.fixture
def stale_tenant(tenant: str, queue: Queue) -> str:
    """A tenant whose boards are behind, and whose wake-up was lost."""
    projection.project_all(tenant, now=utcnow)
    with tenant_tx(tenant) as tx:
        outbox.mark_stale(tx, Kind.PAGE, [1])
    queue.empty()  # type: ignore[no-untyped-call]
    wake.job_started(tenant)
    assert is_stale(tenant)
    return tenant


def is_stale(tenant_id: str) -> bool:
    return tenant_id in projection.stale_tenants(now=utcnow())


def test_the_job_is_safe_to_run_twice(tenant: str) -> None:
    delete(tenant)
    jobs.purge_deleted_tenants()
    jobs.purge_deleted_tenants()
    assert not is_there(tenant)


def test_a_purge_makes_way_after_each_step_and_continues(
    tenant: str, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tenant_tx(tenant) as tx:
        outbox.mark_stale(tx, Kind.PAGE, range(100))
    delete(tenant)
    monkeypatch.setattr(purging, "MAX_ROWS_PER_STEP", 30)
    monkeypatch.setattr("workers.turns._others_wait", lambda: True)
    runs = 0
    while is_there(tenant):
        queue.empty()  # type: ignore[no-untyped-call]
        jobs.purge_deleted_tenants()
        runs += 1
        assert runs < 50
        assert is_there(tenant) == ("workers.jobs.purge_deleted_tenants" in [job.func_name for job in queue.jobs])
    assert runs > 4


def test_a_tenant_that_cannot_be_purged_stops_no_other(
    tenant: str, other_tenant: str, monkeypatch: pytest.MonkeyPatch, logged: Callable[[], list[dict[str, Any]]]
) -> None:
    first, second = sorted([tenant, other_tenant])
    delete(first)
    delete(second)
    retire = retiring.retire

    def retire_all_but_the_first(tenant_id: str, **options: Any) -> Retired:
        if tenant_id == first:
            raise RuntimeError("a bug")
        return retire(tenant_id, **options)

    with monkeypatch.context() as failing:
        failing.setattr(retiring, "retire", retire_all_but_the_first)
        jobs.purge_deleted_tenants()
    assert (is_there(first), is_there(second)) == (True, False)
    (failure,) = [line for line in logged() if line.get("action") == "job.failed"]
    assert failure["tenantId"] == first
    jobs.purge_deleted_tenants()
    assert not is_there(first), "the next run purges it"


def jobs_of(queue: Queue, tenant_id: str) -> list[str | None]:
    return [job.func_name for job in queue.jobs if [*job.args] == [tenant_id]]


def test_the_successor_of_a_killed_worker_wakes_tenants_although_their_job_is_pending(
    stale_tenant: str, queue: Queue
) -> None:
    jobs.sweep()
    queue.empty()  # type: ignore[no-untyped-call]  # the killed one had the job
    jobs.sweep()
    assert jobs_of(queue, stale_tenant) == []
    jobs.resume()
    assert jobs_of(queue, stale_tenant) == ["workers.jobs.project"]


def test_a_sweep_wakes_tenants_whose_boards_are_behind(stale_tenant: str, other_tenant: str, queue: Queue) -> None:
    projection.project_all(other_tenant, now=utcnow)
    jobs.sweep()
    assert jobs_of(queue, stale_tenant) == ["workers.jobs.project"]
    assert jobs_of(queue, other_tenant) == []


def test_a_sweep_without_redis_projects_here(stale_tenant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_redis()
    with pytest.raises(RedisUnavailable), tenants_redis.queue().client() as client:
        client.ping()
    with monkeypatch.context() as mine:
        mine.setattr(projection, "stale_tenants", lambda **_: [stale_tenant])  # and not those of other tests
        jobs.sweep()
    assert not is_stale(stale_tenant)


def test_a_projection_that_finds_the_lock_taken_has_its_holder_run_again(stale_tenant: str, queue: Queue) -> None:
    with tenant_tx(stale_tenant, separate=True) as holder:
        locks.lock_boards(holder, stale_tenant)
        jobs.project(stale_tenant)
    assert is_stale(stale_tenant)
    jobs.project(stale_tenant)
    assert not is_stale(stale_tenant)
    assert jobs_of(queue, stale_tenant) == ["workers.jobs.project"]
    jobs.project(stale_tenant)
    assert jobs_of(queue, stale_tenant) == ["workers.jobs.project"], "once"


def test_while_a_projection_runs_only_one_job_finds_its_lock_taken(stale_tenant: str, queue: Queue) -> None:
    found_it_taken = 0
    with tenant_tx(stale_tenant, separate=True) as holder:
        locks.lock_boards(holder, stale_tenant)
        for _ in range(3):
            wake.wake([stale_tenant])
            for _job in jobs_of(queue, stale_tenant):
                queue.empty()  # type: ignore[no-untyped-call]
                jobs.project(stale_tenant)
                found_it_taken += 1
    assert found_it_taken == 1
    assert jobs_of(queue, stale_tenant) == []
    wake.job_finished(stale_tenant, took_s=0, rows=1)
    assert jobs_of(queue, stale_tenant) == ["workers.jobs.project"], "the holder enqueues the next one"


def test_a_lock_that_was_taken_by_what_is_no_job_delays_the_next_wake_up_only_briefly(
    stale_tenant: str, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tenant_tx(stale_tenant, separate=True) as holder:
        locks.lock_boards(holder, stale_tenant)
        jobs.project(stale_tenant)

    def wake_again() -> list[str | None]:
        wake.wake([stale_tenant])
        return jobs_of(queue, stale_tenant)

    assert eventually(wake_again, within_s=3) == ["workers.jobs.project"]


def test_a_lock_released_before_its_holder_was_asked_is_taken(
    stale_tenant: str, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask_to_run_again = wake.ask_to_run_again
    with ExitStack() as holding:
        holder = holding.enter_context(tenant_tx(stale_tenant, separate=True))
        locks.lock_boards(holder, stale_tenant)

        def ask_too_late(tenant_id: str) -> None:
            holding.close()
            wake.job_finished(tenant_id, took_s=0, rows=1)
            ask_to_run_again(tenant_id)

        monkeypatch.setattr(wake, "ask_to_run_again", ask_too_late)
        jobs.project(stale_tenant)
    assert not is_stale(stale_tenant)


def test_without_a_secret_key_no_signing_key_is_made(connected: None, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    monkeypatch.setattr(signing.Signer, "rotate_if_due", lambda *_args, **_kwargs: made.append(1))
    monkeypatch.delenv("PLAUDIT_SECRET_KEY", raising=False)
    jobs.rotate_signing_key()
    assert made == []
    monkeypatch.setenv("PLAUDIT_SECRET_KEY", "x" * 32)
    jobs.rotate_signing_key()
    assert made == [1]


def test_no_job_uses_two_connections_at_once(
    stale_tenant: str, other_tenant: str, settings: Settings, logged: Callable[[], list[dict[str, Any]]]
) -> None:
    """So a pool of one is enough: a second connection would wait for the first for ever."""
    began = utcnow()
    delete(other_tenant)
    run.connect(replace(settings, database_pool=1))
    in_use: Counter[str] = Counter()
    most = 0

    def take(*_: object) -> None:
        nonlocal most
        in_use["connections"] += 1
        most = max(most, in_use["connections"])

    for engine in (db.service_engine(), db.owner_engine()):
        event.listen(engine, "checkout", take)
        event.listen(engine, "checkin", lambda *_: in_use.subtract(["connections"]))
    jobs.project(stale_tenant)
    for entry in schedule.SCHEDULE:
        schedule.resolve(entry.job)()
    assert most == 1
    ours = {None, stale_tenant, other_tenant}  # other tests leave boards of metrics that are gone
    assert [line for line in logged() if line["level"] == "error" and line.get("tenantId") in ours] == []
    assert not is_there(other_tenant)
    assert stale_tenant not in projection.stale_tenants(now=began), "whatever the hour is by now"


def test_a_projection_that_finds_a_read_only_server_is_made_up_for(
    stale_tenant: str, settings: Settings, queue: Queue
) -> None:
    url = read_only(settings.service_database_url or settings.database_url)
    run.connect(replace(settings, service_database_url=url))
    with pytest.raises(DBAPIError) as refused:
        jobs.project(stale_tenant)
    assert refused.value.connection_invalidated
    run.connect(settings)
    jobs.sweep()
    assert [stale_tenant] in [job.args for job in queue.jobs]
    jobs.project(stale_tenant)
    assert not is_stale(stale_tenant)
