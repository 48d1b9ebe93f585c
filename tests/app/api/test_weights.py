"""The weights of the score over HTTP."""

from datetime import timedelta
from typing import Any

import pytest

from tenants.db import utcnow
from tests.people import Caller


@pytest.mark.parametrize(
    "wrong",
    [
        {"likes": -1, "views": 1},
        {"likes": "1", "views": 1},
        {"likes": True, "views": 1},
        {"likes": 0, "views": 0},
        {"likes": 1},
        {"likes": 1e99, "views": 1},
    ],
)
def test_wrong_weights_are_refused_by_field(app_client: Caller, wrong: dict[str, Any]) -> None:
    answer = app_client("PUT", "/api/v1/settings/weights", json=wrong)
    assert (answer.status_code, bool(answer.get_json()["errors"])) == (422, True)


def test_a_version_is_planned_until_its_time_and_overtaken_by_a_newer_one(app_client: Caller) -> None:
    path, later = "/api/v1/settings/weights", (utcnow() + timedelta(days=3)).isoformat()

    def states() -> list[str]:
        return [version["state"] for version in app_client("GET", path).get_json()["history"]]

    assert app_client("PUT", path, json={"likes": 1, "views": 1, "effective_from": later}).status_code == 200
    assert states() == ["planned"]
    for likes in (2, 3):
        changed = app_client("PUT", path, json={"likes": likes, "views": 1})
    assert states() == ["current", "past", "overtaken"]
    body = changed.get_json()
    assert (body["version"], body["likes"], body["created_by"]) == (3, 3, f"client:{app_client.id}")
    assert changed.headers["ETag"] == '"3"'


def test_nothing_is_previewed_for_the_boards_of_all_tenants(app_client: Caller) -> None:
    preview = "/api/v1/settings/weights/preview"
    answer = app_client("POST", preview, json={"likes": 1, "views": 1, "scope": "global"})
    assert (answer.status_code, list(answer.get_json()["errors"])) == (422, ["scope"])


def test_members_neither_see_nor_change_the_weights(player: Caller) -> None:
    assert player("GET", "/api/v1/settings/weights").status_code == 403
    assert player("PUT", "/api/v1/settings/weights", json={"likes": 1, "views": 1}).status_code == 403
