"""Pages: made and changed idempotently by the tenant's own id."""

from typing import Any

import pytest
from sqlalchemy import text

from app.http import cursors
from tenants.db import tenant_tx
from tests.analytics.conftest import make_page, views_of
from tests.people import Caller

BODY = {"space": "eng", "title": "Home", "url": "https://wiki.example/home"}


def stale(tenant: str) -> int:
    with tenant_tx(tenant) as tx:
        return int(tx.execute(text("SELECT count(*) FROM outbox")).scalar_one())


def test_a_page_is_made_then_changed_then_left_alone(sender: Caller, tenant: str) -> None:
    made = sender("PUT", "/api/v1/pages/home", json=BODY)
    assert made.status_code == 201
    first: dict[str, Any] = made.get_json()
    assert (first["visibility"], first["owner"], first["space"]) == ("private", None, "eng")
    assert stale(tenant) == 1

    same = sender("PUT", "/api/v1/pages/home", json=BODY)
    assert (same.status_code, same.get_json()) == (200, first)
    assert stale(tenant) == 1, "nothing changed, nothing is stale"

    moved = sender("PUT", "/api/v1/pages/home", json={**BODY, "space": "ops", "visibility": "public", "owner": "u-1"})
    assert moved.status_code == 200
    body = moved.get_json()
    assert (body["id"], body["space"], body["visibility"], body["owner"]) == (first["id"], "ops", "public", "u-1")
    assert body["updated_at"] > first["updated_at"]
    assert stale(tenant) == 2

    kept = sender("PUT", "/api/v1/pages/home", json=BODY).get_json()
    assert (kept["visibility"], kept["owner"]) == ("public", "u-1"), "what is not said stays"
    assert sender("GET", "/api/v1/pages/home").get_json() == kept


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"space": "has space"}, "space"),
        ({"space": "a:b"}, "space"),
        ({"space": "x" * 65}, "space"),
        ({"title": ""}, "title"),
        ({"title": "x" * 501}, "title"),
        ({"title": "line\nbreak"}, "title"),
        ({"url": "javascript:alert(1)"}, "url"),
        ({"url": "//evil.example"}, "url"),
        ({"url": "/\\evil.example"}, "url"),
        ({"url": "/x\\y"}, "url"),
        ({"url": "https://wiki.example\\@evil.example"}, "url"),
        ({"url": "https:\\\\evil.example"}, "url"),
        ({"url": "https://"}, "url"),
        ({"url": "https://[bad"}, "url"),
        ({"visibility": "secret"}, "visibility"),
        ({"owner": "has space"}, "user"),
        ({"nonsense": 1}, "nonsense"),
        ({"title": None}, "title"),
    ],
)
def test_a_bad_page_is_refused_by_field(sender: Caller, changes: dict[str, Any], field: str) -> None:
    answer = sender("PUT", "/api/v1/pages/home", json={**BODY, **changes})
    assert answer.status_code == 422
    assert field in answer.get_json()["errors"]
    assert sender("GET", "/api/v1/pages/home").status_code == 404


@pytest.mark.parametrize("external_id", ["a b", "ü", "x" * 129, "%F0%9F%91%8F", "a;b"])
def test_an_impossible_id_is_422_when_written_and_404_when_read(sender: Caller, external_id: str) -> None:
    assert sender("PUT", f"/api/v1/pages/{external_id}", json=BODY).status_code == 422
    assert sender("GET", f"/api/v1/pages/{external_id}").status_code == 404
    assert sender("POST", f"/api/v1/pages/{external_id}/views").status_code == 404


def test_every_allowed_character_works_in_a_path(sender: Caller) -> None:
    external_id = "Az09._~:@-"
    assert sender("PUT", f"/api/v1/pages/{external_id}", json=BODY).status_code == 201
    assert sender("GET", f"/api/v1/pages/{external_id}").get_json()["external_id"] == external_id


def test_titles_may_be_in_any_script(sender: Caller) -> None:
    title = "<script>alert(1)</script> שלום 👏 Ünï"
    assert sender("PUT", "/api/v1/pages/x", json={**BODY, "title": title}).get_json()["title"] == title


def test_pages_are_listed_by_space_newest_first(sender: Caller) -> None:
    for number in range(25):
        make_page(sender, f"p{number:02}", space="a" if number % 2 else "b")
    seen: list[str] = []
    cursor = ""
    while True:
        answer = sender("GET", f"/api/v1/pages?space=a&limit=5{cursor}").get_json()
        seen += [item["external_id"] for item in answer["items"]]
        if answer["next_cursor"] is None:
            break
        cursor = f"&cursor={answer['next_cursor']}"
    assert seen == [f"p{number:02}" for number in range(23, 0, -2)]
    assert len(sender("GET", "/api/v1/pages?limit=100").get_json()["items"]) == 25
    assert sender("GET", "/api/v1/pages?space=none").get_json() == {"items": [], "next_cursor": None}
    for cursor in ("nonsense", cursors.encode(True), cursors.encode(2**63), cursors.encode(1.5)):
        assert sender("GET", f"/api/v1/pages?cursor={cursor}").get_json()["code"] == "invalid_cursor"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("title", "a" + " " * 500),
        ("title", " "),
        ("url", "/" + "\U0001f600" * 600),
        ("url", "https://wiki.example:99999/"),
        ("url", "javascript:alert(1)"),
    ],
)
def test_what_a_page_may_not_be_called(sender: Caller, field: str, value: str) -> None:
    body = {"space": "s", "title": "t", "url": "/x", field: value}
    answer = sender("PUT", "/api/v1/pages/x", json=body)
    assert (answer.status_code, list(answer.get_json()["errors"])) == (422, [field])


def test_a_series_of_impossible_times_is_refused(sender: Caller, page: str) -> None:
    for moment in ("0001-01-01T00:00:00%2B14:00", "9999-12-31T23:59:59-14:00"):
        for name in ("from", "to"):
            answer = sender("GET", f"/api/v1/pages/{page}/series?metric=views&{name}={moment}")
            assert answer.status_code == 422, answer.text


def test_a_deleted_page_takes_its_counts_along_and_can_be_made_anew(sender: Caller, tenant: str, page: str) -> None:
    sender("POST", f"/api/v1/pages/{page}/views")
    sender("PUT", f"/api/v1/pages/{page}/likes/u-1")
    before = stale(tenant)
    assert sender("DELETE", f"/api/v1/pages/{page}").status_code == 204
    assert stale(tenant) == before + 1, "boards must learn of it"
    assert sender("DELETE", f"/api/v1/pages/{page}").status_code == 404
    assert sender("POST", f"/api/v1/pages/{page}/views").status_code == 404
    assert views_of(tenant) == 0
    make_page(sender, page)
    assert sender("PUT", f"/api/v1/pages/{page}/likes/u-1").get_json() == {"liked": True, "likes": 1}
