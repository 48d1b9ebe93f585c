"""Boards over HTTP: as the contract says, and never a 500."""

import csv
import io

import pytest
from flask.testing import FlaskClient

from analytics.boards import projection
from app.api import leaderboards as leaderboards_api
from tenants import redis as tenants_redis
from tenants.db import utcnow
from tenants.users import Role
from tests.analytics.boards.conftest import BOARD, MakeBoard, order, project, read
from tests.analytics.conftest import make_page
from tests.people import Caller, client_of, user_of
from tests.service import eventually


def test_a_board_ranks_pages_and_says_where_it_was_read(board: MakeBoard) -> None:
    answer = board(a=1, b=3, c=2, d=0)
    assert order(answer) == [(1, "b", 3), (2, "c", 2), (3, "a", 1)]
    assert answer["total"] == 3
    assert answer["source"] == "redis"
    assert answer["version"] >= 1
    assert answer["next_cursor"] is None
    page = answer["items"][0]["page"]
    assert page == {
        "id": page["id"],
        "external_id": "b",
        "title": "Page b",
        "url": "https://wiki.example/b",
        "space": "eng",
    }


def test_an_etag_is_answered_by_304_until_the_board_moves(board: MakeBoard, app_client: Caller, tenant: str) -> None:
    board(a=1, b=2)
    first = app_client("GET", BOARD)
    tag = {"If-None-Match": first.headers["ETag"]}
    again = app_client("GET", BOARD, headers=tag)
    assert (again.status_code, again.data) == (304, b"")
    assert again.headers["ETag"] == first.headers["ETag"]
    app_client("POST", "/api/v1/pages/a/views")
    project(tenant)
    eventually(lambda: app_client("GET", BOARD, headers=tag).status_code == 200)


def test_a_new_title_is_seen_on_the_board(board: MakeBoard, app_client: Caller, tenant: str) -> None:
    before = board(a=1)
    make_page(app_client, "a", title="Renamed")
    project(tenant)
    eventually(lambda: read(app_client)["items"][0]["page"]["title"] == "Renamed")
    assert read(app_client)["version"] > before["version"]


def test_the_export_is_the_whole_board_and_no_cell_is_a_formula(
    board: MakeBoard, app_client: Caller, tenant: str
) -> None:
    board(a=2, b=1)
    for name, title in (("a", '=HYPERLINK("http://evil")'), ("b", '@SUM(1), "quoted"\u202e')):
        make_page(app_client, name, title=title)
    project(tenant)
    answer = app_client("GET", "/api/v1/leaderboards/export.csv?scope=tenant&window=7d&metric=views")
    assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [(row["rank"], row["external_id"], row["value"]) for row in rows] == [("1", "a", "2"), ("2", "b", "1")]
    assert [row["title"][0] for row in rows] == ["'", "'"]


@pytest.mark.parametrize(
    "title",
    [
        "x;=cmd()",
        "x; \t =cmd()",
        "x|@SUM(1)",
        " =cmd()",
        "x\u00a0;=cmd()",
        "x\u2003|=cmd()",
        '"=cmd()',
        'x;"=cmd()"',
        "\uff1dcmd()",
    ],
)
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_no_cell_is_a_formula_whatever_a_spreadsheet_splits_on(title: str, separator: str) -> None:
    line = leaderboards_api._csv_line([1, "a", title, "b"])
    for row in csv.reader(io.StringIO(line), delimiter=separator):
        for cell in row:
            assert not cell.strip(' \t"').startswith(("=", "+", "-", "@", "\uff1d")), cell


def test_ordinary_titles_are_exported_as_they_are() -> None:
    for title in ("a - b", "x = y", "C++", "me@example.org", "a; b", "1 + 1", "Q&A, -part 2-", "x;y=z"):
        assert next(csv.reader([leaderboards_api._csv_line([title])])) == [title]


def test_a_publishable_key_reads_public_boards_only(
    board: MakeBoard, app_client: Caller, client: FlaskClient, tenant: str
) -> None:
    board(a=2, b=1)
    make_page(app_client, "b", visibility="public")
    project(tenant)
    key = app_client("POST", "/api/v1/keys", json={"origins": ["https://wiki.example"]}).get_json()["key"]
    public = client.get(f"/api/v1/leaderboards?key={key}&window=7d&metric=views")
    assert order(public.get_json()) == [(1, "b", 1)]
    in_space = client.get("/api/v1/leaderboards?scope=public:eng&metric=views", headers={"X-Plaudit-Key": key})
    assert order(in_space.get_json()) == [(1, "b", 1)]
    for scope in ("tenant", "space:eng"):
        refused = client.get(f"/api/v1/leaderboards?key={key}&scope={scope}")
        assert (refused.status_code, refused.get_json()["code"]) == (403, "public_boards_only")
    rank = f"/api/v1/leaderboards/rank?key={key}&scope=public&metric=views&member="
    assert client.get(f"{rank}b").get_json()["rank"] == 1
    assert client.get(f"{rank}a").status_code == 404, "a private page is not there"
    elsewhere = client.get(f"/api/v1/leaderboards?key={key}", headers={"Origin": "https://evil.example"})
    assert elsewhere.status_code == 403


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("window=2d", "invalid"),
        ("metric=points", "unknown_metric"),
        ("scope=nonsense", "unknown_scope"),
        ("scope=space:", "unknown_scope"),
        ("scope=space:a:b", "unknown_scope"),
        ("scope=space:%F0%9F%98%80", "unknown_scope"),
        ("scope=tenant:7d", "unknown_scope"),
        ("scope=lb:x", "unknown_scope"),
        ("limit=0", "invalid"),
        ("limit=1001", "invalid"),
        ("cursor=nonsense", "invalid_cursor"),
        ("cursor=WzEsMl0", "invalid_cursor"),
        ("cursor=WyJuYW4iLCIxIl0", "invalid_cursor"),
        ("cursor=WzFlNDAwLCIxIl0", "invalid_cursor"),
        ("as_of=yesterday", "invalid"),
        ("as_of=9999-12-31", "invalid"),
        ("members=" + ",".join(map(str, range(101))), "invalid"),
        ("surplus=1", "invalid"),
    ],
)
def test_a_wrong_question_gets_a_clear_answer(app_client: Caller, query: str, code: str) -> None:
    answer = app_client("GET", f"/api/v1/leaderboards?{query}")
    assert answer.status_code == 422, answer.text
    assert answer.get_json()["code"].startswith(code)


