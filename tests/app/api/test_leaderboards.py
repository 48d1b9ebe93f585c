"""Boards over HTTP: as the contract says, and never a 500."""

import csv
import io
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from flask.testing import FlaskClient
from sqlalchemy import text

from analytics.boards import names, projection, snapshots
from analytics.boards.names import ALL_TENANTS
from analytics.locks import Busy, try_lock_boards
from analytics.metrics import VIEWS
from analytics.windows import Window
from app.api import leaderboards as leaderboards_api
from app.http.answer_cache import MAX_BOARDS, MAX_BYTES, Answer, BoardAnswerCache
from tenants import redis as tenants_redis
from tenants.db import owner_tx, tenant_tx, utcnow
from tenants.users import Role
from tests.analytics.conftest import make_page
from tests.people import Caller, client_of, user_of

BOARD = "/api/v1/leaderboards?scope=tenant&window=7d&metric=views"
BIGGEST = 2**53 - 1
# Sends so many views for each page, projects, and reads.
Board = Callable[..., dict[str, Any]]


@pytest.fixture
def app_client(client: FlaskClient, tenant: str) -> Caller:
    return client_of(client, tenant)


@pytest.fixture
def board(app_client: Caller, tenant: str) -> Board:

    def send(**views: int) -> dict[str, Any]:
        for name, count in views.items():
            make_page(app_client, name)
            events = [{"type": "view", "page": name}] * count
            if events:
                assert app_client("POST", "/api/v1/events", json={"events": events}).status_code == 202
        project(tenant)
        return read(app_client)

    return send


def project(tenant: str) -> None:
    projection.project_all(tenant, now=utcnow)


def read(caller: Caller, path: str = BOARD, **options: Any) -> dict[str, Any]:
    answer = caller("GET", path, **options)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.get_json()
    return found


def order(answer: dict[str, Any]) -> list[tuple[int, str, float]]:
    return [(row["rank"], row["page"]["external_id"], row["value"]) for row in answer["items"]]


def test_a_board_ranks_pages_and_says_where_it_was_read(board: Board) -> None:
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


