"""Views and likes from browsers: which are counted, and which are refused."""

import json
from typing import Any

import pytest
from flask.testing import FlaskClient
from sqlalchemy import text

from tenants.db import owner_tx, utcnow
from tenants.reader_signatures import sign
from tests.analytics.conftest import likes_of, make_page, views_of
from tests.analytics.ingest.test_visitors import visitors_of
from tests.attacks.conftest import admin, key
from tests.beacons import FIREFOX, ORIGIN, send
from tests.people import Caller

__all__ = ["admin", "key"]

ACCEPTED = {"accepted": 1, "duplicates": 0, "rejected": []}
DUPLICATE = {"accepted": 0, "duplicates": 1, "rejected": []}


def age_loads(tenant: str, seconds: int) -> None:
    """As if all page loads so far had happened this much earlier."""
    with owner_tx() as tx:
        earlier = "(loaded_at AT TIME ZONE 'UTC' - :age * interval '1 second') AT TIME ZONE 'UTC'"
        statement = f"UPDATE page_visitors SET loaded_at = {earlier} WHERE tenant_id = :t"
        tx.execute(text(statement), {"age": seconds, "t": tenant})


def test_a_view_is_a_page_load_that_is_no_repeat_and_a_visitor_is_counted_once_a_day(
    client: FlaskClient, admin: Caller, key: str, tenant: str
) -> None:
    make_page(admin, "other")
    admin("PATCH", "/api/v1/settings", json={"limits": {"visitor_views_per_day": 3}})
    assert send(client, key).get_json() == ACCEPTED
    age_loads(tenant, 9)
    assert send(client, key).get_json() == DUPLICATE
    for expected in (ACCEPTED, ACCEPTED, DUPLICATE):
        age_loads(tenant, 10)
        assert send(client, key).get_json() == expected
    assert (views_of(tenant), visitors_of(tenant)) == (3, 1)
    for changes in (
        {"body": '{"page": "other"}'},
        {"address": "10.0.0.2"},
        {"headers": {"User-Agent": FIREFOX + " x"}},
    ):
        assert send(client, key, **changes).get_json() == ACCEPTED
    assert (views_of(tenant), visitors_of(tenant)) == (6, 4)


def test_a_hundred_colleagues_behind_one_address_all_count_and_a_loop_does_not(
    client: FlaskClient, admin: Caller, key: str, tenant: str
) -> None:
    make_page(admin, "looped")
    for colleague in range(100):
        assert send(client, key, headers={"User-Agent": f"{FIREFOX} {colleague}"}).get_json() == ACCEPTED
    assert (views_of(tenant, "home"), visitors_of(tenant)) == (100, 100)
    for _ in range(100):
        assert send(client, key, '{"page": "looped"}').status_code == 202
    assert (views_of(tenant, "looped"), visitors_of(tenant)) == (1, 101)


def test_one_address_has_a_bounded_number_of_visitors_a_page_but_for_readers_with_a_name(
    client: FlaskClient, admin: Caller, tenant: str
) -> None:
    created = admin("POST", "/api/v1/keys", json={"origins": [ORIGIN]}).get_json()
    admin("PATCH", "/api/v1/settings", json={"limits": {"visitors_per_address": 2}})
    answers = [
        send(client, created["key"], headers={"User-Agent": f"{FIREFOX} {n}"}).get_json() for n in (1, 2, 3, 4, 1)
    ]
    assert answers[:2] == [ACCEPTED] * 2
    assert [answer["rejected"][0]["code"] for answer in answers[2:4]] == ["limited"] * 2
    assert answers[4] == DUPLICATE
    for reader in ("ada", "bob", "cy"):
        assert send(client, created["key"], signed(created, tenant, reader)).get_json() == ACCEPTED
    assert send(client, created["key"], address="10.0.0.2").get_json() == ACCEPTED
    assert (views_of(tenant), visitors_of(tenant)) == (6, 6)
    assert admin("GET", "/api/v1/ingest/rejections").get_json()["reasons"] == {"limited": 2}


