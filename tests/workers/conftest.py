"""The workers' queue, and tenants to purge: what tests see a job do."""

from collections.abc import Iterator

import pytest
from rq import Queue
from rq.serializers import JSONSerializer
from sqlalchemy import text

from app.settings import Settings
from tenants import queue as tenants_queue
from tenants import redis as tenants_redis
from tenants import registry
from tenants.db import owner_tx, utcnow


@pytest.fixture
def queue(settings: Settings, connected: None) -> Iterator[Queue]:
    """The workers' queue, empty before and after the test."""
    client = tenants_redis.make_client(settings.queue_redis_url or "", timeout_s=5)
    queue = Queue(tenants_queue.QUEUE, connection=client, serializer=JSONSerializer)
    queue.empty()  # type: ignore[no-untyped-call]
    yield queue
    queue.empty()  # type: ignore[no-untyped-call]
    client.close()


def stop_redis() -> None:
    """From now on this process finds no Redis. (The next test connects again.)"""
    nowhere = "redis://127.0.0.1:1/0"
    tenants_redis.configure(boards_url=nowhere, queue_url=nowhere)


def is_there(tenant_id: str) -> bool:
    with owner_tx() as tx:
        return bool(tx.scalar(text("SELECT 1 FROM tenants WHERE id = :id"), {"id": tenant_id}))


def delete(tenant_id: str) -> None:
    with owner_tx() as tx:
        registry.mark_deleted(tx, tenant_id, now=utcnow())
