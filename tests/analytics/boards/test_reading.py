"""A board reads the same from Redis, a snapshot and PostgreSQL (P3)."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
from flask.testing import FlaskClient
from sqlalchemy import select, text

from analytics import outbox
from analytics.boards import postgres_reads, reading, snapshots, summaries, versions
from analytics.boards.kept import BoardMemory
from analytics.boards.names import Board, Version, board_of
from analytics.boards.ranks import RankQuestion, entry_of
from analytics.boards.reading import Around, Top
from analytics.boards.rows import Listing, Position, Source
from analytics.ingest.pages import Page
from analytics.locks import Busy, lock_boards, try_lock_boards
from analytics.metrics import POINTS
from analytics.outbox import Kind
from analytics.windows import Window
from app.settings import Settings
from tenants import redis, users
from tenants.db import tenant_tx, utcnow
from tests.analytics.boards.conftest import (
    BOARD,
    MakeBoard,
    leave_unfinished,
    note_failure,
    order,
    project,
    put_back,
    read,
)
from tests.analytics.conftest import make_page
from tests.analytics.scores.conftest import pay
from tests.conftest import redis_unavailable
from tests.people import Caller, user_of
from tests.service import blocked_connections, eventually

BIGGEST = 2**53 - 1


def test_without_redis_it_is_read_from_postgres_and_from_the_snapshot(
    board: MakeBoard, app_client: Caller, tenant: str, request: pytest.FixtureRequest
) -> None:
    expected = order(board(a=1, b=3, c=3))
    request.getfixturevalue("no_redis")
    eventually(lambda: read(app_client)["source"] == "postgres")
    assert order(read(app_client)) == expected
    snapshots.refresh(tenant, now=utcnow())
    eventually(lambda: read(app_client)["source"] == "snapshot")
    assert order(read(app_client)) == expected
    deep = read(app_client, f"{BOARD}&limit=1&cursor={read(app_client, f'{BOARD}&limit=1')['next_cursor']}")
    assert (deep["source"], order(deep)) == ("snapshot", expected[1:2])
    member = read(app_client, "/api/v1/leaderboards/rank?scope=tenant&window=7d&metric=views&member=a&around=1")
    assert (member["rank"], member["source"]) == (3, "postgres")
    assert [row["rank"] for row in member["around"]] == [2, 3]


def test_ties_go_by_the_id_as_text_descending_everywhere(
    board: MakeBoard, app_client: Caller, request: pytest.FixtureRequest
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
    request.getfixturevalue("no_redis")
    assert [row["page"]["id"] for row in read(app_client, f"{BOARD}&limit=100")["items"]] == walked


def test_values_are_exact_up_to_2_to_the_53(board: MakeBoard, app_client: Caller, tenant: str) -> None:
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
        outbox.mark_selected_stale(tx, Kind.PAGE, "SELECT id::text FROM pages WHERE tenant_id = :tenant", {})
    project(tenant)
    answer = read(app_client)
    assert order(answer) == [(1, "a", BIGGEST), (2, "b", BIGGEST - 1)]
    after = read(app_client, f"{BOARD}&limit=1&cursor={read(app_client, f'{BOARD}&limit=1')['next_cursor']}")
    assert order(after) == [(2, "b", BIGGEST - 1)]


def test_a_cursor_loses_nobody_who_did_not_move(board: MakeBoard, app_client: Caller, tenant: str) -> None:
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


def test_an_erased_user_leaves_no_gap_until_the_board_follows(
    admin: Caller, client: FlaskClient, tenant: str, request: pytest.FixtureRequest
) -> None:
    people = [user_of(client, tenant).id for _ in range(16)]
    for place, person in enumerate(people):
        pay(tenant, person, 1_000 - place, utcnow())
    project(tenant)
    path = "/api/v1/leaderboards?scope=users&window=all"

    def walk(limit: int) -> list[tuple[int, str]]:
        rows, cursor = list[tuple[int, str]](), ""
        while True:
            page = read(admin, f"{path}&limit={limit}{cursor}")
            assert len(page["items"]) == limit or page["next_cursor"] is None
            rows += [(row["rank"], row["user"]["id"]) for row in page["items"]]
            if page["next_cursor"] is None:
                assert page["total"] == len(rows)
                return rows
            cursor = f"&cursor={page['next_cursor']}"

    assert walk(10) == [*enumerate(people, 1)]
    gone = {people[number] for number in (0, 4, 5, 9, 10, 12)}
    for person in gone:
        assert admin("DELETE", f"/api/v1/users/{person}").status_code == 200
    left = [*enumerate((person for person in people if person not in gone), 1)]
    assert walk(10) == left
    assert walk(4) == left

    def check_single_ranks() -> None:
        rank = "/api/v1/leaderboards/rank?scope=users&window=all&member="
        around = read(admin, f"{rank}{people[3]}&around=3")
        assert [(row["rank"], row["user"]["id"]) for row in around["around"]][:4] == left[:4]
        last = read(admin, f"{rank}{people[15]}")
        assert (last["rank"], last["total"]) == (len(left), len(left)), "none of those above was read"
        subset = read(admin, f"{path}&members={people[11]},{people[4]},{people[2]}")
        found = [(row["rank"], row["user"]["id"]) for row in subset["items"]]
        assert (found, subset["total"]) == ([left[1], left[6]], len(left))

    check_single_ranks()
    request.getfixturevalue("no_redis")
    assert walk(3) == left
    check_single_ranks()
    project(tenant)
    assert walk(10) == left
    check_single_ranks()


def test_a_page_that_became_private_leaves_no_gap_on_a_public_board(
    board: MakeBoard, app_client: Caller, tenant: str
) -> None:
    board(**{f"p{number}": 9 - number for number in range(8)})
    for number in range(8):
        make_page(app_client, f"p{number}", visibility="public")
    project(tenant)
    make_page(app_client, "p1", visibility="private")
    with tenant_tx(tenant) as tx:
        page_id = tx.scalar(select(Page.id).where(Page.external_id == "p1"))
    # As a projection does before it writes the board.
    redis.boards().redis.hset(f"pgs:{tenant}:{page_id}", "public", "0")
    public = board_of(tenant, "public", Window.WEEK, "views")
    shown = reading.read(public, Top(3), now=utcnow())
    assert [(row.rank, row.shown["external_id"]) for row in shown.rows if row.shown] == [
        (1, "p0"),
        (2, "p2"),
        (3, "p3"),
    ]


def test_rank_neighbours_and_a_subset(board: MakeBoard, app_client: Caller) -> None:
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


def test_boards_are_read_together_once_what_they_show_is_in_memory(
    board: MakeBoard, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    board(a=3, b=2, c=1)
    monkeypatch.setattr(reading, "NO_RANKS_FOR_S", 60)
    week = board_of(tenant, "tenant", Window.WEEK, "views")
    with tenant_tx(tenant) as tx:
        page_id = str(tx.scalar(select(Page.id).where(Page.external_id == "b")))
    memory, now = BoardMemory(lambda: True), utcnow()
    asked: list[tuple[Board, Top | Around]] = [(week, Top(2)), (week, Around(page_id, 1)), (week, Around("0", 1))]
    assert reading.read_together(asked, now=now, memory=memory)[:2] == [None, None], "PostgreSQL has to be asked first"
    alone = [reading.read(of_board, part, now=now, memory=memory) for of_board, part in asked]
    with monkeypatch.context() as without_postgres:
        without_postgres.setattr(reading, "transaction_for", None)
        without_postgres.setattr(summaries, "transaction_for", None)
        assert reading.read_together(asked, now=now, memory=memory) == alone
    assert [len(shown.rows) for shown in alone] == [2, 3, 0]
    with pytest.raises(ValueError, match="not read together"):
        reading.read_together([(week, Top(2, Position(1, "1")))], now=now, memory=memory)


def current_version(week: Board) -> int:
    with tenant_tx(week.tenant_id) as tx:
        return versions.read(tx, [week], now=utcnow())[week].number


def set_back_in_redis(week: Board) -> None:
    """As a Redis has a board that hung while it changed."""
    with redis.boards().client() as client:
        client.set(week.marker, Version(1, utcnow()).dump())


@pytest.mark.parametrize("part", [Top(5), Around("0", 1), reading.Only(["0"])])
def test_a_source_that_is_older_than_what_the_asker_has_does_not_answer(
    board: MakeBoard, tenant: str, part: reading.Part
) -> None:
    board(a=2)
    week = board_of(tenant, "tenant", Window.WEEK, "views")
    current = current_version(week)
    set_back_in_redis(week)
    assert reading.read(week, part, now=utcnow(), at_least=1).source is Source.REDIS
    for at_least in (2, current):
        shown = reading.read(week, part, now=utcnow(), at_least=at_least)
        assert (shown.source, shown.version) == (Source.POSTGRES, current)


def test_without_redis_a_snapshot_answers_only_who_has_nothing_newer(board: MakeBoard, tenant: str) -> None:
    board(a=2)
    week = board_of(tenant, "tenant", Window.WEEK, "views")
    then = current_version(week)
    snapshots.refresh(tenant, now=utcnow())
    board(a=1)
    current = current_version(week)
    with redis_unavailable():
        found = {
            at_least: (shown.source, shown.version)
            for at_least in (0, then, then + 1, current)
            if (shown := reading.read(week, Top(5), now=utcnow(), at_least=at_least))
        }
    snapshot, newest = (Source.SNAPSHOT, then), (Source.POSTGRES, current)
    assert found == {0: snapshot, then: snapshot, then + 1: newest, current: newest}


@pytest.mark.parametrize("path", [BOARD, f"{BOARD}&limit=1"])
def test_a_snapshot_says_that_nothing_changed_only_if_postgres_does(
    board: MakeBoard, app_client: Caller, tenant: str, path: str
) -> None:
    def statuses() -> tuple[int, int]:
        first = app_client("GET", path)
        return first.status_code, app_client("GET", path, headers={"If-None-Match": first.headers["ETag"]}).status_code

    board(a=2, b=1)
    snapshots.refresh(tenant, now=utcnow())
    with redis_unavailable():
        assert statuses() == (200, 304)
        assert app_client("POST", "/api/v1/events", json={"events": [{"type": "view", "page": "a"}]}).status_code == 202
        project(tenant)
        assert read(app_client)["source"] == "snapshot"
        assert statuses() == (200, 200)
    project(tenant)
    snapshots.refresh(tenant, now=utcnow())
    with redis_unavailable():
        assert statuses() == (200, 304)


def test_a_version_that_nobody_has_is_answered_by_the_newest_there_is(board: MakeBoard, tenant: str) -> None:
    """It was lost with a server, or made up by the asker."""
    board(a=2)
    week = board_of(tenant, "tenant", Window.WEEK, "views")
    current = current_version(week)
    shown = reading.read(week, Top(5), now=utcnow(), at_least=current + 1)
    assert (shown.source, shown.version) == (Source.REDIS, current)
    with redis_unavailable():
        shown = reading.read(week, Top(5), now=utcnow(), at_least=current + 1)
    assert (shown.source, shown.version) == (Source.POSTGRES, current)


def test_a_version_that_may_yet_be_committed_is_waited_for(
    board: MakeBoard, tenant: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis shows a change some moments before its commit, and may then be emptied."""
    board(a=2)
    week = board_of(tenant, "tenant", Window.WEEK, "views")
    current = current_version(week)
    with ThreadPoolExecutor(1) as pool, redis_unavailable():
        with tenant_tx(tenant, separate=True) as projecting:
            lock_boards(projecting, tenant)
            raised = versions.advance(projecting, [week], now=utcnow())[week].number
            assert reading.read(week, Top(5), now=utcnow(), at_least=current).version == current
            monkeypatch.setattr(reading, "MAX_COMMIT_WAIT_MS", 50)
            with pytest.raises(Busy):
                reading.read(week, Top(5), now=utcnow(), at_least=raised)
            monkeypatch.setattr(reading, "MAX_COMMIT_WAIT_MS", 60_000)
            waiting = pool.submit(reading.read, week, Top(5), now=utcnow(), at_least=raised)
            eventually(lambda: blocked_connections(settings.database_url or "") == 1)
        assert waiting.result(60).version == raised


