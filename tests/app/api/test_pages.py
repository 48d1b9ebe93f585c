"""Pages over HTTP: their ids in addresses, lists, counts over time."""

import pytest

from app.http import cursors
from tests.analytics.conftest import make_page
from tests.people import Caller

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


def test_a_series_of_impossible_times_is_refused(sender: Caller, page: str) -> None:
    for moment in ("0001-01-01T00:00:00%2B14:00", "9999-12-31T23:59:59-14:00"):
        for name in ("from", "to"):
            answer = sender("GET", f"/api/v1/pages/{page}/series?metric=views&{name}={moment}")
            assert answer.status_code == 422, answer.text
