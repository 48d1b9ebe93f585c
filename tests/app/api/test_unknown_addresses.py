"""Addresses of refused views over HTTP: listed for admins, made pages, dismissed."""

import json
from typing import Any

from flask.testing import FlaskClient

from tests.analytics.conftest import make_page, views_of
from tests.attacks.conftest import admin, key
from tests.beacons import ORIGIN, send
from tests.people import Caller, client_of, user_of

__all__ = ["admin", "key"]


def view(client: FlaskClient, key: str, path: str, address: str = "10.0.0.1", **fields: str) -> dict[str, Any]:
    body = json.dumps({"url": f"{ORIGIN}{path}", **fields})
    answer: dict[str, Any] = send(client, key, body, address=address).get_json()
    return answer


def unknown(caller: Caller, **query: Any) -> list[tuple[str, int]]:
    items = caller("GET", "/api/v1/ingest/unknown", query_string=query).get_json()["items"]
    return [(item["url"], item["count"]) for item in items]


def test_refused_addresses_are_listed_the_most_counted_first(client: FlaskClient, admin: Caller, key: str) -> None:
    admin("PATCH", "/api/v1/settings", json={"space_rules": [{"prefix": "/docs/", "space": "docs"}]})
    for path in ("/docs/a?id=1", "/b", "/docs/a?id=2&utm_source=x", "/home", "/c?name=ada", "/docs/a/?id=3#x"):
        view(client, key, path)
    send(client, key, '{"url": "https://evil.example/phishing"}')
    send(client, key, '{"page": "no-such-page"}')
    seen: list[dict[str, Any]] = []
    query: dict[str, Any] | None = {"limit": 1}
    while query is not None:
        answer = admin("GET", "/api/v1/ingest/unknown", query_string=query).get_json()
        seen += answer["items"]
        query = {"limit": 1, "cursor": answer["next_cursor"]} if answer["next_cursor"] else None
    first, *others = seen
    assert (first["url"], first["count"]) == (f"{ORIGIN}/docs/a?id=*", 3)
    assert {item["url"]: item["count"] for item in others} == {f"{ORIGIN}/b": 1, f"{ORIGIN}/c?name=*": 1}
    assert (first["space"], first["visibility"], first["title"]) == ("docs", "private", None)
    assert first["first_seen"] <= first["last_seen"]
    assert admin("GET", "/api/v1/ingest/rejections").get_json()["reasons"] == {"unknown_page": 7}


def test_a_listed_address_becomes_a_page_and_its_views_count(
    client: FlaskClient, admin: Caller, key: str, tenant: str
) -> None:
    view(client, key, "/docs/a?id=1")
    made = admin("POST", "/api/v1/ingest/unknown/pages", json={"url": f"{ORIGIN}/docs/a?id=*"})
    assert made.status_code == 201, made.text
    page = made.get_json()
    assert (page["url"], page["title"]) == (f"{ORIGIN}/docs/a", "a")
    assert (page["space"], page["visibility"]) == ("web", "private")
    assert unknown(admin) == []
    assert view(client, key, "/docs/a?id=2")["accepted"] == 1
    assert views_of(tenant, page["external_id"]) == 1
    view(client, key, "/b")
    wanted = {"space": "eng", "title": "B", "visibility": "public"}
    chosen = admin("POST", "/api/v1/ingest/unknown/pages", json={"url": f"{ORIGIN}/b", **wanted}).get_json()
    assert wanted.items() <= chosen.items()


def test_an_address_is_listed_once_whatever_its_form_and_leaves_when_it_makes_itself(
    client: FlaskClient, admin: Caller
) -> None:
    origins = ["http://wiki.example", "https://www.wiki.example", ORIGIN]
    key = str(admin("POST", "/api/v1/keys", json={"origins": origins}).get_json()["key"])
    for origin in origins:
        for path in ("/a", "/b?id=1", "/b?id=1&c=2"):
            send(client, key, json.dumps({"url": origin + path}))
    assert sorted(unknown(admin)) == [(f"{ORIGIN}/a", 3), (f"{ORIGIN}/b?c=*&id=*", 3), (f"{ORIGIN}/b?id=*", 3)]
    admin("PATCH", "/api/v1/settings", json={"auto_pages": True})
    for path in ("/a", "/b?id=1"):
        assert send(client, key, json.dumps({"url": f"https://www.wiki.example{path}"})).get_json()["accepted"] == 1
    assert unknown(admin) == [(f"{ORIGIN}/b?c=*&id=*", 3)]
    assert {page["url"] for page in admin("GET", "/api/v1/pages").get_json()["items"]} >= {
        "https://www.wiki.example/a",
        "https://www.wiki.example/b?id=1",
    }


