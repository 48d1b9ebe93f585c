"""Names and pictures of users: wherever users are shown, and on public boards only if the tenant says so."""

import csv
import io
from itertools import count
from typing import Any

import pytest
from flask.testing import FlaskClient

from analytics.boards import checking, projection, snapshots
from analytics.boards.names import board_of
from analytics.windows import Window
from app.http.auth import Reader
from app.http.boards import user_fields
from app.live.tops import Tops
from tenants.db import utcnow
from tests.people import Caller, client_of, user_of

BOARD = "/api/v1/leaderboards?scope=users&window=all"
PICTURE = "https://pictures.example/ada.png"
NAMED = {"display_name": "Ada Lovelace", "avatar_url": PICTURE}


def pay(admin: Caller, *users: Any) -> None:
    admin("PUT", "/api/v1/actions/catalog/post", json={"points": 5})
    events = [{"type": "action", "action_type": "post", "user": user} for user in users]
    assert admin("POST", "/api/v1/events", json={"events": events}).get_json()["accepted"] == len(users)
    projection.project_all(admin.tenant, now=utcnow)


@pytest.fixture
def admin(client: FlaskClient, tenant: str) -> Caller:
    return client_of(client, tenant)


def test_names_are_shown_on_every_kind_of_board_read(
    admin: Caller, tenant: str, request: pytest.FixtureRequest
) -> None:
    pay(admin, {"id": "ada", "name": NAMED["display_name"], "avatar_url": PICTURE})
    (row,) = admin("GET", BOARD).get_json()["items"]
    user_id = row["user"]["id"]
    shown = {"id": user_id, "username": None, "external_id": "ada", **NAMED}
    assert row["user"] == shown
    rank = admin("GET", "/api/v1/leaderboards/rank?scope=users&window=all&member=ext:ada&around=1").get_json()
    assert rank["user"] == rank["around"][0]["user"] == shown
    assert admin("GET", f"{BOARD}&members=ext:ada").get_json()["items"][0]["user"] == shown
    (line,) = csv.DictReader(io.StringIO(admin("GET", BOARD.replace("?", "/export.csv?")).text))
    assert {name: line[name] for name in NAMED} == NAMED
    own = Reader(tenant, public_only=False, is_anonymous=False)
    board = board_of(tenant, "users", Window.ALL, None)
    assert Tops().get(board, 10, 1, user_fields(board, own)).items[0]["user"] == shown, "frames of sockets"
    snapshots.refresh(tenant, now=utcnow())
    request.getfixturevalue("no_redis")
    answer = admin("GET", f"{BOARD}&limit=9").get_json()
    assert (answer["source"], answer["items"][0]["user"]) == ("snapshot", shown)


def test_a_new_name_raises_the_version_of_the_users_boards(admin: Caller, tenant: str) -> None:
    pay(admin, "ada", "bob")

    limits = count(10)  # another address for each read: answers are kept for a second

    def read() -> tuple[int, dict[str, str | None]]:
        projection.project_all(tenant, now=utcnow)
        answer = admin("GET", f"{BOARD}&limit={next(limits)}").get_json()
        return answer["version"], {row["user"]["external_id"]: row["user"]["display_name"] for row in answer["items"]}

    before, names = read()
    assert names == {"ada": None, "bob": None}
    for change in ({"display_name": "Ada"}, {"display_name": "Ada"}, {"avatar_url": PICTURE}):
        assert admin("PUT", "/api/v1/users/ext:ada", json=change).status_code == 200
    after, names = read()
    assert after > before
    assert names == {"ada": "Ada", "bob": None}
    assert admin("PUT", "/api/v1/users/ext:ada", json=NAMED | {"display_name": "Ada"}).status_code == 200
    assert read()[0] == after, "the same again changes nothing"
    assert checking.check(tenant, now=utcnow()).differences == []


