"""The beacon: no robots, no loops, nothing personal kept."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from flask.testing import FlaskClient
from sqlalchemy import text

from app.settings import Settings
from app.web import create_app
from tenants import redis as tenants_redis
from tenants.db import owner_tx
from tests.analytics.conftest import views_of
from tests.analytics.ingest.test_visitors import visitors_of
from tests.beacons import FIREFOX, send
from tests.people import Caller


def test_repeated_beacons_of_one_visitor_count_once_without_redis_too(
    settings: Settings, admin: Caller, key: str, tenant: str
) -> None:
    away = create_app(replace(settings, redis_url="redis://127.0.0.1:1/0")).test_client()
    assert [send(away, key).get_json()["accepted"] for _ in range(5)] == [1, 0, 0, 0, 0]
    assert views_of(tenant) == 1


def test_one_visitor_at_once_from_twenty_tabs_counts_once(
    client: FlaskClient, admin: Caller, key: str, tenant: str
) -> None:
    app = client.application
    with ThreadPoolExecutor(20) as tabs:
        answers = [*tabs.map(lambda _: send(app.test_client(), key).get_json(), range(20))]
    assert sum(answer["accepted"] for answer in answers) == 1
    assert sum(answer["duplicates"] for answer in answers) == 19
    assert (views_of(tenant), visitors_of(tenant)) == (1, 1)


@pytest.mark.parametrize(
    "agent",
    ["Googlebot/2.1 (+http://www.google.com/bot.html)", "curl/8.5.0", "python-requests/2.32", "", "HeadlessChrome"],
)
def test_a_robots_view_is_rejected_with_its_reason(
    client: FlaskClient, admin: Caller, key: str, tenant: str, agent: str
) -> None:
    answer = send(client, key, headers={"User-Agent": agent})
    assert answer.status_code == 202
    assert answer.get_json()["rejected"][0]["code"] == "bot"
    assert views_of(tenant) == 0
    assert admin("GET", "/api/v1/ingest/rejections").get_json()["reasons"] == {"bot": 1}


def test_neither_address_nor_agent_is_stored(client: FlaskClient, admin: Caller, key: str, settings: Settings) -> None:
    agent, address = FIREFOX + " canary-agent", "10.99.88.77"
    for body, field in (
        ('{"page": "home"}', "accepted"),
        ('{"url": "https://wiki.example/x?y=canary-agent"}', "rejected"),
    ):
        answer = send(client, key, body, headers={"User-Agent": agent}, address=address).get_json()
        assert answer[field], answer
    tables = ("page_views_hour", "outbox", "seen_events", "page_visitors", "page_visitor_networks", "unknown_addresses")
    with owner_tx() as tx:
        for table in tables:
            for row in tx.execute(text(f"SELECT x::text FROM {table} x")).scalars():
                assert address not in row
                assert "canary-agent" not in row
        assert tx.scalar(text("SELECT count(*) FROM page_visitor_networks")), "there is something to search"
    redis = tenants_redis.make_client(settings.redis_url or "", timeout_s=5)
    names = [name.decode() for name in redis.scan_iter("lim*")]
    redis.close()
    assert names
    assert not any(address in name or "canary" in name for name in names)
