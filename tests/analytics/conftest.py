from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

import pytest
from flask.testing import FlaskClient
from rq import Queue
from rq.serializers import JSONSerializer
from sqlalchemy import text

from analytics.ingest import page_writes, writes
from analytics.ingest.writes import Item, Outcome, WriteRequest
from analytics.scores import catalog
from analytics.scores.catalog import Terms
from tenants import queue
from tenants import redis as tenants_redis
from tenants.db import tenant_tx, utcnow
from tests.committed_views import COMMITTED_VIEWS
from tests.people import Caller, client_of, user_of

Jobs = Callable[[], list[str]]


@pytest.fixture
def sender(client: FlaskClient, tenant: str) -> Caller:
    """A tenant app that writes pages and sends events."""
    return client_of(client, tenant, "pages:write", "events:write", "stats:read")


@pytest.fixture
def page(sender: Caller) -> str:
    return make_page(sender, "home")


@pytest.fixture
def admin(client: FlaskClient, tenant: str) -> Caller:
    """A tenant app with all rights, and a catalog of two actions."""
    with tenant_tx(tenant) as tx:
        for name, points in {"post": 10, "answer": 100}.items():
            catalog.put(tx, name, Terms(points=points), now=utcnow())
    return client_of(client, tenant)


@pytest.fixture
def player(admin: Caller, client: FlaskClient, tenant: str) -> Caller:
    """A user who can do the actions of `admin`'s catalog."""
    return user_of(client, tenant)


@pytest.fixture
def jobs(tenant: str) -> Jobs:
    """Reads the names of the jobs that are enqueued for the tenant."""

    def jobs() -> list[str]:
        redis = tenants_redis.queue().redis
        every = Queue(queue.QUEUE, connection=redis, serializer=JSONSerializer).get_jobs()
        return [str(job.func_name) for job in every if job.args == [tenant]]

    return jobs


def make_page(caller: Caller, external_id: str, **changes: str) -> str:
    body = {"space": "eng", "title": f"Page {external_id}", "url": f"https://wiki.example/{external_id}", **changes}
    answer = caller("PUT", f"/api/v1/pages/{external_id}", json=body)
    assert answer.status_code in {200, 201}, answer.text
    return external_id


def put_page(tenant: str, external_id: str, *, space: str = "eng", visibility: str = "private") -> int:
    """A page by the domain, without HTTP; returns its id."""
    with tenant_tx(tenant) as tx:
        address = f"https://wiki.example/{external_id}"
        saved = page_writes.put(
            tx, external_id, space=space, title=f"Page {external_id}", url=address, visibility=visibility, now=utcnow()
        )
        return saved.page.id


def write_events(tenant: str, *items: Item, now: datetime | None = None) -> list[Outcome]:
    """Write views and likes by the domain, without HTTP; returns what became of each."""
    request = WriteRequest(tenant, items, now or utcnow())
    with tenant_tx(tenant) as tx:
        writes.apply(tx, request)
    return request.outcomes


@contextmanager
def somebody_else_writes(tenant: str) -> Iterator[None]:
    """To all pages of the tenant, for as long as the block takes."""
    with tenant_tx(tenant, separate=True) as tx:
        tx.execute(text("SELECT FROM page_counters WHERE tenant_id = :tenant FOR UPDATE"), {"tenant": tenant})
        yield


def views_of(tenant: str, page: str | None = None) -> int:
    """Those that are counted, and those that wait to be."""
    with tenant_tx(tenant) as tx:
        return int(
            tx.execute(
                text(
                    f"SELECT coalesce(sum(v.views), 0) FROM {COMMITTED_VIEWS} v"
                    " JOIN pages p ON p.tenant_id = v.tenant_id AND p.id = v.page_id"
                    " WHERE CAST(:page AS text) IS NULL OR p.external_id = :page"
                ),
                {"page": page},
            ).scalar_one()
        )


def likes_of(tenant: str, page: str) -> tuple[int, int]:
    """The rows, and the counter: they must be the same."""
    with tenant_tx(tenant) as tx:
        found = tx.execute(
            text(
                "SELECT (SELECT count(liked_at) FROM page_likes l"
                " WHERE l.tenant_id = p.tenant_id AND l.page_id = p.id) AS rows, c.likes AS counter"
                " FROM pages p JOIN page_counters c ON c.tenant_id = p.tenant_id AND c.page_id = p.id"
                " WHERE p.external_id = :page"
            ),
            {"page": page},
        ).one()
        return int(found.rows), int(found.counter)