def test_a_reader_holds_no_lock_while_it_reads(board: MakeBoard, tenant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A projection only tries the lock, so enough readers at once would keep it away."""
    board(a=2)
    week = board_of(tenant, "tenant", Window.WEEK, "views")
    read_top, free = postgres_reads.read_top, []

    def read_beside_a_projection(*arguments: Any, **options: Any) -> Listing:
        with tenant_tx(tenant, separate=True) as projecting:
            try_lock_boards(projecting, tenant)
        free.append(True)
        return read_top(*arguments, **options)

    monkeypatch.setattr(postgres_reads, "read_top", read_beside_a_projection)
    with redis_unavailable():
        reading.read(week, Top(5), now=utcnow(), at_least=current_version(week) + 1)
    assert free == [True]


def test_after_the_wait_no_snapshot_from_before_it_answers(
    board: MakeBoard, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    board(a=2)
    week = board_of(tenant, "tenant", Window.WEEK, "views")
    snapshots.refresh(tenant, now=utcnow())
    raised = []

    def commit_meanwhile(*arguments: Any, **options: Any) -> None:
        with tenant_tx(tenant, separate=True) as projecting:
            raised.append(versions.advance(projecting, [week], now=utcnow())[week].number)
        lock_boards(*arguments, **options)

    monkeypatch.setattr("analytics.boards.reading.lock_boards", commit_meanwhile)
    with redis_unavailable():
        shown = reading.read(week, Top(5), now=utcnow(), at_least=current_version(week) + 1)
    assert (shown.source, [shown.version]) == (Source.POSTGRES, raised)


def test_ranks_are_not_those_of_a_redis_that_is_behind(tenant: str) -> None:
    board = Board(tenant, "users", Window.ALL, POINTS)
    with tenant_tx(tenant) as tx:
        first, second = (users.ensure_external(tx, name, now=utcnow()) for name in ("first", "second"))
    pay(tenant, str(first), 5, utcnow())
    project(tenant)
    restore = put_back([board])
    pay(tenant, str(second), 50, utcnow())
    project(tenant)
    question = RankQuestion(board, [entry_of(uuid4(), 10, utcnow())])
    with tenant_tx(tenant) as tx:
        assert reading.ranks_for(tx, question) == [2]
    assert reading.known_ranks_together([question]) == [[2]]
    restore()
    leave_unfinished(tenant, str(second), kind=Kind.USER)
    assert reading.known_ranks_together([question]) == [[1]], "no failure was noticed"
    note_failure()
    assert reading.known_ranks_together([question]) == [None]
    with tenant_tx(tenant) as tx:
        assert reading.ranks_for(tx, question) == [2]
