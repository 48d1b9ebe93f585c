"""The beacon: only from allowed origins, no robots, no loops, nothing personal kept."""

from dataclasses import replace
from typing import Any

import pytest
from flask.testing import FlaskClient
from sqlalchemy import text
from werkzeug.test import TestResponse

from app.settings import Settings
from app.web import create_app
from tenants import redis as tenants_redis
from tenants import settings as tenant_settings
from tenants.db import owner_tx
from tests.analytics.conftest import make_page, views_of
from tests.attacks.conftest import ORIGIN
from tests.people import Caller

FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:130.0) Gecko/20100101 Firefox/130.0"


def send(http: FlaskClient, key: str, body: str = '{"page": "home"}', **changes: Any) -> TestResponse:
    headers = {"Origin": ORIGIN, "User-Agent": FIREFOX, **changes.pop("headers", {})}
    address = changes.pop("address", "10.0.0.1")
    headers = {name: value for name, value in headers.items() if value is not None}
    return http.post(
        f"/api/v1/beacon?key={key}",
        data=body,
        content_type="text/plain",
        headers=headers,
        environ_base={"REMOTE_ADDR": address},
        **changes,
    )


def test_a_visitor_counts_once_per_page_in_half_an_hour(
    client: FlaskClient, admin: Caller, key: str, tenant: str
) -> None:
    make_page(admin, "other")
    assert send(client, key).get_json() == {"accepted": 1, "duplicates": 0, "rejected": []}
    for _ in range(5):
        assert send(client, key).get_json() == {"accepted": 0, "duplicates": 1, "rejected": []}
    assert send(client, key, '{"page": "other"}').get_json()["accepted"] == 1
    assert send(client, key, address="10.0.0.2").get_json()["accepted"] == 1
    assert send(client, key, headers={"User-Agent": FIREFOX + " Other"}).get_json()["accepted"] == 1
    assert views_of(tenant) == 4


def test_a_loop_of_curl_wins_nothing_without_redis_either(
    settings: Settings, admin: Caller, key: str, tenant: str
) -> None:
    away = create_app(replace(settings, redis_url="redis://127.0.0.1:1/0")).test_client()
    assert [send(away, key).get_json()["accepted"] for _ in range(5)] == [1, 0, 0, 0, 0]
    assert views_of(tenant) == 1


@pytest.mark.parametrize(
    "agent",
    ["Googlebot/2.1 (+http://www.google.com/bot.html)", "curl/8.5.0", "python-requests/2.32", "", "HeadlessChrome"],
)
def test_robots_are_refused_and_told_so(client: FlaskClient, admin: Caller, key: str, tenant: str, agent: str) -> None:
    answer = send(client, key, headers={"User-Agent": agent})
    assert answer.status_code == 202
    assert answer.get_json()["rejected"][0]["code"] == "bot"
    assert views_of(tenant) == 0
    assert admin("GET", "/api/v1/ingest/rejections").get_json()["reasons"] == {"bot": 1}


def test_an_address_is_limited(client: FlaskClient, admin: Caller, key: str, tenant: str) -> None:
    admin("PATCH", "/api/v1/settings", json={"limits": {"beacons_per_minute": 5}})
    tenant_settings._recent.clear()
    statuses = [send(client, key, headers={"User-Agent": f"{FIREFOX} {n}"}).status_code for n in range(7)]
    assert statuses == [202] * 5 + [429] * 2
    limited = send(client, key, headers={"X-Forwarded-For": "9.9.9.9"})
    assert limited.status_code == 429
    assert "Retry-After" in limited.headers
    assert send(client, key, address="10.0.0.9").status_code == 202
    assert admin("GET", "/api/v1/ingest/rejections").get_json()["reasons"]["limited"] == 3


@pytest.mark.parametrize(
    "origin", [None, "null", "https://evil.example", "http://wiki.example", "https://wiki.example.evil"]
)
def test_only_from_an_allowed_origin(
    client: FlaskClient, admin: Caller, key: str, tenant: str, origin: str | None
) -> None:
    answer = send(client, key, headers={"Origin": origin})
    assert (answer.status_code, answer.get_json()["code"]) == (403, "origin_not_allowed")
    assert views_of(tenant) == 0


def test_the_tenants_own_origins_count_for_every_key(client: FlaskClient, admin: Caller, key: str) -> None:
    admin("PATCH", "/api/v1/settings", json={"allowed_origins": ["https://docs.example"]})
    assert send(client, key, headers={"Origin": "https://docs.example"}).status_code == 202


@pytest.mark.parametrize("key", ["", "pk_", "pk_nobody_AAAAAAAAAAAA", "pk_../x_AAAAAAAAA", "sk_abc", "x" * 500])
def test_a_wrong_key_is_401(client: FlaskClient, connected: None, key: str) -> None:
    answer = send(client, key)
    assert answer.status_code == 401


def test_a_revoked_key_is_out_at_once(client: FlaskClient, admin: Caller, key: str) -> None:
    assert send(client, key).status_code == 202
    assert admin("DELETE", f"/api/v1/keys/{key}").status_code == 204
    assert send(client, key).status_code == 401


def test_a_page_is_found_by_its_address(client: FlaskClient, admin: Caller, key: str, tenant: str) -> None:
    make_page(admin, "q", url="https://wiki.example/show?id=5")
    for number, (url, known) in enumerate(
        {
            "https://wiki.example/home": True,
            "https://wiki.example/home?utm_source=x#top": True,
            "https://wiki.example/show?id=5": True,
            "https://wiki.example/show?id=6": False,
            "https://evil.example/home": False,
            "": False,
        }.items()
    ):
        answer = send(client, key, f'{{"url": "{url}"}}', address=f"10.0.1.{number}").get_json()
        assert answer["accepted"] == int(known), url
        assert known or answer["rejected"][0]["code"] == "unknown_page"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("", 400),
        ("x", 400),
        ("[]", 422),
        ("{}", 422),
        ('{"page": 5}', 422),
        ('{"page": "home", "url": "x"}', 422),
        ('{"page": "home", "user": "u"}', 422),
        ('{"page": "' + "x" * 5000 + '"}', 400),
    ],
)
def test_a_bad_beacon_is_4xx(client: FlaskClient, key: str, body: str, status: int) -> None:
    assert send(client, key, body).status_code == status


def test_neither_address_nor_agent_is_stored(client: FlaskClient, admin: Caller, key: str, settings: Settings) -> None:
    agent, address = FIREFOX + " canary-agent", "10.99.88.77"
    assert send(client, key, headers={"User-Agent": agent}, address=address).get_json()["accepted"] == 1
    with owner_tx() as tx:
        for table in ("page_views_hour", "outbox", "seen_events"):
            for row in tx.execute(text(f"SELECT x::text FROM {table} x")).scalars():
                assert address not in row
                assert "canary-agent" not in row
    redis = tenants_redis.make_client(settings.redis_url or "", timeout_s=5)
    names = [name.decode() for name in redis.scan_iter("visit:*")]
    redis.close()
    assert names
    assert not any(address in name or "canary" in name for name in names)