def signed(created: dict[str, Any], tenant: str, user: str, **more: str) -> str:
    signature = sign(created["signing_secret"], tenant, user, at=int(utcnow().timestamp()))
    return json.dumps({"page": "home", "user": user, "user_signature": signature, **more})


def test_a_signed_reader_likes_and_is_the_same_visitor_from_every_browser_and_server(
    client: FlaskClient, admin: Caller, tenant: str
) -> None:
    created = admin("POST", "/api/v1/keys", json={"origins": [ORIGIN]}).get_json()
    key = created["key"]
    like, unlike = (signed(created, tenant, "ada", type=name) for name in ("like", "unlike"))
    assert [send(client, key, like).get_json() for _ in range(2)] == [ACCEPTED] * 2
    assert likes_of(tenant, "home") == (1, 1)
    assert admin("GET", "/api/v1/users/ext:ada").status_code == 200
    assert send(client, key, unlike).get_json() == ACCEPTED
    assert likes_of(tenant, "home") == (0, 0)
    assert send(client, key, signed(created, tenant, "ada")).get_json() == ACCEPTED
    assert send(client, key, signed(created, tenant, "ada"), address="10.0.0.7").get_json() == DUPLICATE
    admin("POST", "/api/v1/pages/home/views", json={"user": "ada"})
    assert (views_of(tenant), visitors_of(tenant)) == (2, 1)


def test_a_like_needs_a_valid_signature_and_a_view_without_one_is_anonymous(
    client: FlaskClient, admin: Caller, tenant: str
) -> None:
    created = admin("POST", "/api/v1/keys", json={"origins": [ORIGIN]}).get_json()
    key, like = created["key"], signed(created, tenant, "ada", type="like")
    assert send(client, key, '{"page": "home", "type": "like"}').status_code == 422
    assert send(client, key, like.replace('"ada"', '"bob"')).get_json()["code"] == "invalid_signature"
    assert send(client, key, json.dumps({**json.loads(like), "type": "view", "user": "bob"})).get_json() == ACCEPTED
    assert send(client, key).get_json() == DUPLICATE, "it was counted as an anonymous view"
    renewed = admin("POST", f"/api/v1/keys/{key}/signing-secret").get_json()
    assert renewed["signing_secret"] != created["signing_secret"]
    assert send(client, key, like).status_code == 403
    assert send(client, key, signed(renewed, tenant, "ada", type="like")).get_json() == ACCEPTED
    listed = admin("GET", "/api/v1/keys").text
    assert "signing_secret" not in listed


def test_an_address_and_a_visitor_are_limited_by_what_was_accepted(
    client: FlaskClient, admin: Caller, key: str, tenant: str
) -> None:
    make_page(admin, "other")
    limits = {"beacons_per_minute": 5, "visitor_beacons_per_minute": 2}
    admin("PATCH", "/api/v1/settings", json={"limits": limits})
    visitor = {"User-Agent": f"{FIREFOX} 0"}
    assert [send(client, key, headers=visitor).status_code for _ in range(5)] == [202] * 5, "duplicates use up nothing"
    assert send(client, key, '{"page": "other"}', headers=visitor).get_json() == ACCEPTED
    assert send(client, key, headers=visitor).status_code == 429
    statuses = [send(client, key, headers={"User-Agent": f"{FIREFOX} {n}"}).status_code for n in range(1, 6)]
    assert statuses == [202] * 3 + [429] * 2
    limited = send(client, key, headers={"X-Forwarded-For": "9.9.9.9"})
    assert limited.status_code == 429
    assert "Retry-After" in limited.headers
    assert send(client, key, address="10.0.0.9").status_code == 202
    assert admin("GET", "/api/v1/ingest/rejections").get_json()["reasons"]["limited"] == 4


