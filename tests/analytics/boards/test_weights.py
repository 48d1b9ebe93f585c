"""Weights of the score: previewed, versioned, applied and explained."""

from datetime import timedelta

from flask.testing import FlaskClient

from tenants.db import utcnow
from tests.analytics.boards.conftest import BOARD, MakeBoard, project, read
from tests.people import Caller, client_of
from tests.service import eventually


def test_explain_has_the_parts_of_a_score(board: MakeBoard, app_client: Caller, tenant: str) -> None:
    board(a=9)
    app_client("PUT", "/api/v1/pages/a/likes/u1")
    project(tenant)
    row = read(app_client, "/api/v1/leaderboards?metric=score&explain=true")["items"][0]
    assert row["explain"]["likes"] == {"count": 1, "weight": 3.0, "points": 3.0}
    assert row["explain"]["views"]["count"] == 9
    assert row["value"] == row["explain"]["score"] == round(3 + 2.302585092994046, 6)
    assert app_client("GET", f"{BOARD}&explain=true").status_code == 422


def test_weights_are_previewed_then_versioned_then_applied(board: MakeBoard, app_client: Caller, tenant: str) -> None:
    board(often=40, liked=1)
    app_client("PUT", "/api/v1/pages/liked/likes/u1")
    project(tenant)
    scores = "/api/v1/leaderboards?metric=score&window=7d"
    by_score = [row["page"]["external_id"] for row in read(app_client, scores)["items"]]
    other = {"likes": 0.5 if by_score[0] == "liked" else 100, "views": 1}
    preview = app_client("POST", "/api/v1/settings/weights/preview", json=other).get_json()
    assert [row["page"]["external_id"] for row in preview["items"]] == by_score[::-1]
    assert [(row["rank"], row["rank_now"]) for row in preview["items"]] == [(1, 2), (2, 1)]
    assert preview["moved"] == 2
    assert [row["page"]["external_id"] for row in read(app_client, scores)["items"]] == by_score, "nothing has changed"
    first = app_client("GET", "/api/v1/settings/weights")
    assert (first.get_json()["version"], first.headers["ETag"]) == (0, '"0"')
    changed = app_client("PUT", "/api/v1/settings/weights", json=other, headers={"If-Match": '"0"'})
    assert changed.get_json()["version"] == 1
    assert app_client("PUT", "/api/v1/settings/weights", json=other, headers={"If-Match": '"0"'}).status_code == 412
    project(tenant)
    eventually(lambda: [row["page"]["external_id"] for row in read(app_client, scores)["items"]] == by_score[::-1])
    assert app_client("GET", "/api/v1/settings/weights").get_json()["projected"] == {"done": 2, "total": 2}
    later = {**other, "effective_from": (utcnow() + timedelta(days=3)).isoformat()}
    assert app_client("PUT", "/api/v1/settings/weights", json=later).get_json()["version"] == 1, "not yet"


def test_explain_has_the_weights_with_which_the_board_was_projected(
    board: MakeBoard, app_client: Caller, client: FlaskClient, tenant: str
) -> None:
    board(a=3)
    admin = client_of(client, tenant, "admin")
    score = "/api/v1/leaderboards?scope=tenant&window=7d&metric=score&explain=true"
    changed = admin("PUT", "/api/v1/settings/weights", json={"likes": 1, "views": 10})
    assert [row["state"] for row in changed.get_json()["history"]] == ["current"]
    (row,) = read(app_client, score)["items"]
    assert (row["explain"]["score"], row["explain"]["pending"]) == (row["value"], False), "not projected yet"
    project(tenant)
    (after,) = read(app_client, f"{score}&limit=11")["items"]  # not what was kept a moment ago
    assert after["value"] > row["value"]
    assert (after["explain"]["score"], after["explain"]["pending"]) == (after["value"], False)
