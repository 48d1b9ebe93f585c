"""The queue: jobs by name, as JSON."""

import pytest
from rq import Queue
from rq.serializers import JSONSerializer

from tenants import queue
from tenants import redis as tenants_redis
from tenants.redis import RedisUnavailable


def test_a_job_is_enqueued_by_its_name_with_its_arguments(connected: None) -> None:
    jobs = Queue(queue.QUEUE, connection=tenants_redis.queue().redis, serializer=JSONSerializer)
    before = set(jobs.job_ids)
    queue.enqueue("workers.jobs.project", "a-tenant", ttl_s=60)
    (job_id,) = set(jobs.job_ids) - before
    job = jobs.fetch_job(job_id)
    assert job is not None
    assert (job.func_name, job.args, job.ttl, job.timeout) == (
        "workers.jobs.project",
        ["a-tenant"],
        60,
        queue.MAX_JOB_S,
    )
    assert job.result_ttl == 0, "nobody reads a result"
    job.delete()


def test_without_redis_the_caller_learns_of_it(no_redis: None) -> None:
    with pytest.raises(RedisUnavailable):
        queue.enqueue("workers.jobs.project", "a-tenant")
