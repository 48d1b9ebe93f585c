"""The schedule enqueues what is due, whatever happens to Redis or to a job."""

import time
from datetime import timedelta

import pytest
from rq import Queue
from sqlalchemy import text

from app.settings import Settings
from tenants import redis as tenants_redis
from tenants.db import owner_tx, utcnow
from tests.analytics.conftest import put_page
from tests.workers.conftest import stop_redis
from workers import jobs, schedule
from workers.schedule import Every


def run_rounds(number: int, *entries: Every) -> None:
    """Run the loop this many rounds."""
    rounds = iter(range(number))
    schedule.run(should_stop=lambda: next(rounds, None) is None, schedule=list(entries))


def test_the_schedule_enqueues_again_and_again_even_after_an_outage(settings: Settings, queue: Queue) -> None:
    stop_redis()
    ticks: list[float] = []

    def should_stop() -> bool:
        ticks.append(time.monotonic())
        if len(ticks) == 2:
            url = settings.redis_url or ""
            tenants_redis.configure(boards_url=url, queue_url=url)
        return len(ticks) > 5

    schedule.run(should_stop=should_stop, schedule=[Every(seconds=1, job="workers.jobs.purge_deleted_tenants")])
    assert queue.count >= 2


@pytest.mark.parametrize(("seconds", "at", "due_at"), [(5, 0, 5), (5, 4.9, 5), (5, 5, 10), (60, 61.5, 120)])
def test_a_job_is_due_at_every_multiple_of_its_seconds(seconds: int, at: float, due_at: float) -> None:
    assert Every(seconds=seconds, job="workers.jobs.sweep").next_after(at) == due_at


def test_a_job_is_enqueued_once_until_it_is_due_again(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "TICK_S", 0)
    monkeypatch.setattr(Every, "next_after", lambda _entry, at: at + 3600)
    run_rounds(3, Every(seconds=3600, job="workers.jobs.sweep"), Every(seconds=3600, job="workers.jobs.purge_expired"))
    assert [job.func_name for job in queue.jobs] == ["workers.jobs.sweep", "workers.jobs.purge_expired"]


def test_who_does_not_lead_enqueues_nothing_and_everything_once_it_does(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "TICK_S", 0)
    monkeypatch.setattr(Every, "next_after", lambda _entry, at: at + 3600)
    enqueued: list[int] = []
    leads = iter([False, True, True, False, True])

    def should_stop() -> bool:
        enqueued.append(queue.count)
        return len(enqueued) > 5

    schedule.run(should_stop=should_stop, leads=lambda: next(leads), schedule=[Every(3600, "workers.jobs.sweep")])
    assert enqueued == [0, 0, 1, 1, 1, 2]


def test_without_redis_what_must_not_be_kept_is_deleted_too(tenant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put_page(tenant, "a")
    old = utcnow() - timedelta(days=50)
    with owner_tx() as tx:
        tx.execute(text("INSERT INTO visitor_salts VALUES (:day, 'x') ON CONFLICT DO NOTHING"), {"day": old.date()})
        statement = """INSERT INTO page_visitors
                       SELECT tenant_id, id, :day, gen_random_uuid(), true, 1, :day FROM pages WHERE tenant_id = :t"""
        tx.execute(text(statement), {"day": old.date(), "t": tenant})
    monkeypatch.setattr(schedule, "TICK_S", 0)
    monkeypatch.setattr(jobs, "MAX_JOB_WITHOUT_REDIS_S", 60)  # it goes over whatever other tests left
    stop_redis()
    purges = ("workers.jobs.purge_expired", "workers.jobs.purge_history")
    run_rounds(1, *(entry for entry in schedule.SCHEDULE if entry.job in purges))
    with owner_tx() as tx:
        assert tx.scalar(text("SELECT count(*) FROM visitor_salts WHERE day = :day"), {"day": old.date()}) == 0
        assert tx.scalar(text("SELECT count(*) FROM page_visitors WHERE tenant_id = :t"), {"t": tenant}) == 0


def test_without_redis_what_cannot_wait_runs_here_and_an_error_stops_nothing(
    connected: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def fail() -> None:
        ran.append("sweep")
        raise RuntimeError("a bug")

    monkeypatch.setattr(jobs, "sweep", fail)
    monkeypatch.setattr(jobs, "refresh_snapshots", lambda: ran.append("refresh_snapshots"))
    monkeypatch.setattr(jobs, "purge_expired", lambda: ran.append("purge_expired"))
    monkeypatch.setattr(schedule, "TICK_S", 0)
    stop_redis()
    run_rounds(
        1,
        Every(seconds=3600, job="workers.jobs.sweep", also_without_redis=True),
        Every(seconds=3600, job="workers.jobs.purge_expired"),
        Every(seconds=3600, job="workers.jobs.refresh_snapshots", also_without_redis=True),
    )
    assert ran == ["sweep", "refresh_snapshots"], "what can wait is enqueued when Redis is back"
