"""Wake-ups: after a commit, have the tenant's boards brought up to date.

At most one is pending for each tenant: a short-lived flag in Redis says so (not RQ's job id, which an orphaned job
would hold for minutes). The job takes the flag away before it reads, so what is committed after that wakes it again.
"""

import contextlib
from collections.abc import Iterable

from tenants import queue, redis
from tenants.redis import RedisUnavailable, key

JOB = "workers.jobs.project"
# Longer than a job waits as a rule, shorter than anybody wants to: then the sweep, or the next change, wakes another.
PENDING_S = 5


def wake(tenant_ids: Iterable[str]) -> None:
    """Without Redis nothing happens: the sweep finds what there is to do."""
    with contextlib.suppress(RedisUnavailable):
        for tenant_id in tenant_ids:
            with redis.queue().client() as client:
                first = client.set(_flag(tenant_id), "1", nx=True, ex=PENDING_S)
            if first:
                queue.enqueue(JOB, tenant_id, ttl_s=60)


def awake(tenant_id: str) -> bool:
    """The job has begun: whatever comes now needs another. Whether one was asked for."""
    with contextlib.suppress(RedisUnavailable), redis.queue().client() as client:
        return bool(client.delete(_flag(tenant_id)))
    return False


def leave_word(tenant_id: str) -> None:
    """Another is at it: it looks once more when it is done."""
    with contextlib.suppress(RedisUnavailable), redis.queue().client() as client:
        client.set(_flag(tenant_id), "1", ex=PENDING_S)


def _flag(tenant_id: str) -> str:
    return key("wake", tenant_id)
