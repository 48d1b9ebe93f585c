"""The queue: jobs by name, as JSON."""

from typing import Any
from uuid import uuid4

import pytest
from rq import Queue
from rq.job import Job
from rq.serializers import JSONSerializer

from tenants import queue
from tenants import redis as tenants_redis
from tenants.db import utcnow
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


def test_a_job_that_is_enqueued_once_is_as_rq_enqueues_it(connected: None) -> None:
    jobs = Queue(queue.QUEUE, connection=tenants_redis.queue().redis, serializer=JSONSerializer)
    before, flag = set(jobs.job_ids), f"flag-{uuid4()}"
    queue.enqueue("workers.jobs.project", "a-tenant", ttl_s=60)
    (by_rq,) = set(jobs.job_ids) - before
    tenants_redis.queue().redis.delete(Queue.redis_queues_keys)
    assert queue.enqueue_unless(flag, "workers.jobs.project", "a-tenant", flag_s=5, ttl_s=60)
    assert not queue.enqueue_unless(flag, "workers.jobs.project", "a-tenant", flag_s=5, ttl_s=60), (
        "while the flag is set"
    )
    (ours,) = set(jobs.job_ids) - before - {by_rq}
    assert jobs.job_ids[-1] == ours
    assert jobs in Queue.all(connection=tenants_redis.queue().redis)
    assert hash_of(ours).keys() == hash_of(by_rq).keys()
    differ = {name for name, value in hash_of(ours).items() if value != hash_of(by_rq)[name]}
    assert differ == {b"created_at", b"enqueued_at"}
    for job_id in (ours, by_rq):
        job = jobs.fetch_job(job_id)
        assert job is not None
        assert 50 < int(tenants_redis.queue().redis.ttl(job.key)) <= 60
        assert job.enqueued_at is not None
        assert abs((utcnow() - job.enqueued_at).total_seconds()) < 30
        job.delete()
    assert 0 < int(tenants_redis.queue().redis.ttl(flag)) <= 5


def test_only_jobs_whose_time_is_not_over_are_counted(connected: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "IDS_AT_ONCE", 2)
    jobs = Queue(queue.QUEUE, connection=tenants_redis.queue().redis, serializer=JSONSerializer)
    before = set(jobs.job_ids)
    depth_before = queue.depth()
    for _ in range(5):
        queue.enqueue("workers.jobs.project", "a-tenant", ttl_s=60)
    *dead, first, second = [job_id for job_id in jobs.job_ids if job_id not in before]
    try:
        assert queue.depth() == depth_before + 5
        for job_id in dead:  # as when its time is over, and no worker has come by
            tenants_redis.queue().redis.delete(Job.key_for(job_id))
        assert queue.depth() == depth_before + 2
        assert queue.has_waiting()
    finally:
        for job_id in (*dead, first, second):
            tenants_redis.queue().redis.delete(Job.key_for(job_id))
            tenants_redis.queue().redis.lrem(jobs.key, 0, job_id)


def hash_of(job_id: str) -> dict[Any, Any]:
    return dict(tenants_redis.queue().redis.hgetall(Job.key_for(job_id)))


def test_without_redis_the_caller_learns_of_it(no_redis: None) -> None:
    with pytest.raises(RedisUnavailable):
        queue.enqueue("workers.jobs.project", "a-tenant")
    with pytest.raises(RedisUnavailable):
        queue.enqueue_unless("a-flag", "workers.jobs.project", "a-tenant", flag_s=5, ttl_s=60)