def test_strangers_see_names_only_if_the_tenant_shows_them_in_public(
    admin: Caller, client: FlaskClient, tenant: str
) -> None:
    pay(admin, {"id": "ada", "name": NAMED["display_name"], "avatar_url": PICTURE})
    admin("PATCH", "/api/v1/settings", json={"public_scoreboard": True})
    key = admin("POST", "/api/v1/keys", json={"origins": ["https://wiki.example"]}).get_json()["key"]
    registered = user_of(client, tenant, sees_private=False)
    user_id = admin("GET", "/api/v1/users/ext:ada").get_json()["id"]

    def seen(limit: int) -> list[dict[str, Any]]:
        path = f"{BOARD}&limit={limit}"
        by_key = client.get(path, headers={"X-Plaudit-Key": key, "Origin": "https://wiki.example"})
        rows = [answer.get_json()["items"][0]["user"] for answer in (by_key, registered("GET", path))]
        profile = registered("GET", f"/api/v1/users/{user_id}").get_json()
        (line,) = csv.DictReader(io.StringIO(registered("GET", BOARD.replace("?", "/export.csv?")).text))
        csv_names = {name: value for name, value in line.items() if name in NAMED}
        return [*rows, {name: profile[name] for name in NAMED}, csv_names]

    hidden = {"id": user_id, "username": None}
    assert seen(20) == [hidden, hidden, dict.fromkeys(NAMED), {}]
    assert admin("PATCH", "/api/v1/settings", json={"public_names": True}).get_json()["public_names"] is True
    assert seen(21) == [hidden | NAMED, hidden | NAMED, NAMED, NAMED]


def test_put_makes_or_changes_a_user_of_the_tenants_own(admin: Caller, client: FlaskClient, tenant: str) -> None:
    writer = client_of(client, tenant, "users:write")
    profile = {
        "display_name": " Ada Lovelace ",
        "avatar_url": "https://pictures.example/ada.png",
        "segments": ["eu", "pro"],
    }
    answers = [writer("PUT", "/api/v1/users/ext:ada", json=profile) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 200]
    made, again = (answer.get_json() for answer in answers)
    assert made == again, "the same again changes nothing"
    assert (made["external_id"], made["display_name"], made["segments"]) == ("ada", "Ada Lovelace", ["eu", "pro"])
    changed = writer("PUT", "/api/v1/users/ext:ada", json={"avatar_url": None, "segments": []}).get_json()
    assert (changed["display_name"], changed["avatar_url"], changed["segment"]) == ("Ada Lovelace", None, None)
    for path, body, field in (
        (f"/api/v1/users/{made['id']}", {}, "user"),
        ("/api/v1/users/me", {}, "user"),
        ("/api/v1/users/ext:has%20space", {}, "user"),
        ("/api/v1/users/ext:ada", {"display_name": "a\nb"}, "display_name"),
        ("/api/v1/users/ext:ada", {"avatar_url": "javascript:alert(1)"}, "avatar_url"),
        ("/api/v1/users/ext:ada", {"segments": ["a", "a"]}, "segments"),
        ("/api/v1/users/ext:ada", {"segments": [f"s{n}" for n in range(9)]}, "segments"),
        ("/api/v1/users/ext:ada", {"role": "admin"}, "role"),
    ):
        refused = writer("PUT", path, json=body)
        assert (refused.status_code, list(refused.get_json()["errors"])) == (422, [field]), path
    private = {"email": "ada@example.org", "sees_private": True}
    admin("PATCH", "/api/v1/users/ext:ada", json=private)
    for key in ({}, {"Idempotency-Key": "k1"}):  # in a transaction of its own, and in that which keeps the answer
        shown = writer("PUT", "/api/v1/users/ext:ada", json={"segments": ["eu"]}, headers=key).get_json()
        assert {name: shown[name] for name in private} == dict.fromkeys(private), "as GET, for who is no admin"
        by_admin = admin("PUT", "/api/v1/users/ext:ada", json={}).get_json()
        assert {name: by_admin[name] for name in private} == private
    member = user_of(client, tenant)
    for caller in (member, client_of(client, tenant, "stats:read", "events:write")):
        assert caller("PUT", "/api/v1/users/ext:ada", json={}).status_code == 403
