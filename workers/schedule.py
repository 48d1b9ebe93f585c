"""The schedule: one literal table, and the loop that enqueues its jobs.

RQ has a scheduler of its own, which enqueues with pickle and stops on the first Redis error; this one does neither.
Of several processes one leads (`workers.leader`), and the others wait until it is gone.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

import structlog

from tenants.queue import enqueue, note_cron
from tenants.redis import RedisUnavailable

# A scheduled job that no worker started in this time is dropped: the next one does its work.
MIN_TTL_S = 30
TICK_S = 0.5

log = structlog.get_logger()


@dataclass(frozen=True)
class Every:
    """Run `job` at every multiple of `seconds` since the epoch, and once when a process begins to lead."""

    seconds: int
    job: str
    # Without Redis no job can be enqueued: then this process runs it.
    also_without_redis: bool = False

    def next_after(self, at: float) -> float:
        return (at // self.seconds + 1) * self.seconds


SCHEDULE = [
    Every(seconds=5, job="workers.jobs.sweep", also_without_redis=True),
    # Often enough that a snapshot is no older than a minute, though a run takes some seconds and waits for a worker.
    Every(seconds=40, job="workers.jobs.refresh_snapshots", also_without_redis=True),
    Every(seconds=60, job="workers.jobs.end_due_quests", also_without_redis=True),
    Every(seconds=30, job="workers.jobs.retry_rewards", also_without_redis=True),
    Every(seconds=15, job="workers.jobs.end_suspensions", also_without_redis=True),
    Every(seconds=60, job="workers.jobs.purge_deleted_tenants"),
    Every(seconds=60, job="workers.jobs.redact_kept_answers", also_without_redis=True),
    Every(seconds=600, job="workers.jobs.fill_page_addresses"),
    Every(seconds=3600, job="workers.jobs.purge_expired", also_without_redis=True),
    Every(seconds=3600, job="workers.jobs.keep_partitions", also_without_redis=True),
    Every(seconds=3600, job="workers.jobs.purge_history", also_without_redis=True),
    Every(seconds=3600, job="workers.jobs.rotate_signing_key"),
]


def resolve(job: str) -> Callable[..., None]:
    """The function with this name."""
    module, name = job.rsplit(".", 1)
    function: Callable[..., None] = getattr(import_module(module), name)
    return function


def _run_here(job: str) -> None:
    try:
        resolve(job)()
    except Exception:  # the loop must continue after any error
        log.exception("a job failed", action="cron.failed", data={"job": job})


def run(
    *, should_stop: Callable[[], bool], leads: Callable[[], bool] = lambda: True, schedule: list[Every] | None = None
) -> None:
    """Enqueue due jobs until `should_stop`, while it leads. Without Redis it runs those that cannot wait for Redis."""
    entries = SCHEDULE if schedule is None else schedule
    due_at: dict[Every, float] = {}
    while not should_stop():
        for entry in entries:
            if not leads():
                due_at.clear()  # when it does, each is due at once, since some may have been missed
                break
            if time.time() < due_at.get(entry, 0.0):
                continue
            try:
                enqueue(entry.job, ttl_s=max(entry.seconds, MIN_TTL_S))
                note_cron(time.time())
            except RedisUnavailable:
                if not entry.also_without_redis:
                    continue
                _run_here(entry.job)
            due_at[entry] = entry.next_after(time.time())
        time.sleep(TICK_S)