def test_duplicates_use_up_a_limit_of_their_own(client: FlaskClient, admin: Caller, key: str) -> None:
    admin("PATCH", "/api/v1/settings", json={"limits": {"beacons_per_minute": 3}})
    assert [send(client, key).status_code for _ in range(6)] == [202] * 4 + [429] * 2
    assert send(client, key, address="10.0.0.9").status_code == 202


def test_refused_beacons_use_up_a_limit_of_their_own(client: FlaskClient, admin: Caller, key: str) -> None:
    admin("PATCH", "/api/v1/settings", json={"limits": {"beacons_per_minute": 3}})
    refused = [send(client, key, '{"page": "nowhere"}') for _ in range(3)]
    assert [answer.get_json()["rejected"][0]["code"] for answer in refused] == ["unknown_page"] * 3
    assert send(client, key, headers={"User-Agent": "curl/8"}).status_code == 429, "before the agent is read"
    admin("PATCH", "/api/v1/settings", json={"limits": {"beacons_per_minute": 4}})
    for number in range(4):
        assert send(client, key, headers={"User-Agent": f"{FIREFOX} {number}"}).get_json() == ACCEPTED


def test_likes_with_a_bad_signature_are_counted_and_limited(client: FlaskClient, admin: Caller, key: str) -> None:
    admin("PATCH", "/api/v1/settings", json={"limits": {"beacons_per_minute": 3}})
    like = '{"page": "home", "type": "like", "user": "ada", "user_signature": "1.x"}'
    assert [send(client, key, like).status_code for _ in range(5)] == [403] * 3 + [429] * 2
    assert admin("GET", "/api/v1/ingest/rejections").get_json()["reasons"] == {"invalid": 3, "limited": 2}


def test_an_address_is_compared_as_browsers_mean_it_and_a_path_is_valid_on_every_allowed_origin(
    client: FlaskClient, admin: Caller, tenant: str
) -> None:
    origins = ["https://wiki.example", "https://other.example:8443"]
    key = str(admin("POST", "/api/v1/keys", json={"origins": origins}).get_json()["key"])
    for name, url in {
        "path": "/Grüße/",
        "absolute": "https://other.example:8443/gr%C3%BC",
        "same": "/gr%C3%BC",
    }.items():
        make_page(admin, name, url=url)
    for number, (url, page) in enumerate(
        {
            "http://www.Wiki.example:80/home/?fbclid=1#top": "home",
            "https://wiki.example/Gr%c3%bc%C3%9Fe": "path",
            "https://other.example:8443/x/../Gr%C3%BC%C3%9Fe?ref=y": "path",
            "https://other.example:8443/grü": "absolute",
            "https://wiki.example/grü?x=1": "same",
            "https://elsewhere.example/Gr%C3%BC%C3%9Fe": None,
        }.items()
    ):
        before = views_of(tenant, page) if page else 0
        answer = send(client, key, json.dumps({"url": url}), address=f"10.0.2.{number}").get_json()
        assert answer["accepted"] == int(page is not None), url
        assert page is None or views_of(tenant, page) == before + 1, url


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
    canonical = '{"url": "https://wiki.example/print/home", "canonical": "https://wiki.example/home", "title": "Home"}'
    assert send(client, key, canonical, address="10.0.2.1").get_json() == ACCEPTED


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("", 400),
        ("x", 400),
        ("[]", 422),
        ("{}", 422),
        ('{"page": 5}', 422),
        ('{"page": "home", "url": "x"}', 422),
        ('{"page": "home", "type": "action"}', 422),
        ('{"page": "home", "user": "a b", "user_signature": "x"}', 422),
        ('{"page": "home", "unknown": "x"}', 422),
        ('{"page": "' + "x" * 4084 + '"}', 202),
        ('{"page": "' + "x" * 4085 + '"}', 413),
        ('{"page": "' + "x" * 20_000 + '"}', 413),
    ],
)
def test_a_bad_beacon_is_4xx_and_one_above_4_kib_413(client: FlaskClient, key: str, body: str, status: int) -> None:
    assert send(client, key, body).status_code == status
