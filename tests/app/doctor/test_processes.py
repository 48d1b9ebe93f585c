"""Workers, cron and jobs, as the queue shows them."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from rq import Queue, SimpleWorker
from rq.registry import FailedJobRegistry
from rq.serializers import JSONSerializer
from sqlalchemy import text

from app.doctor import installation as installations
from app.doctor import processes
from app.doctor.findings import Level
from app.doctor.installation import Installation
from app.settings import Settings
from tenants.credential_feed import LISTED_S
from tenants.db import owner_tx, utcnow
from tenants.queue import CRON_SEEN, QUEUE, note_cron
from tests.app.doctor.conftest import bad


@pytest.fixture
def installation(settings: Settings, connected: None, tmp_path: Path) -> Iterator[Installation]:
    """With an empty queue, which nobody works on."""
    found = installations.of(settings, tmp_path, is_local=False, now=utcnow())
    keys = [*found.queue.scan_iter("rq:*"), CRON_SEEN]
    found.queue.delete(*keys)
    yield found
    found.queue.delete(*found.queue.scan_iter("rq:*"), CRON_SEEN)


@pytest.fixture
def queue(installation: Installation) -> Queue:
    return Queue(QUEUE, connection=installation.queue, serializer=JSONSerializer)


def test_a_queue_without_workers_and_cron_is_a_problem(installation: Installation) -> None:
    assert bad(processes.living_workers(installation)) == [(Level.PROBLEM, "There is no worker")]
    ((level, what),) = bad(processes.cron(installation))
    assert (level, what) == (Level.PROBLEM, "Cron has enqueued nothing for an hour")
    assert bad(processes.waiting_jobs(installation)) == []
    assert bad(processes.failed_jobs(installation)) == []


def test_a_worker_is_found_and_looking_changes_nothing(installation: Installation, queue: Queue) -> None:
    for queues in ([queue], [Queue("other", connection=installation.queue)]):
        worker: Any = SimpleWorker(queues, connection=installation.queue, serializer=JSONSerializer)
        worker.register_birth()
    installation.queue.sadd("rq:workers", "rq:worker:killed-long-ago")
    before = {key: installation.queue.dump(key) for key in installation.queue.scan_iter("rq:*")}
    assert [found["queues"] for found in processes.workers(installation)] == [QUEUE]
    assert bad(processes.living_workers(installation)) == []
    assert {key: installation.queue.dump(key) for key in installation.queue.scan_iter("rq:*")} == before


def test_cron_is_missed_after_a_minute(installation: Installation) -> None:
    note_cron(installation.now.timestamp())
    assert bad(processes.cron(installation)) == []
    later = replace(installation, now=installation.now + timedelta(minutes=5))
    assert bad(processes.cron(later)) == [(Level.PROBLEM, "Cron has enqueued nothing for 5 min")]


def test_a_process_with_another_secret_is_named(installation: Installation) -> None:
    assert bad(processes.same_settings(installation)) == []
    seen_s = {"gone": LISTED_S + 1, "here": 0}
    with owner_tx() as tx:
        for host, ago_s in seen_s.items():
            tx.execute(
                text("""
                    INSERT INTO processes (id, kind, host, pid, seen, seen_at, secret_fingerprint, differs) VALUES
                    (gen_random_uuid(), 'web', :host, 7, '{}', now() - make_interval(secs => :ago), 'x', true)
                """),
                {"host": host, "ago": ago_s},
            )
    try:
        ((level, what),) = bad(processes.same_settings(installation))
        assert (level, what.partition(": ")[2]) == (Level.PROBLEM, "web 7 on here")
    finally:
        with owner_tx() as tx:
            tx.execute(text("DELETE FROM processes WHERE secret_fingerprint = 'x'"))


def test_jobs_that_wait_too_long_are_said(installation: Installation, queue: Queue) -> None:
    queue.enqueue("workers.jobs.sweep")
    now = replace(installation, now=utcnow())
    assert bad(processes.waiting_jobs(now)) == []
    later = replace(now, now=now.now + timedelta(minutes=10))
    ((level, what),) = bad(processes.waiting_jobs(later))
    assert (level, what.startswith("Jobs that wait: 1, the first for 10")) == (Level.WARN, True)


def test_failed_jobs_are_named_without_their_arguments(installation: Installation, queue: Queue) -> None:
    job = queue.enqueue("workers.jobs.project", "acme")
    FailedJobRegistry(QUEUE, connection=installation.queue, serializer=JSONSerializer).add(job, ttl=600)
    ((level, what),) = bad(processes.failed_jobs(installation))
    assert (level, what) == (Level.WARN, "Jobs that failed since yesterday: 1 (workers.jobs.project)")
