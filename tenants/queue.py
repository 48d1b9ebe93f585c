"""The workers' queue: jobs are enqueued by name, as JSON, and are wake-ups only. Losing jobs loses no data."""

from rq import Queue
from rq.serializers import JSONSerializer

from tenants import redis

# One queue for all jobs, first in first out: frequent jobs cannot starve the others.
QUEUE = "plaudit"
MAX_JOB_S = 3600


def enqueue(job: str, *args: str, ttl_s: int | None = None) -> None:
    """Ask a worker to run a job, by its name."""
    with redis.queue().client() as client:
        Queue(QUEUE, connection=client, serializer=JSONSerializer).enqueue(
            job, *args, result_ttl=0, failure_ttl=86_400, ttl=ttl_s, job_timeout=MAX_JOB_S
        )
