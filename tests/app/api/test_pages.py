"""Pages over HTTP: their ids in addresses, lists, counts over time."""

from typing import Any

import pytest
from flask.testing import FlaskClient

from app.http import cursors
from tests.analytics.conftest import make_page
from tests.people import Caller, client_of

BODY = {"space": "eng", "title": "Home", "url": "https://wiki.example/home"}


@pytest.mark.parametrize("external_id", ["a b", "ü", "x" * 129, "%F0%9F%91%8F", "a;b"])
def test_an_impossible_id_is_422_when_written_and_404_when_read(sender: Caller, external_id: str) -> None:
    assert sender("PUT", f"/api/v1/pages/{external_id}", json=BODY).status_code == 422
    assert sender("GET", f"/api/v1/pages/{external_id}").status_code == 404
    assert sender("POST", f"/api/v1/pages/{external_id}/views").status_code == 404


def test_every_allowed_character_works_in_a_path(sender: Caller) -> None:
    external_id = "Az09._~:@-"
    assert sender("PUT", f"/api/v1/pages/{external_id}", json=BODY).status_code == 201
    assert sender("GET", f"/api/v1/pages/{external_id}").get_json()["external_id"] == external_id


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


def test_a_page_with_the_address_of_another_is_refused_and_names_it(sender: Caller) -> None:
    sender("PUT", "/api/v1/pages/home", json=BODY)
    refused = sender(
        "PUT", "/api/v1/pages/other", json={**BODY, "url": "http://WWW.wiki.example:80/home/?utm_source=x"}
    )
    problem = refused.get_json()
    assert (refused.status_code, problem["code"], problem["page"]) == (409, "duplicate_url", "home")
    assert "'home'" in problem["detail"]
    assert sender("PUT", "/api/v1/pages/home", json={**BODY, "title": "New"}).status_code == 200, "it keeps its own"


def test_pages_are_written_in_one_call_each_accepted_or_rejected_alone(sender: Caller, client: FlaskClient) -> None:
    make_page(sender, "home")
    items: list[Any] = [
        {**BODY, "external_id": "a", "url": "/a", "owner": "u-1", "visibility": "public"},
        {**BODY, "external_id": "home", "title": "New"},
        {**BODY, "external_id": "b"},
        {**BODY, "external_id": "has space", "url": "/c"},
        {**BODY, "external_id": "d", "url": "/d", "nonsense": 1},
        {"external_id": "e"},
        "f",
        {**BODY, "external_id": "g", "url": "/g", "visibility": "secret"},
    ]
    headers = {"Idempotency-Key": "k"}
    answer = sender("POST", "/api/v1/pages", json={"pages": items}, headers=headers)
    assert answer.status_code == 200
    body = answer.get_json()
    assert (body["created"], body["updated"]) == (1, 1)
    assert [(one["index"], one["code"]) for one in body["rejected"]] == [
        (2, "duplicate_url"),
        *((index, "invalid") for index in (3, 4, 5, 6, 7)),
    ]
    assert "'home'" in body["rejected"][0]["detail"]
    assert "space: " in body["rejected"][3]["detail"]
    page = sender("GET", "/api/v1/pages/a").get_json()
    assert (page["owner"], page["visibility"]) == ("u-1", "public")
    again = sender("POST", "/api/v1/pages", json={"pages": items}, headers=headers)
    assert (again.headers["Idempotent-Replay"], again.get_json()) == ("true", body)
    impossible: list[Any] = [{"pages": []}, {"pages": items * 126}, {"pages": "x"}, {}, {"pages": items, "x": 1}]
    for wrong in impossible:
        assert sender("POST", "/api/v1/pages", json=wrong).status_code == 422
    reader = client_of(client, sender.tenant, "stats:read")
    assert reader("POST", "/api/v1/pages", json={"pages": items}).status_code == 403


def test_a_series_of_impossible_times_is_refused(sender: Caller, page: str) -> None:
    for moment in ("0001-01-01T00:00:00%2B14:00", "9999-12-31T23:59:59-14:00"):
        for name in ("from", "to"):
            answer = sender("GET", f"/api/v1/pages/{page}/series?metric=views&{name}={moment}")
            assert answer.status_code == 422, answer.text
