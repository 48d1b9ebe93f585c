"""Views from browsers: which are counted, and which are refused."""

import pytest
from flask.testing import FlaskClient

from tests.analytics.conftest import make_page, views_of
from tests.attacks.conftest import admin, key
from tests.beacons import FIREFOX, send
from tests.people import Caller

__all__ = ["admin", "key"]


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


def test_an_address_is_limited(client: FlaskClient, admin: Caller, key: str, tenant: str) -> None:
    admin("PATCH", "/api/v1/settings", json={"limits": {"beacons_per_minute": 5}})
    statuses = [send(client, key, headers={"User-Agent": f"{FIREFOX} {n}"}).status_code for n in range(7)]
    assert statuses == [202] * 5 + [429] * 2
    limited = send(client, key, headers={"X-Forwarded-For": "9.9.9.9"})
    assert limited.status_code == 429
    assert "Retry-After" in limited.headers
    assert send(client, key, address="10.0.0.9").status_code == 202
    assert admin("GET", "/api/v1/ingest/rejections").get_json()["reasons"]["limited"] == 3


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


def test_the_script_may_be_loaded_by_any_site_and_kept_for_an_hour(client: FlaskClient) -> None:
    answer = client.get("/plaudit.js")
    assert answer.content_type == "text/javascript; charset=utf-8"
    assert answer.headers["Cross-Origin-Resource-Policy"] == "cross-origin"
    assert answer.headers["Cache-Control"] == "public, max-age=3600"
    assert "/api/v1/beacon" in answer.text
