"""The workers' queue: jobs are enqueued by name, as JSON, and are wake-ups only. Losing jobs loses no data."""

from functools import lru_cache
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from rq import Queue
from rq.job import Job, JobStatus
from rq.serializers import JSONSerializer
from rq.utils import now, utcformat

from tenants import redis

if TYPE_CHECKING:
    from redis import Redis

# One queue for all jobs, first in first out: frequent jobs cannot starve the others.
QUEUE = "plaudit"
MAX_JOB_S = 3600
FAILURES_KEPT_S = 86_400
# When cron last enqueued something: RQ has a registry of workers, and none of what enqueues.
CRON_SEEN = "plaudit:cron-seen"
CRON_SEEN_KEPT_S = 3600
# The rest of a longer queue is not counted: any alert has gone off long before.
MAX_COUNTED = 50_000
# Whether so many jobs are there is one command, during which Redis answers nobody else.
IDS_AT_ONCE = 1_000
# The name of its leader's open transaction in pg_stat_activity.
CRON_LEADER = "plaudit cron"
_QUEUE_KEY = Queue.redis_queue_namespace_prefix + QUEUE


def enqueue(job: str, *args: str, ttl_s: int | None = None) -> None:
    """Ask a worker to run a job, by its name."""
    with redis.queue().client() as client, client.pipeline() as together:  # otherwise RQ takes two round trips
        Queue(QUEUE, connection=client, serializer=JSONSerializer).enqueue(
            job, *args, result_ttl=0, failure_ttl=FAILURES_KEPT_S, ttl=ttl_s, job_timeout=MAX_JOB_S, pipeline=together
        )
        together.execute()


def enqueue_unless(flag: str, job: str, *args: str, flag_s: int, ttl_s: int) -> bool:
    """Ask a worker to run a job unless a flag is set, and set it for some seconds: in one step, and one round trip.

    Writers do this many times a second, so what RQ would compute each time is computed once.
    """
    job_id, fields = str(uuid4()), _fields(job, args, ttl_s)
    at = utcformat(now())
    keys = (flag, Job.key_for(job_id), _QUEUE_KEY, Queue.redis_queues_keys)
    with redis.queue().client() as client:
        added = client.eval(_ENQUEUE_UNLESS, len(keys), *keys, flag_s, ttl_s, job_id, at, *fields)
    return bool(added)


@lru_cache(maxsize=10_000)
def _fields(job: str, args: tuple[str, ...], ttl_s: int) -> tuple[Any, ...]:
    """RQ's hash of such a job, but for the times, as HSET takes it."""
    made = Job.create(
        job,
        args=args,
        connection=redis.queue().redis,
        result_ttl=0,
        failure_ttl=FAILURES_KEPT_S,
        ttl=ttl_s,
        timeout=MAX_JOB_S,
        status=JobStatus.QUEUED,
        origin=QUEUE,
        serializer=JSONSerializer,
    )
    of_hash = {name: value for name, value in made.to_dict().items() if name not in {"created_at", "enqueued_at"}}
    return tuple(part for field in of_hash.items() for part in field)


# As RQ enqueues: the job, when it ends unless a worker takes it, the list of queues, the queue.
_ENQUEUE_UNLESS = """
if not redis.call('SET', KEYS[1], '1', 'NX', 'EX', ARGV[1]) then return 0 end
redis.call('HSET', KEYS[2], 'created_at', ARGV[4], 'enqueued_at', ARGV[4], unpack(ARGV, 5))
redis.call('EXPIRE', KEYS[2], ARGV[2])
redis.call('SADD', KEYS[4], KEYS[3])
redis.call('RPUSH', KEYS[3], ARGV[3])
return 1
"""


def note_cron(at: float) -> None:
    """Cron is alive (`plaudit doctor` asks)."""
    with redis.queue().client() as client:
        client.set(CRON_SEEN, at, ex=CRON_SEEN_KEPT_S)


def cron_seen_at(client: "Redis") -> float | None:
    """When cron last enqueued something; None: not within the last hour."""
    seen = client.get(CRON_SEEN)
    return None if seen is None else float(seen)


def has_waiting() -> bool:
    """Whether a job may wait for a worker: also one whose time is over, which the next worker only drops."""
    with redis.queue().client() as client:
        return bool(client.llen(_QUEUE_KEY))


def depth() -> int:
    """How many jobs wait for a worker. A job whose time is over does not: a worker only drops what is left, its id."""
    with redis.queue().client() as client:
        ids: Any = client.lrange(_QUEUE_KEY, 0, MAX_COUNTED - 1)
        keys = [Job.key_for(job_id.decode()) for job_id in ids]
        return sum(int(client.exists(*keys[start : start + IDS_AT_ONCE])) for start in range(0, len(keys), IDS_AT_ONCE))
