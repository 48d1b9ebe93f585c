"""The processes that keep boards up to date, as the queue shows them: workers, cron, waiting and failed jobs; and those
that answer requests, as PostgreSQL does.

RQ's own classes clean up what they read; these checks only read, so they use its keys directly.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from rq.job import Job
from rq.queue import Queue
from rq.registry import FailedJobRegistry
from rq.worker_registration import REDIS_WORKER_KEYS
from sqlalchemy import text

from app.doctor.findings import Finding, duration, ok, problem, some, warn
from app.doctor.installation import Installation
from tenants.credential_feed import LISTED_S
from tenants.queue import QUEUE, cron_seen_at

ABOUT = "Processes"
QUEUE_KEY = Queue.redis_queue_namespace_prefix + QUEUE
FAILED_KEY = FailedJobRegistry.key_template.format(QUEUE)
# Cron enqueues something every five seconds.
MAX_CRON_SILENCE_S = 60.0
MAX_WAITING_JOBS = 1_000
MAX_WAIT_S = 30.0
MAX_SHOWN_FAILURES = 3


def workers(installation: Installation) -> list[dict[str, str]]:
    """The workers of our queue whose key has not expired: they renew it."""
    redis: Any = installation.queue
    found = [redis.hgetall(key) for key in sorted(redis.smembers(REDIS_WORKER_KEYS))]
    decoded = [{name.decode(): value.decode(errors="replace") for name, value in worker.items()} for worker in found]
    return [worker for worker in decoded if QUEUE in worker.get("queues", "").split(",")]


def living_workers(installation: Installation) -> Iterable[Finding]:
    alive = workers(installation)
    if alive:
        yield ok(ABOUT, f"Workers: {len(alive)}")
    else:
        yield problem(
            ABOUT,
            "There is no worker",
            why="boards do not follow what is counted, and no maintenance is done",
            advice="start plaudit worker (plaudit up starts two)",
        )


def cron(installation: Installation) -> Iterable[Finding]:
    seen_at = cron_seen_at(installation.queue)
    silent_s = None if seen_at is None else installation.now.timestamp() - seen_at
    if silent_s is not None and silent_s <= MAX_CRON_SILENCE_S:
        yield ok(ABOUT, "Cron enqueues its jobs")
    else:
        yield problem(
            ABOUT,
            f"Cron has enqueued nothing for {duration(silent_s) if silent_s is not None else 'an hour'}",
            why="snapshots, partitions, retention and the search for boards that are behind depend on it",
            advice="start plaudit cron (plaudit up does)",
        )


def same_settings(installation: Installation) -> Iterable[Finding]:
    """Whether those that answer requests have the same secret and public address."""
    with installation.reading() as connection:
        different = connection.execute(_DIFFERENT, {"listed_s": LISTED_S}).all()
    if different:
        names = some(f"{one.kind} {one.pid} on {one.host}" for one in different)
        yield problem(
            ABOUT,
            f"Processes with another PLAUDIT_SECRET_KEY or PLAUDIT_PUBLIC_URL than the others: {names}",
            why="they refuse every request: tokens and signatures of one would not be valid at the other",
            advice="set both to the same values everywhere; their /health/ready says which differs, and from whose",
        )
    else:
        yield ok(ABOUT, "Those that answer requests agree about secret and public address")


_DIFFERENT = text("""
    SELECT kind, host, pid FROM processes
    WHERE differs AND seen_at > now() - make_interval(secs => :listed_s) ORDER BY host, kind, pid
""")


def waiting_jobs(installation: Installation) -> Iterable[Finding]:
    redis: Any = installation.queue
    waiting = int(redis.llen(QUEUE_KEY))
    oldest = redis.lindex(QUEUE_KEY, 0)
    waited_s = _age_s(installation, oldest) if oldest is not None else 0.0
    if waiting > MAX_WAITING_JOBS or waited_s > MAX_WAIT_S:
        yield warn(
            ABOUT,
            f"Jobs that wait: {waiting:,}, the first for {duration(waited_s)}",
            why="boards are late by that time",
            advice="start more workers, or see what occupies them",
        )
    else:
        yield ok(ABOUT, f"Jobs that wait: {waiting:,}")


def failed_jobs(installation: Installation) -> Iterable[Finding]:
    redis: Any = installation.queue
    failed = redis.zrange(FAILED_KEY, 0, -1, desc=True)
    if not failed:
        yield ok(ABOUT, "No job has failed since yesterday")
        return
    names = [_function(redis.hget(Job.key_for(key.decode()), "description")) for key in failed[:MAX_SHOWN_FAILURES]]
    yield warn(
        ABOUT,
        f"Jobs that failed since yesterday: {len(failed):,} ({some(dict.fromkeys(names))})",
        why="each is tried again by the schedule, so boards are only late; but something is wrong",
        advice="see the workers' log, at level error",
    )


def _age_s(installation: Installation, job_id: bytes) -> float:
    redis: Any = installation.queue
    created = redis.hget(Job.key_for(job_id.decode()), "created_at")
    if created is None:  # taken by a worker meanwhile, or expired
        return 0.0
    created_at = datetime.fromisoformat(created.decode())
    return max(0.0, (installation.now - created_at).total_seconds())


def _function(description: bytes | None) -> str:
    """The job's name without its arguments."""
    return (description or b"?").decode(errors="replace").partition("(")[0]
