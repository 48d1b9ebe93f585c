"""The workers' queue: jobs are enqueued by name, as JSON, and are wake-ups only. Losing jobs loses no data."""

from typing import TYPE_CHECKING

from rq import Queue
from rq.serializers import JSONSerializer

from tenants import redis

if TYPE_CHECKING:
    from redis import Redis

# One queue for all jobs, first in first out: frequent jobs cannot starve the others.
QUEUE = "plaudit"
MAX_JOB_S = 3600
# When cron last enqueued something: RQ has a registry of workers, and none of what enqueues.
CRON_SEEN = "plaudit:cron-seen"
CRON_SEEN_KEPT_S = 3600
# The name of its leader's open transaction in pg_stat_activity.
CRON_LEADER = "plaudit cron"


def enqueue(job: str, *args: str, ttl_s: int | None = None) -> None:
    """Ask a worker to run a job, by its name."""
    with redis.queue().client() as client:
        Queue(QUEUE, connection=client, serializer=JSONSerializer).enqueue(
            job, *args, result_ttl=0, failure_ttl=86_400, ttl=ttl_s, job_timeout=MAX_JOB_S
        )


def note_cron(now: float) -> None:
    """Cron is alive (`plaudit doctor` asks)."""
    with redis.queue().client() as client:
        client.set(CRON_SEEN, now, ex=CRON_SEEN_KEPT_S)


def cron_seen_at(client: "Redis") -> float | None:
    """When cron last enqueued something; None: not within the last hour."""
    seen = client.get(CRON_SEEN)
    return None if seen is None else float(seen)


def has_waiting() -> bool:
    """Whether a job waits for a worker."""
    return depth() > 0


def depth() -> int:
    """How many jobs wait for a worker."""
    with redis.queue().client() as client:
        return int(Queue(QUEUE, connection=client, serializer=JSONSerializer).count)