def test_a_nul_in_a_scope_is_malformed(app_client: Caller) -> None:
    assert app_client("GET", "/api/v1/leaderboards?scope=space:a%00b").status_code == 400


def test_an_empty_board_is_an_empty_list(app_client: Caller) -> None:
    for scope in ("tenant", "public", "space:nowhere"):
        answer = read(app_client, f"/api/v1/leaderboards?scope={scope}&window=all&metric=likes")
        assert (answer["items"], answer["total"], answer["next_cursor"]) == ([], 0, None)


def test_members_read_boards_and_a_client_without_the_scope_does_not(client: FlaskClient, tenant: str) -> None:
    assert user_of(client, tenant, role=Role.MEMBER)("GET", BOARD).status_code == 200
    assert client_of(client, tenant, "events:write")("GET", BOARD).get_json()["code"] == "insufficient_scope"
    assert client.get(BOARD).status_code == 401


def test_a_cursor_is_valid_for_its_own_board_only(board: MakeBoard, app_client: Caller) -> None:
    board(a=1, b=3, c=2)
    cursor = read(app_client, f"{BOARD}&limit=1")["next_cursor"]
    assert order(read(app_client, f"{BOARD}&limit=1&cursor={cursor}")) == [(2, "c", 2)]
    other = app_client("GET", f"/api/v1/leaderboards?scope=tenant&window=7d&metric=score&cursor={cursor}")
    assert (other.status_code, other.get_json()["code"]) == (422, "invalid_cursor")


def test_a_page_that_has_just_become_private_is_not_shown_with_its_new_title(
    app_client: Caller, client: FlaskClient, tenant: str
) -> None:
    """P5: a public board's row was read before the change, what it shows of the page after it."""
    make_page(app_client, "a", visibility="public")
    make_page(app_client, "b", visibility="public")
    for name in "ab":
        app_client("POST", f"/api/v1/pages/{name}/views")
    project(tenant)
    public = "/api/v1/leaderboards?scope=public&window=7d&metric=views"
    assert len(read(app_client, public)["items"]) == 2
    make_page(app_client, "a", visibility="private", title="Secret")
    member = read(app_client, "/api/v1/pages/a")["id"]
    with tenants_redis.boards().client() as redis:
        redis.hset(f"pgs:{tenant}:{member}", mapping={"title": "Secret", "public": "0"})
    for path in (f"{public}&limit=50", "/api/v1/leaderboards/export.csv?scope=public&window=7d&metric=views"):
        said = app_client("GET", path).text
        assert "Secret" not in said
        assert "wiki.example/b" in said


def test_exports_have_a_limit(board: MakeBoard, app_client: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    board(a=1)
    monkeypatch.setattr("app.api.leaderboards.EXPORTS_PER_MINUTE", 2)
    statuses = [app_client("GET", "/api/v1/leaderboards/export.csv").status_code for _ in range(3)]
    assert statuses == [200, 200, 429]


def test_a_key_sees_names_on_a_public_scoreboard_and_no_ids_of_the_tenants(
    admin: Caller, client: FlaskClient, tenant: str
) -> None:
    event = {"type": "action", "action_type": "post", "user": "ada@example.org"}
    admin("POST", "/api/v1/events", json={"events": [event]})
    projection.project_all(tenant, now=utcnow)
    key = admin("POST", "/api/v1/keys", json={"origins": ["https://a.example"]}).get_json()["key"]
    board = "/api/v1/leaderboards?scope=users&window=all"
    headers = {"X-Plaudit-Key": key}
    assert client.get(board, headers=headers).get_json()["code"] == "public_boards_only"
    admin("PATCH", "/api/v1/settings", json={"public_scoreboard": True})
    assert "ada@example.org" in admin("GET", board).text
    for path in (board, "/api/v1/leaderboards/export.csv?scope=users&window=all"):
        answer = client.get(path, headers=headers)
        assert answer.status_code == 200
        assert "ada@example.org" not in answer.text
    oracle = "/api/v1/leaderboards/rank?scope=users&member=ext:ada@example.org"
    assert client.get(oracle, headers=headers).status_code == 404
