"""Boards in Redis are trusted once they have everything that was projected."""

import pytest

from analytics.boards import caught_up, redis_store
from analytics.boards.names import ALL_TENANTS, GLOBAL, board_of
from analytics.windows import Window
from tenants import redis
from tests.analytics.boards.conftest import MakeBoard, leave_unfinished, note_failure, order, project, read
from tests.people import Caller


def test_after_a_failure_a_board_is_trusted_once_no_projection_is_unfinished(
    board: MakeBoard, app_client: Caller, tenant: str
) -> None:
    expected, week = order(board(a=2, b=1)), board_of(tenant, "tenant", Window.WEEK, "views")
    assert caught_up.is_trusted(week)
    leave_unfinished(tenant, "1")
    assert caught_up.is_trusted(week), "what a running projection is about to write is no reason"
    note_failure()
    assert not caught_up.is_known(week)
    assert not caught_up.is_trusted(week)
    answer = read(app_client)
    assert (answer["source"], order(answer)) == ("postgres", expected)
    project(tenant)
    assert not caught_up.is_known(week)
    assert caught_up.is_trusted(week)
    assert caught_up.is_known(week)
    assert read(app_client)["source"] == "redis"


def test_a_failure_while_postgres_is_asked_is_not_missed(
    board: MakeBoard, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    board(a=1)
    week = board_of(tenant, "tenant", Window.WEEK, "views")
    note_failure()
    ask = caught_up._has_caught_up

    def ask_and_fail(*arguments: object) -> bool:
        answer = ask(*arguments)  # type: ignore[arg-type]
        note_failure()
        return answer

    monkeypatch.setattr(caught_up, "_has_caught_up", ask_and_fail)
    assert caught_up.is_trusted(week), "at the moment in which it was asked"
    assert not caught_up.is_known(week)


def test_boards_of_an_old_dump_are_not_trusted(board: MakeBoard, tenant: str) -> None:
    board(a=1)
    week = board_of(tenant, "tenant", Window.WEEK, "views")
    with redis.boards().client() as client:
        client.set(redis_store.ready_key(tenant), "another-run-id")
    note_failure()
    assert not caught_up.is_trusted(week)
    project(tenant)
    assert caught_up.is_trusted(week)


def test_the_global_boards_are_trusted_at_the_versions_that_postgres_has(
    board: MakeBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    board(a=1)
    week = board_of("any", GLOBAL, Window.WEEK, "views")
    assert week.tenant_id == ALL_TENANTS
    monkeypatch.setattr(redis_store, "state", lambda *_: redis_store.RedisState.READY)
    monkeypatch.setattr(redis_store, "published_version", lambda *_: 2**62)
    note_failure()
    assert caught_up.is_trusted(week)
    note_failure()
    monkeypatch.setattr(redis_store, "published_version", lambda *_: -1)
    assert not caught_up.is_trusted(week)