def test_what_is_not_listed_or_not_right_is_refused(client: FlaskClient, admin: Caller, key: str) -> None:
    view(client, key, "/late")
    for body, status in (
        ({"url": f"{ORIGIN}/never"}, 404),
        ({}, 422),
        ({"url": f"{ORIGIN}/late", "space": "no key"}, 422),
        ({"url": f"{ORIGIN}/late", "visibility": "secret"}, 422),
        ({"url": f"{ORIGIN}/late", "owner": "me"}, 422),
    ):
        assert admin("POST", "/api/v1/ingest/unknown/pages", json=body).status_code == status, body
    assert unknown(admin) == [(f"{ORIGIN}/late", 1)], "a refusal changes nothing"
    assert admin("DELETE", "/api/v1/ingest/unknown").status_code == 422
    for status in (204, 404):
        answer = admin("DELETE", "/api/v1/ingest/unknown", query_string={"url": f"{ORIGIN}/late"})
        assert answer.status_code == status
    assert unknown(admin) == []
    view(client, key, "/late")
    make_page(admin, "late", url="http://www.wiki.example/late/")
    assert unknown(admin) == [], "it is a page by now"
    taken = admin("POST", "/api/v1/ingest/unknown/pages", json={"url": f"{ORIGIN}/late"})
    assert (taken.status_code, taken.get_json()["code"], taken.get_json()["page"]) == (409, "duplicate_url", "late")


def test_who_sees_rejections_sees_them_and_who_writes_pages_makes_them(
    client: FlaskClient, admin: Caller, key: str, tenant: str
) -> None:
    view(client, key, "/a")
    make = ("POST", "/api/v1/ingest/unknown/pages", {"json": {"url": f"{ORIGIN}/a"}})
    dismiss = ("DELETE", "/api/v1/ingest/unknown", {"query_string": {"url": f"{ORIGIN}/a"}})
    see: tuple[str, str, dict[str, Any]] = ("GET", "/api/v1/ingest/unknown", {})
    for caller, refused, allowed in (
        (user_of(client, tenant), [see, make, dismiss], []),
        (client_of(client, tenant, "stats:read"), [see, make, dismiss], []),
        (client_of(client, tenant, "events:write"), [make, dismiss], [see]),
        (client_of(client, tenant, "pages:write"), [see], [make]),
    ):
        for method, path, options in refused:
            assert caller(method, path, **options).status_code == 403, (method, path)
        for method, path, options in allowed:
            assert caller(method, path, **options).status_code in {200, 201}, (method, path)


def test_with_auto_pages_the_first_view_makes_the_page_and_counts(
    client: FlaskClient, admin: Caller, key: str, tenant: str
) -> None:
    assert view(client, key, "/self")["rejected"][0]["code"] == "unknown_page"
    admin("PATCH", "/api/v1/settings", json={"auto_pages": True, "limits": {"auto_pages_per_day": 1}})
    assert view(client, key, "/self?sort=up", title="About\n us", canonical=f"{ORIGIN}/self")["accepted"] == 1
    assert unknown(admin) == []
    assert view(client, key, "/self?utm_source=mail", address="10.0.0.2")["accepted"] == 1
    assert views_of(tenant) == 2
    (page, _) = admin("GET", "/api/v1/pages").get_json()["items"]
    assert (page["url"], page["title"], page["visibility"]) == (f"{ORIGIN}/self", "About us", "private")
    refused = view(client, key, "/one-too-many?sort=up", title="Too many", canonical=f"{ORIGIN}/one-too-many")
    assert refused["rejected"][0]["code"] == "unknown_page"
    (listed,) = admin("GET", "/api/v1/ingest/unknown").get_json()["items"]
    assert (listed["url"], listed["title"]) == (f"{ORIGIN}/one-too-many", "Too many")
    assert send(client, key, '{"url": "https://evil.example/x"}').get_json()["rejected"]
    make_page(admin, "own")
    assert send(client, key, '{"page": "unknown-id"}').get_json()["rejected"], "an id makes no page"
