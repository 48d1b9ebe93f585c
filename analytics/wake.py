"""Wake-ups: after a commit, have the tenant's boards brought up to date by a worker.

At most one job is pending for each tenant: a short-lived flag in Redis says so (not RQ's job id, which an orphaned job
would keep for minutes). The job clears the flag when it has the tenant's board lock, before it reads, so whatever is
committed after that wakes another. A job that finds the lock taken leaves the flag for a moment, and asks the job that
has the lock to enqueue the next one when it is done.
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterable

from tenants import queue, redis
from tenants.redis import RedisUnavailable, key

JOB = "workers.jobs.project"
# Longer than a job usually waits, shorter than anybody wants to: then the sweep, or the next change, wakes another.
PENDING_S = 5
# How long nobody is woken after a job found the lock taken: not for long, since it may be taken by what is no job.
BUSY_S = 1
# As long as a job may take that is asked to have another one follow.
AGAIN_S = 60
MAX_PAUSE_S = 1.5
# How often a job that waits looks whether others do.
LOOK_EVERY_S = 0.25
# A job is followed by a pause of this many times what it took; with more rows a second, by a longer one.
PAUSES = 0.5
BUSY_ROWS_PER_S = 2_500
BUSY_PAUSES = 4
GATHER_S = 0.005
# Between two wake-ups by the group commits of a process.
MIN_PAUSE_S = 0.025


def wake(tenant_ids: Iterable[str]) -> None:
    """Enqueue a projection for each tenant. Without Redis nothing happens: the sweep finds what there is to do."""
    with contextlib.suppress(RedisUnavailable):
        for tenant_id in tenant_ids:
            queue.enqueue_unless(_pending_key(tenant_id), JOB, tenant_id, flag_s=PENDING_S, ttl_s=60)


def wake_again(tenant_ids: Iterable[str]) -> None:
    """Wake them although somebody has just done so: a worker that was killed has lost the job."""
    with contextlib.suppress(RedisUnavailable), redis.queue().client() as client:
        for tenant_id in tenant_ids:
            client.delete(_pending_key(tenant_id))
            wake([tenant_id])


class Waker:
    """Wakes for the group commit from a thread of its own: all commits of a tenant within some milliseconds, once."""

    def __init__(self) -> None:
        self._tenants: set[str] = set()
        self._lock = threading.Lock()
        self._wanted = threading.Event()
        self._pid = 0

    def __call__(self, tenant_ids: Iterable[str]) -> None:
        with self._lock:
            self._tenants.update(tenant_ids)
            if self._pid != os.getpid():  # nothing is started before a fork
                self._pid = os.getpid()
                threading.Thread(target=self._run, name="waker", daemon=True).start()
        self._wanted.set()

    def _run(self) -> None:
        woken_at = -MIN_PAUSE_S
        while True:
            self._wanted.wait()
            # Under constant writing the boards follow in fewer, larger steps.
            time.sleep(max(GATHER_S, woken_at + MIN_PAUSE_S - time.monotonic()))
            woken_at = time.monotonic()
            self._wanted.clear()
            with self._lock:
                tenant_ids, self._tenants = self._tenants, set()
            wake(tenant_ids)


def job_started(tenant_id: str) -> None:
    """A job has the lock: changes committed from now on need another one."""
    with contextlib.suppress(RedisUnavailable), redis.queue().client() as client:
        client.delete(_pending_key(tenant_id))


def job_finished(tenant_id: str, *, took_s: float, rows: int, more: bool = False) -> None:
    """Pause the tenant's projection for half as long as it took: under constant change, a third of the time is for
    writers.

    If they mark very many rows of the outbox, pause longer: more changes of the same page are then projected once.
    `rows`: how many there were since the last job. If another job found the lock taken in the meantime, enqueue one
    more. If the job's turn was over with more to do, enqueue the next turn, behind the jobs that wait, without a pause.
    """
    now = time.time()
    with contextlib.suppress(RedisUnavailable), redis.queue().client() as client:
        last = client.set(key("projected", tenant_id), repr(now), get=True, ex=PENDING_S)
        pauses = 0 if more else PAUSES
        is_very_busy = not more and last is not None and rows > BUSY_ROWS_PER_S * max(now - float(last), took_s)
        pause_ms = int(min(took_s * (BUSY_PAUSES if is_very_busy else pauses), MAX_PAUSE_S) * 1000)
        if pause_ms:
            client.set(key("pause", tenant_id), "1", px=pause_ms)
        if client.delete(_again_key(tenant_id)):
            client.set(_pending_key(tenant_id), "1", ex=PENDING_S)
            queue.enqueue(JOB, tenant_id, ttl_s=60)
        elif more:
            wake([tenant_id])


def wait_out_pause(tenant_id: str) -> bool:
    """Sleep until the pause after the last job is over.

    False: another job waits for a worker, so this one is enqueued again behind it.
    """
    with contextlib.suppress(RedisUnavailable), redis.queue().client() as client:
        while (left_ms := int(client.pttl(key("pause", tenant_id)))) > 0:
            time.sleep(min(left_ms / 1000, LOOK_EVERY_S))
            if left_ms > LOOK_EVERY_S * 1000 and queue.has_waiting():
                queue.enqueue(JOB, tenant_id, ttl_s=60)
                return False
    return True


def ask_to_run_again(tenant_id: str) -> None:
    """Another worker holds the lock: ask it to have the tenant projected once more, and nobody else to."""
    with contextlib.suppress(RedisUnavailable), redis.queue().client() as client:
        client.set(_again_key(tenant_id), "1", ex=AGAIN_S)
        client.set(_pending_key(tenant_id), "1", ex=BUSY_S)


def _pending_key(tenant_id: str) -> str:
    return key("wake", tenant_id)


def _again_key(tenant_id: str) -> str:
    return key("wake-again", tenant_id)
