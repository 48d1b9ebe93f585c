"""Snapshots: a board as it was, and without Redis."""

from datetime import timedelta

import pytest
from flask.testing import FlaskClient
from sqlalchemy import text

from analytics.boards import snapshots
from analytics.boards.names import ALL_TENANTS, board_of
from analytics.boards.snapshots import Refreshed
from analytics.locks import Busy, try_lock_boards
from analytics.windows import Window
from tenants import across
from tenants.db import owner_tx, tenant_tx, utcnow
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
from tests.people import Caller


def test_the_board_as_it_was_and_who_moved_since(board: MakeBoard, app_client: Caller, tenant: str) -> None:
    board(a=3, b=2)
    snapshots.refresh(tenant, now=utcnow())
    with owner_tx() as tx:
        tx.execute(
            text("UPDATE leaderboard_snapshots SET taken_at = :then WHERE tenant_id = :t AND taken_at > :then"),
            {"t": tenant, "then": utcnow() - timedelta(days=1)},
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


def test_of_a_page_that_is_private_now_an_earlier_public_board_shows_nothing(
    board: MakeBoard, app_client: Caller, client: FlaskClient, tenant: str
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


def test_a_snapshot_answers_for_a_minute_after_a_change_and_as_long_as_there_is_none(
    board: MakeBoard, app_client: Caller, tenant: str, request: pytest.FixtureRequest
) -> None:
    board(a=3, b=2)

    def taken(ago: timedelta) -> None:
        with owner_tx() as tx:
            statement = "UPDATE leaderboard_snapshots SET taken_at = :at WHERE tenant_id = :t AND sealed_on = :live"
            tx.execute(text(statement), {"t": tenant, "at": utcnow() - ago, "live": snapshots.LIVE})

    snapshots.refresh(tenant, now=utcnow())
    request.getfixturevalue("no_redis")
    taken(timedelta(hours=1))
    assert read(app_client)["source"] == "snapshot", "nothing has changed since"
    # Nobody has read the change, or this process would answer nothing older.
    assert app_client("POST", "/api/v1/events", json={"events": [{"type": "view", "page": "b"}] * 2}).status_code == 202
    project(tenant)
    taken(timedelta(seconds=30))
    answer = read(app_client)
    assert (answer["source"], order(answer)) == ("snapshot", [(1, "a", 3), (2, "b", 2)])
    taken(timedelta(seconds=60))
    answer = read(app_client)
    assert (answer["source"], order(answer)) == ("postgres", [(1, "b", 4), (2, "a", 3)])
    snapshots.refresh(tenant, now=utcnow())
    answer = read(app_client)
    assert (answer["source"], order(answer)) == ("snapshot", [(1, "b", 4), (2, "a", 3)])


def test_snapshots_stop_when_their_time_is_over_and_go_on_with_the_oldest(board: MakeBoard, tenant: str) -> None:
    board(a=1)
    assert snapshots.refresh(tenant, now=utcnow(), until=0.0) == Refreshed(0, more=True)
    with tenant_tx(tenant, separate=True) as tx:
        try_lock_boards(tx, f"_snapshots:{tenant}")
        with pytest.raises(Busy):
            snapshots.refresh(tenant, now=utcnow())
    done = snapshots.refresh(tenant, now=utcnow())
    assert (done.boards > 10, done.more) == (True, False)
    assert snapshots.refresh(tenant, now=utcnow()) == Refreshed(0, more=False)


def test_snapshots_end_after_the_step_when_their_turn_is_over(
    board: MakeBoard, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    board(a=1)
    monkeypatch.setattr(snapshots, "MAX_BOARDS_PER_STEP", 7)
    steps = [snapshots.refresh(tenant, now=utcnow(), is_over=lambda: True) for _ in range(2)]
    assert steps == [Refreshed(7, more=True)] * 2
    assert not snapshots.refresh(tenant, now=utcnow()).more


def test_a_run_whose_turns_end_visits_every_tenant_once_before_it_continues_one(
    tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenants = [ALL_TENANTS, *(f"t{number}" for number in range(5))]
    left, visited = {"t1": 3, "t4": 2}, list[str]()

    def refresh(tenant_id: str, **_: object) -> Refreshed:
        visited.append(tenant_id)
        if tenant_id == "t2":
            raise RuntimeError("a bug")
        left[tenant_id] = left.get(tenant_id, 1) - 1
        return Refreshed(1, more=left[tenant_id] > 0)

    monkeypatch.setattr(snapshots, "refresh", refresh)
    monkeypatch.setattr(across, "live_tenants", lambda: tenants[1:])
    now = utcnow()
    run: snapshots.Run | None = None
    for began_at in (now, now + timedelta(seconds=40)):
        left, run = {"t1": 3, "t4": 2}, snapshots.Run(began_at)
        visited.clear()
        while run is not None:
            run = snapshots.refresh_all(now=began_at, run=run, is_over=lambda: True).rest
        assert sorted(visited[:6]) == sorted(tenants)
        assert visited[6:] in (["t1", "t4", "t1"], ["t4", "t1", "t1"])
    late = snapshots.Run(now - timedelta(seconds=snapshots.MAX_RUN_S + 1))
    assert snapshots.refresh_all(now=now, run=late) == snapshots.Taken(0, None), "the next run does the rest"


def test_a_redis_that_is_behind_gives_no_snapshot(board: MakeBoard, tenant: str) -> None:
    week = board_of(tenant, "tenant", Window.WEEK, "views")
    board(a=2, b=1)
    restore = put_back([week])
    page_id = board(b=3)["items"][0]["page"]["id"]
    snapshots.refresh(tenant, now=utcnow() - timedelta(minutes=2))
    with owner_tx() as tx:  # so that it is taken once more
        tx.execute(text("UPDATE leaderboard_snapshots SET version = 0 WHERE tenant_id = :t"), {"t": tenant})
    restore()
    leave_unfinished(tenant, str(page_id))
    note_failure()
    snapshots.refresh(tenant, now=utcnow())
    with tenant_tx(tenant) as tx:
        snapshot = snapshots.live(tx, week, now=utcnow())
    assert snapshot is not None
    assert [(row.rank, row.value) for row in snapshot.rows] == [(1, 4), (2, 2)]
