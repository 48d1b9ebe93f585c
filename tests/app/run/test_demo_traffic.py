"""The demo's data: the same at every start, sent once, by nothing but the API."""

import contextlib
import threading
import urllib.error
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import text
from werkzeug.serving import make_server

from app.run import demo_traffic
from app.run.demo_traffic import Api, build_pages, history, rhythm
from tenants.db import tenant_tx, utcnow
from tests.analytics.conftest import views_of
from tests.people import client_of

MONDAY = datetime(2026, 6, 1, tzinfo=UTC)


@pytest.fixture
def api(app: Flask, client: FlaskClient, tenant: str) -> Iterator[Api]:
    """The API over HTTP, for a client of this test's tenant."""
    server = make_server("127.0.0.1", 0, app, threaded=True)  # a connection that is kept open occupies a thread
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    caller = client_of(client, tenant)
    try:
        yield Api(f"http://127.0.0.1:{server.server_port}", caller.id, caller.secret, demo_secret="")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_pages_are_the_same_at_every_start_and_a_few_have_most_readers() -> None:
    pages = build_pages()
    assert pages == build_pages()
    assert len({page.external_id for page in pages}) == len(pages) == 288
    assert {page.space for page in pages} == demo_traffic.SPACES.keys()
    weights = [page.weight for page in pages]
    assert weights == sorted(weights, reverse=True)
    assert sum(weights[:29]) > sum(weights) / 3


def test_the_history_has_the_same_ids_every_time_and_lies_in_its_days() -> None:
    pages = build_pages()
    events = list(history(pages, days=2, now=MONDAY))
    assert events == list(history(pages, days=2, now=MONDAY))
    assert [event["id"] for event in events] == [f"demo-{number}" for number in range(len(events))]
    times = [datetime.fromisoformat(event["occurred_at"]) for event in events]
    assert MONDAY - timedelta(days=2) <= min(times) <= max(times) < MONDAY
    likes = [event for event in events if event["type"] == "like"]
    assert 0 < len(likes) < len(events) / 10
    assert all(event["user"].startswith("reader-") for event in likes)


def test_mornings_are_busy_nights_are_quiet_and_weekends_quieter() -> None:
    def at(hour: int, day: int = 0) -> float:
        return rhythm(MONDAY + timedelta(days=day, hours=hour))

    assert at(11) > at(7) > at(3)
    for hour in (3, 11):
        assert at(hour, day=5) < at(hour)
    working_day = [at(hour) for hour in range(24)]
    assert 0.5 < sum(working_day) / 24 < 1.5


def test_an_interrupted_start_is_repeated_and_nothing_is_counted_twice(
    api: Api, tenant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, pages, marker = utcnow(), build_pages()[:3], tmp_path / "demo-seeded"
    monkeypatch.setattr(demo_traffic, "VIEWS_A_DAY", 2000)
    monkeypatch.setattr(demo_traffic, "datetime", type("Fixed", (datetime,), {"now": staticmethod(lambda _zone: now)}))
    views = [event for event in history(pages, days=1, now=now) if event["type"] == "view"]

    class Interrupted(Api):
        """Fails after the first batch."""

        batches = 0

        def call(self, method: str, path: str, body: Any = None) -> Any:
            self.batches += path == "/api/v1/events"
            if self.batches > 1:
                raise urllib.error.URLError("interrupted")
            return api.call(method, path, body)

    with contextlib.suppress(urllib.error.URLError):
        demo_traffic.seed(Interrupted("", "", "", demo_secret=""), pages, marker, days=1)
    assert not marker.exists()
    for _ in range(2):
        demo_traffic.seed(api, pages, marker, days=1)
        assert marker.exists()
        assert views_of(tenant) == len(views)
    with tenant_tx(tenant) as tx:
        assert tx.scalar(text("SELECT count(*) FROM pages")) == 3
        assert tx.scalar(text("SELECT count(*) FROM action_catalog")) == len(demo_traffic.ACTIONS)


def test_a_token_is_requested_when_one_is_needed_and_other_errors_are_not_hidden(api: Api) -> None:
    assert api.call("GET", "/api/v1/settings")["limits"]
    api._token = "expired"
    assert api.call("GET", "/api/v1/settings")["limits"]
    with pytest.raises(urllib.error.HTTPError) as refused:
        api.call("GET", "/api/v1/pages/nowhere/stats")
    assert refused.value.code == 404
    refused.value.close()
