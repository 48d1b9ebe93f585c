"""What runs when: one literal table, and the loop that enqueues from it.

RQ has a scheduler of its own, which enqueues with pickle and ends on the first Redis error; this one does neither.
It takes no lock, so two may run at once: every job here is safe to run twice.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

import structlog
from rq import Queue
from rq.serializers import JSONSerializer

from tenants import redis
from tenants.redis import RedisUnavailable

QUEUE = "plaudit"
# A scheduled job that no worker took in this time is dropped: the next one does its work.
LEAST_TTL_S = 30
TICK_S = 0.5
LONGEST_JOB_S = 3600

log = structlog.get_logger()


@dataclass(frozen=True)
class Every:
    """Run `job` when `seconds` have passed since it was last enqueued, counted from midnight UTC."""

    seconds: int
    job: str

    def next_after(self, at: float) -> float:
        return (at // self.seconds + 1) * self.seconds


SCHEDULE = [
    Every(seconds=60, job="workers.jobs.purge_deleted_tenants"),
    Every(seconds=3600, job="workers.jobs.purge_expired"),
    Every(seconds=3600, job="workers.jobs.rotate_signing_key"),
]


def enqueue(job: str, *args: str, ttl_s: int | None = None) -> None:
    """Ask a worker to run a job, by its name."""
    with redis.queue().client() as client:
        Queue(QUEUE, connection=client, serializer=JSONSerializer).enqueue(
            job, *args, result_ttl=0, failure_ttl=86_400, ttl=ttl_s, job_timeout=LONGEST_JOB_S
        )


def resolve(job: str) -> Callable[..., None]:
    """The function a name in the table stands for."""
    module, name = job.rsplit(".", 1)
    function: Callable[..., None] = getattr(import_module(module), name)
    return function


def run(*, should_stop: Callable[[], bool], schedule: list[Every] | None = None) -> None:
    """Enqueue what is due, until told to stop. Without Redis nothing is enqueued, and it goes on when it is back."""
    entries = SCHEDULE if schedule is None else schedule
    due_at = {entry: time.time() for entry in entries}  # each once at the start: nobody knows what was missed
    while not should_stop():
        for entry in entries:
            if time.time() < due_at[entry]:
                continue
            try:
                enqueue(entry.job, ttl_s=max(entry.seconds, LEAST_TTL_S))
            except RedisUnavailable:
                continue
            due_at[entry] = entry.next_after(time.time())
        time.sleep(TICK_S)