def test_without_redis_it_is_read_from_postgres_and_from_the_snapshot(
    board: Board, app_client: Caller, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = order(board(a=1, b=3, c=3))
    guarded = tenants_redis.boards()
    monkeypatch.setattr(guarded, "_down_since", 0.0)
    monkeypatch.setattr(guarded, "_next_probe_at", float("inf"))
    wait_until(lambda: read(app_client)["source"] == "postgres")
    assert order(read(app_client)) == expected
    snapshots.refresh(tenant, now=utcnow())
    wait_until(lambda: read(app_client)["source"] == "snapshot")
    assert order(read(app_client)) == expected
    deep = read(app_client, f"{BOARD}&limit=1&cursor={read(app_client, f'{BOARD}&limit=1')['next_cursor']}")
    assert (deep["source"], order(deep)) == ("snapshot", expected[1:2])
    member = read(app_client, "/api/v1/leaderboards/rank?scope=tenant&window=7d&metric=views&member=a&around=1")
    assert (member["rank"], member["source"]) == (3, "postgres")
    assert [row["rank"] for row in member["around"]] == [2, 3]


def test_ties_go_by_the_id_as_text_descending_everywhere(
    board: Board, app_client: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = board(**{f"p{number}": 2 for number in range(12)})
    ids = [str(row["page"]["id"]) for row in answer["items"]]
    assert ids == sorted(ids, reverse=True)
    walked = []
    path = f"{BOARD}&limit=5"
    while True:
        page = read(app_client, path)
        walked += [row["page"]["id"] for row in page["items"]]
        if page["next_cursor"] is None:
            break
        path = f"{BOARD}&limit=5&cursor={page['next_cursor']}"
    assert [str(one) for one in walked] == sorted(map(str, walked), reverse=True)
    assert len(walked) == 12
    guarded = tenants_redis.boards()
    monkeypatch.setattr(guarded, "_down_since", 0.0)
    monkeypatch.setattr(guarded, "_next_probe_at", float("inf"))
    assert [row["page"]["id"] for row in read(app_client, f"{BOARD}&limit=100")["items"]] == walked


def test_values_are_exact_up_to_2_to_the_53(board: Board, app_client: Caller, tenant: str) -> None:
    board(a=1, b=1)
    with tenant_tx(tenant) as tx:
        for name, views in (("a", BIGGEST), ("b", BIGGEST - 1)):
            tx.execute(
                text("""
                    UPDATE page_views_hour v SET views = :views FROM pages p
                    WHERE p.tenant_id = v.tenant_id AND p.id = v.page_id AND p.external_id = :name
                """),
                {"views": views, "name": name},
            )
            tx.execute(
                text("INSERT INTO outbox (tenant_id, kind, member) SELECT tenant_id, 'page', id::text FROM pages")
            )
    project(tenant)
    answer = read(app_client)
    assert order(answer) == [(1, "a", BIGGEST), (2, "b", BIGGEST - 1)]
    after = read(app_client, f"{BOARD}&limit=1&cursor={read(app_client, f'{BOARD}&limit=1')['next_cursor']}")
    assert order(after) == [(2, "b", BIGGEST - 1)]


def test_a_cursor_loses_nobody_who_did_not_move(board: Board, app_client: Caller, tenant: str) -> None:
    board(**{f"p{number}": 20 - number for number in range(10)})
    first = read(app_client, f"{BOARD}&limit=4")
    assert [name for _, name, _ in order(first)] == ["p0", "p1", "p2", "p3"]
    app_client("DELETE", "/api/v1/pages/p1")
    app_client("POST", "/api/v1/events", json={"events": [{"type": "view", "page": "p9"}] * 100})
    app_client("DELETE", "/api/v1/pages/p3")
    project(tenant)
    rest = read(app_client, f"{BOARD}&limit=10&cursor={first['next_cursor']}")
    assert [name for _, name, _ in order(rest)] == ["p4", "p5", "p6", "p7", "p8"]
    assert [rank for rank, _, _ in order(rest)] == [4, 5, 6, 7, 8]


def test_an_etag_is_answered_by_304_until_the_board_moves(board: Board, app_client: Caller, tenant: str) -> None:
    board(a=1, b=2)
    first = app_client("GET", BOARD)
    tag = {"If-None-Match": first.headers["ETag"]}
    again = app_client("GET", BOARD, headers=tag)
    assert (again.status_code, again.data) == (304, b"")
    assert again.headers["ETag"] == first.headers["ETag"]
    app_client("POST", "/api/v1/pages/a/views")
    project(tenant)
    wait_until(lambda: app_client("GET", BOARD, headers=tag).status_code == 200)


def test_a_new_title_is_seen_on_the_board(board: Board, app_client: Caller, tenant: str) -> None:
    before = board(a=1)
    make_page(app_client, "a", title="Renamed")
    project(tenant)
    wait_until(lambda: read(app_client)["items"][0]["page"]["title"] == "Renamed")
    assert read(app_client)["version"] > before["version"]


def test_rank_neighbours_and_a_subset(board: Board, app_client: Caller) -> None:
    board(a=5, b=4, c=3, d=2, e=1, f=0)
    rank = "/api/v1/leaderboards/rank?scope=tenant&window=7d&metric=views"
    own = read(app_client, f"{rank}&member=c")
    assert (own["rank"], own["value"], own["page"]["external_id"], "around" in own) == (3, 3, "c", False)
    around = read(app_client, f"{rank}&member=c&around=1")
    assert [row["page"]["external_id"] for row in around["around"]] == ["b", "c", "d"]
    absent = read(app_client, f"{rank}&member=f&around=2")
    assert (absent["rank"], absent["value"], absent["around"]) == (None, 0, [])
    assert app_client("GET", f"{rank}&member=nowhere").status_code == 404
    subset = read(app_client, f"{BOARD}&members=e,a,nowhere,f")
    assert order(subset) == [(1, "a", 5), (5, "e", 1)]


def test_the_board_as_it_was_and_who_moved_since(board: Board, app_client: Caller, tenant: str) -> None:
    board(a=3, b=2)
    snapshots.refresh(tenant, now=utcnow())
    with owner_tx() as tx:
        tx.execute(
            text("UPDATE leaderboard_snapshots SET taken_at = taken_at - interval '1 day' WHERE tenant_id = :t"),
            {"t": tenant},
        )
    snapshots.refresh(tenant, now=utcnow())
    answer = board(b=4, c=1)
    moves = {row["page"]["external_id"]: (row["rank_change"], row["is_new"]) for row in answer["items"]}
    assert moves == {"b": (1, False), "a": (-1, False), "c": (None, True)}
    yesterday = (utcnow() - timedelta(days=1)).date()
    was = read(app_client, f"{BOARD}&as_of={yesterday}")
    assert (order(was), was["source"]) == ([(1, "a", 3), (2, "b", 2)], "snapshot")
    assert app_client("GET", f"{BOARD}&as_of={yesterday - timedelta(days=3)}").get_json()["code"] == "no_snapshot"
    assert app_client("GET", f"{BOARD}&as_of={utcnow().date()}").status_code == 422


def test_explain_says_how_a_score_came_about(board: Board, app_client: Caller, tenant: str) -> None:
    board(a=9)
    app_client("PUT", "/api/v1/pages/a/likes/u1")
    project(tenant)
    row = read(app_client, "/api/v1/leaderboards?metric=score&explain=true")["items"][0]
    assert row["explain"]["likes"] == {"count": 1, "weight": 3.0, "points": 3.0}
    assert row["explain"]["views"]["count"] == 9
    assert row["value"] == row["explain"]["score"] == round(3 + 2.302585092994046, 6)
    assert app_client("GET", f"{BOARD}&explain=true").status_code == 422


def test_weights_are_previewed_then_versioned_then_applied(board: Board, app_client: Caller, tenant: str) -> None:
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
    wait_until(lambda: [row["page"]["external_id"] for row in read(app_client, scores)["items"]] == by_score[::-1])
    assert app_client("GET", "/api/v1/settings/weights").get_json()["projected"] == {"done": 2, "total": 2}
    later = {**other, "effective_from": (utcnow() + timedelta(days=3)).isoformat()}
    assert app_client("PUT", "/api/v1/settings/weights", json=later).get_json()["version"] == 1, "not yet"


@pytest.mark.parametrize(
    "wrong",
    [
        {"likes": -1, "views": 1},
        {"likes": "1", "views": 1},
        {"likes": 0, "views": 0},
        {"likes": 1},
        {"likes": 1e99, "views": 1},
    ],
)
def test_wrong_weights_are_refused_by_field(app_client: Caller, wrong: dict[str, Any]) -> None:
    answer = app_client("PUT", "/api/v1/settings/weights", json=wrong)
    assert (answer.status_code, bool(answer.get_json()["errors"])) == (422, True)


def test_the_export_is_the_whole_board_and_no_cell_is_a_formula(board: Board, app_client: Caller, tenant: str) -> None:
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
    board: Board, app_client: Caller, client: FlaskClient, tenant: str
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


def test_the_global_board_lists_public_pages_of_tenants_that_share_them(
    board: Board, app_client: Caller, tenant: str
) -> None:
    board(a=2, b=1)
    make_page(app_client, "b", visibility="public")
    projection.bring_up_to_date(ALL_TENANTS, now=utcnow)

    def on_it() -> list[str]:
        project(tenant)
        rows = read(app_client, "/api/v1/leaderboards?scope=global&metric=views&limit=1000")["items"]
        return [row["page"]["external_id"] for row in rows if row["page"]["tenant"] == tenant]

    assert on_it() == []
    app_client("PATCH", "/api/v1/settings", json={"share_public_pages": True})
    wait_until(lambda: on_it() == ["b"])
    make_page(app_client, "b", visibility="private")
    wait_until(lambda: on_it() == [])
    make_page(app_client, "b", visibility="public")
    wait_until(lambda: on_it() == ["b"])
    app_client("PATCH", "/api/v1/settings", json={"share_public_pages": False})
    wait_until(lambda: on_it() == [])


def test_moving_hiding_and_deleting_take_a_page_along_at_once(board: Board, app_client: Caller, tenant: str) -> None:
    board(a=2)

    def boards_with_it() -> set[str]:
        project(tenant)
        scopes = ["tenant", "space:eng", "space:ops", "public", "public:eng", "public:ops"]
        return {s for s in scopes if read(app_client, f"/api/v1/leaderboards?scope={s}&metric=views")["items"]}

    assert boards_with_it() == {"tenant", "space:eng"}
    make_page(app_client, "a", space="ops", visibility="public")
    wait_until(lambda: boards_with_it() == {"tenant", "space:ops", "public", "public:ops"})
    make_page(app_client, "a", space="ops", visibility="private")
    wait_until(lambda: boards_with_it() == {"tenant", "space:ops"})
    app_client("DELETE", "/api/v1/pages/a")
    wait_until(lambda: boards_with_it() == set())


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


def test_stats_series_and_spaces(board: Board, app_client: Caller, tenant: str) -> None:
    board(a=3)
    late = (utcnow() - timedelta(days=3)).isoformat()
    app_client("POST", "/api/v1/pages/a/views", json={"occurred_at": late})
    app_client("PUT", "/api/v1/pages/a/likes/u1")
    project(tenant)
    stats = read(app_client, "/api/v1/pages/a/stats")
    assert stats["views"] == {"1d": 3, "7d": 4, "30d": 4, "all": 4}
    assert stats["likes"] == {"1d": 1, "7d": 1, "30d": 1, "all": 1}
    series = read(app_client, "/api/v1/pages/a/series?metric=views&step=day")["points"]
    assert (len(series), series[-1]["value"], series[-4]["value"], sum(p["value"] for p in series)) == (31, 3, 1, 4)
    hours = read(app_client, "/api/v1/pages/a/series?step=hour")["points"]
    assert (len(hours), hours[-1]["value"]) == (169, 3)
    assert sum(p["value"] for p in read(app_client, "/api/v1/pages/a/series?metric=likes")["points"]) == 1
    assert app_client("GET", "/api/v1/pages/a/series?from=2000-01-01T00:00:00Z").status_code == 422
    assert app_client("GET", "/api/v1/pages/a/series?metric=score").status_code == 422
    assert app_client("GET", "/api/v1/pages/nowhere/series").status_code == 404
    make_page(app_client, "z", space="zoo")
    spaces = read(app_client, "/api/v1/spaces?limit=1")
    assert spaces["items"] == [{"space": "eng", "pages": 1, "public_pages": 0, "views_7d": 4, "likes_7d": 1}]
    rest = read(app_client, f"/api/v1/spaces?cursor={spaces['next_cursor']}")
    assert [space["space"] for space in rest["items"]] == ["zoo"]


def wait_until(holds: Callable[[], bool]) -> None:
    """The process keeps an answer for a second at most, should it miss the message that the board moved."""
    from tests.service import eventually

    eventually(holds)


def test_of_a_page_that_is_private_now_an_earlier_public_board_shows_nothing(
    board: Board, app_client: Caller, client: FlaskClient, tenant: str
) -> None:
    board(a=2, b=1)
    for name in ("a", "b"):
        make_page(app_client, name, visibility="public")
    project(tenant)
    snapshots.refresh(tenant, now=utcnow() - timedelta(days=1))
    snapshots.refresh(tenant, now=utcnow())
    make_page(app_client, "a", visibility="private", title="Layoffs")
    project(tenant)
    key = app_client("POST", "/api/v1/keys", json={"origins": ["https://wiki.example"]}).get_json()["key"]
    yesterday = (utcnow() - timedelta(days=1)).date()
    answer = client.get(f"/api/v1/leaderboards?key={key}&scope=public&window=7d&metric=views&as_of={yesterday}")
    assert [row["page"] and row["page"]["external_id"] for row in answer.get_json()["items"]] == ["b"]
    assert "Layoffs" not in answer.text
    own = read(app_client, f"{BOARD}&as_of={yesterday}")
    assert [row["page"]["title"] for row in own["items"]] == ["Layoffs", "Page b"], "the tenant's own board shows it"


def test_a_redis_that_came_back_with_old_boards_is_filled_anew(board: Board, app_client: Caller, tenant: str) -> None:
    """A server restarted from an old dump has markers, and anything behind them."""
    expected = order(board(a=3, b=2))
    redis = tenants_redis.boards().redis
    redis.zadd(f"lb:{tenant}:tenant:7d:views", {"999999": 77})
    redis.set(f"lbr:{tenant}", "the run before")
    assert tenant in projection.stale_tenants(now=utcnow())
    project(tenant)
    assert tenant not in projection.stale_tenants(now=utcnow())
    wait_until(lambda: order(read(app_client)) == expected)


def test_series_know_other_time_zones_and_bounds(board: Board, app_client: Caller) -> None:
    board(a=3)
    start = (utcnow() - timedelta(days=10)).strftime("%Y-%m-%dT00:00:00")
    far = (utcnow() + timedelta(days=2)).strftime("%Y-%m-%dT00:00:00Z")
    for offset, step in (("%2B02:00", "day"), ("%2B05:30", "hour"), ("-08:00", "day")):
        points = read(app_client, f"/api/v1/pages/a/series?step={step}&from={start}{offset}&to={far}")
        assert sum(point["value"] for point in points["points"]) == 3, offset
    for span in (
        "from=9999-12-31T22:00:00Z&to=9999-12-31T23:30:00Z",
        "to=0001-01-01T00:00:00Z",
        "from=0001-01-01T00:00:00%2B14:00",
    ):
        assert app_client("GET", f"/api/v1/pages/a/series?{span}").status_code == 422
    assert app_client("GET", "/api/v1/spaces?cursor=WyJcdTAwMDAiXQ").status_code == 422


def test_a_cursor_counts_for_its_own_board_only(board: Board, app_client: Caller) -> None:
    board(a=1, b=3, c=2)
    cursor = read(app_client, f"{BOARD}&limit=1")["next_cursor"]
    assert order(read(app_client, f"{BOARD}&limit=1&cursor={cursor}")) == [(2, "c", 2)]
    other = app_client("GET", f"/api/v1/leaderboards?scope=tenant&window=7d&metric=score&cursor={cursor}")
    assert (other.status_code, other.get_json()["code"]) == (422, "invalid_cursor")


def test_explain_tells_of_the_weights_that_the_board_has_come_to(
    board: Board, app_client: Caller, client: FlaskClient, tenant: str
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


def test_a_page_that_turned_private_a_moment_ago_is_not_shown_by_its_new_title(
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


def test_made_up_spaces_do_not_empty_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.http.answer_cache.MAX_AGE_S", 60)
    cache = listening_cache()
    one = names.Board("t", "tenant", Window.WEEK, VIEWS)
    for number in range(MAX_BOARDS + 1):
        cache.get(replace(one, scope=f"space:{number}"), 1, lambda: Answer(b"x", "e", 1))
    made: list[int] = []
    for number in range(2, MAX_BOARDS + 1):
        cache.get(replace(one, scope=f"space:{number}"), 1, lambda: made.append(1) or Answer(b"x", "e", 1))  # type: ignore[func-returns-value]
    assert made == [], "only the oldest made room"


def listening_cache() -> BoardAnswerCache:
    cache = BoardAnswerCache()
    cache._listener.is_hearing = True
    cache._listener.start = lambda: None  # type: ignore[method-assign]
    return cache


def test_the_cache_is_bounded_in_bytes() -> None:
    cache = listening_cache()
    one = names.Board("t", "tenant", Window.WEEK, VIEWS)
    for number in range(400):
        body = b"x" * 200_000
        cache.get(one, number, lambda body=body: Answer(body, "e", 1))  # type: ignore[misc]
        cache.get(replace(one, scope=f"space:{number}"), 1, lambda body=body: Answer(body, "e", 1))  # type: ignore[misc]
        assert cache._bytes == sum(len(k.answer.body) for cached in cache._cached.values() for k in cached.values())
        assert cache._bytes <= MAX_BYTES
    assert cache._bytes > MAX_BYTES / 4, "and it keeps something"


def test_exports_have_a_limit(board: Board, app_client: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    board(a=1)
    monkeypatch.setattr("app.api.leaderboards.EXPORTS_PER_MINUTE", 2)
    statuses = [app_client("GET", "/api/v1/leaderboards/export.csv").status_code for _ in range(3)]
    assert statuses == [200, 200, 429]


def test_snapshots_stop_when_their_time_is_over_and_go_on_with_the_oldest(board: Board, tenant: str) -> None:
    board(a=1)
    assert snapshots.refresh(tenant, now=utcnow(), until=0.0) == 0
    with owner_tx() as tx:
        try_lock_boards(tx, "_snapshots")
        with pytest.raises(Busy):
            snapshots.refresh_all(now=utcnow())
    assert snapshots.refresh(tenant, now=utcnow()) > 10
    assert snapshots.refresh(tenant, now=utcnow()) == 0
