"""What tests of boards share."""

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

import pytest
from flask.testing import FlaskClient
from redis.exceptions import TimeoutError as RedisTimeoutError

from analytics.boards import intents, page_numbers, projection
from analytics.boards.names import Board
from analytics.boards.page_numbers import COLUMNS, PageChange, PageNumbers
from analytics.ingest.pages import Page
from analytics.metrics import Value
from analytics.outbox import Kind
from tenants import redis
from tenants.db import tenant_tx, utcnow
from tests.analytics.conftest import make_page
from tests.people import Caller, client_of

BOARD = "/api/v1/leaderboards?scope=tenant&window=7d&metric=views"
# Sends so many views for each page, projects, and reads.
MakeBoard = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def no_cached_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may answer from its cache until it has received a change. (See tests/app/http/test_answer_cache.py.)"""
    monkeypatch.setattr("app.http.answer_cache.MAX_AGE_S", 0)
    monkeypatch.setattr("analytics.boards.reading.NO_RANKS_FOR_S", 0)


@pytest.fixture
def app_client(client: FlaskClient, tenant: str) -> Caller:
    return client_of(client, tenant)


@pytest.fixture
def board(app_client: Caller, tenant: str) -> MakeBoard:
    limits = count(100)

    def send(**views: int) -> dict[str, Any]:
        for name, number in views.items():
            make_page(app_client, name)
            events = [{"type": "view", "page": name}] * number
            if events:
                assert app_client("POST", "/api/v1/events", json={"events": events}).status_code == 202
        project(tenant)
        # A limit of its own for each read: an answer may be cached until its process receives the change.
        return read(app_client, f"{BOARD}&limit={next(limits)}")

    return send


def project(tenant: str) -> None:
    projection.project_all(tenant, now=utcnow)


def read(caller: Caller, path: str = BOARD, **options: Any) -> dict[str, Any]:
    answer = caller("GET", path, **options)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.get_json()
    return body


def order(answer: dict[str, Any]) -> list[tuple[int, str, float]]:
    return [(row["rank"], row["page"]["external_id"], row["value"]) for row in answer["items"]]


def save_page_numbers(tenant: str, page_id: int, *, shared: bool = False, **values: Value) -> None:
    """Save a page's numbers as a projection would; values that are not given are 0."""
    with tenant_tx(tenant) as tx:
        page = tx.get_one(Page, (tenant, page_id))
        public = page.visibility == "public"
        numbers = tuple(values.get(name, 0) for name in COLUMNS)
        now = PageNumbers(page.space_key, public, public and shared, page.updated_at, numbers)
        page_numbers.save(tx, [PageChange(page_id, None, now, None)], now=utcnow())


def note_failure() -> None:
    """As if Redis had not answered just now, and does again."""
    redis.boards().note_failure(RedisTimeoutError())
    redis.boards()._worked()


def leave_unfinished(tenant: str, *members: str, kind: Kind = Kind.PAGE) -> None:
    """As a projection does that could not write to Redis."""
    with tenant_tx(tenant) as tx:
        tx.run(*intents.recording(tenant, kind, {member: ["tenant"] for member in members}))


def put_back(boards: Iterable[Board]) -> Callable[[], None]:
    """Keeps how boards are in Redis now, and returns what makes them so again: as a server does that lost what came."""
    with redis.boards().client() as client:
        keys = [key for board in boards for key in (board.key, board.marker, board.lookup)]
        kept = {key: dumped for key in keys if (dumped := client.dump(key)) is not None}

    def restore() -> None:
        with redis.boards().client() as client:
            for key, value in kept.items():
                client.restore(key, 0, value, replace=True)

    return restore
