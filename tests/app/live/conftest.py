"""A live process for each file of tests, and a tenant's app."""

from collections.abc import Iterator

import pytest
import requests
from flask.testing import FlaskClient

from analytics.boards import projection
from app.run.data_folder import Addresses
from app.settings import Settings
from tenants.db import utcnow
from tests.live import Live
from tests.people import Caller, client_of

BOARD = {"scope": "tenant", "window": "7d", "metric": "likes"}
TOPIC = "tenant:7d:likes"


@pytest.fixture(scope="module")
def live(settings: Settings, addresses: Addresses) -> Iterator[Live]:
    with Live(settings, addresses) as running:
        yield running


@pytest.fixture
def wiki(client: FlaskClient, tenant: str) -> Caller:
    app = client_of(client, tenant)
    app("PUT", "/api/v1/pages/a", json={"space": "docs", "title": "A", "url": "/a", "visibility": "public"})
    return app


def like(wiki: Caller, user: str, page: str = "a") -> None:
    assert wiki("PUT", f"/api/v1/pages/{page}/likes/{user}").status_code == 200
    projection.project_all(wiki.tenant, now=utcnow)


def opened(live: Live, query: str, **headers: str) -> requests.Response:
    answer = requests.get(f"{live.url}/api/v1/live/events?{query}", stream=True, timeout=10, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    return answer
