"""Wake-ups: after a commit, have the tenant's boards brought up to date.

At most one is pending for each tenant: a short-lived flag in Redis says so (not RQ's job id, which an orphaned job
would hold for minutes). The job takes the flag away before it reads, so what is committed after that wakes it again.
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterable

from tenants import queue, redis
from tenants.redis import RedisUnavailable, key

JOB = "workers.jobs.project"
# Longer than a job waits as a rule, shorter than anybody wants to: then the sweep, or the next change, wakes another.
PENDING_S = 5
LONGEST_REST_S = 0.25
GATHER_S = 0.005


def wake(tenant_ids: Iterable[str]) -> None:
    """Without Redis nothing happens: the sweep finds what there is to do."""
    with contextlib.suppress(RedisUnavailable):
        for tenant_id in tenant_ids:
            with redis.queue().client() as client:
                first = client.set(_flag(tenant_id), "1", nx=True, ex=PENDING_S)
            if first:
                queue.enqueue(JOB, tenant_id, ttl_s=60)


class Waker:
    """Wakes for the group commit from a thread of its own: a few milliseconds' commits of one tenant need it once."""

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
        while True:
            self._wanted.wait()
            time.sleep(GATHER_S)
            self._wanted.clear()
            with self._lock:
                tenant_ids, self._tenants = self._tenants, set()
            wake(tenant_ids)


def awake(tenant_id: str) -> None:
    """The job has begun: whatever comes now needs another."""
    with contextlib.suppress(RedisUnavailable), redis.queue().client() as client:
        client.delete(_flag(tenant_id))


def rest(tenant_id: str) -> None:
    """Wait out what is left of the rest after the run before."""
    with contextlib.suppress(RedisUnavailable), redis.queue().client() as client:
        left_ms = int(client.pttl(key("rest", tenant_id)))
        if left_ms > 0:
            time.sleep(left_ms / 1000)


def done(tenant_id: str, *, took_s: float) -> None:
    """Rest for as long as the run took: where changes never cease, half of the time is for those who make them.

    And if somebody left word meanwhile, begin again.
    """
    rest_ms = int(min(took_s, LONGEST_REST_S) * 1000)
    with contextlib.suppress(RedisUnavailable), redis.queue().client() as client:
        if rest_ms:
            client.set(key("rest", tenant_id), "1", px=rest_ms)
        if client.delete(key("word", tenant_id)):
            wake([tenant_id])


def leave_word(tenant_id: str) -> None:
    """Another is at it: it begins again when it is done."""
    with contextlib.suppress(RedisUnavailable), redis.queue().client() as client:
        client.set(key("word", tenant_id), "1", ex=PENDING_S)


def _flag(tenant_id: str) -> str:
    return key("wake", tenant_id)
