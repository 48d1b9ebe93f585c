"""Boards in Redis are trusted once they have everything that was projected."""

import contextlib
from collections.abc import Callable, Iterator

import pytest
from flask import Flask

from analytics.boards import caught_up, reading, redis_store, snapshots
from analytics.boards.kept import BoardMemory
from analytics.boards.listener import Listener
from analytics.boards.names import ALL_TENANTS, GLOBAL, Board, board_of
from analytics.boards.ranks import RankQuestion
from analytics.boards.rows import Source
from analytics.windows import Window
from app.http.services import services_of
from app.settings import Settings
from tenants import redis
from tenants.db import tenant_tx, utcnow
from tests.analytics.boards.conftest import MakeBoard, leave_unfinished, note_failure, order, project, read
from tests.conftest import reachable_folder, redis_unavailable
from tests.people import Caller
from tests.redis_nodes import Node
from tests.service import eventually


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


@pytest.fixture
def own_redis(app: Flask, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """The boards' server, which a test may stop and start. Nothing listens to it but `listener`."""
    monkeypatch.setattr(services_of(app).boards._listener, "start", lambda: None)
    with reachable_folder() as folder, contextlib.ExitStack() as stack:
        node = Node(folder / "redis", is_clustered=False)
        stack.callback(node.kill)
        redis.configure(boards_url=node.url, queue_url=settings.queue_redis_url or "", boards_timeout_s=5)
        yield node


@pytest.fixture
def listener(own_redis: Node) -> Iterator[Listener]:
    listener = Listener({redis_store.CHANNEL: lambda _: None}, missed=lambda: None)
    listener.start()
    eventually(lambda: listener.is_connected)
    yield listener
    listener.stop()


def values(board: Board) -> tuple[Source, list[float]]:
    shown = reading.read(board, reading.Top(10), now=utcnow())
    return shown.source, [row.value for row in shown.rows]


def view(caller: Caller, page: str) -> None:
    assert caller("POST", "/api/v1/events", json={"events": [{"type": "view", "page": page}]}).status_code == 202


def test_an_idle_process_does_not_trust_boards_of_a_redis_that_hung(
    board: MakeBoard, app_client: Caller, tenant: str, own_redis: Node, listener: Listener
) -> None:
    week = board_of(tenant, "tenant", Window.WEEK, "views")
    board(a=2)
    assert values(week) == (Source.REDIS, [2])
    with own_redis.hung():
        view(app_client, "a")
        with redis_unavailable():  # of a worker that has waited in vain
            project(tenant)
        eventually(lambda: not caught_up.is_known(week))
    assert values(week) == (Source.POSTGRES, [3]), "the first read after it, and nobody asked meanwhile"
    project(tenant)
    assert values(week) == (Source.REDIS, [3])


@pytest.mark.parametrize("is_listening", [True, False])
def test_an_idle_process_does_not_trust_boards_of_an_old_dump(
    board: MakeBoard, tenant: str, own_redis: Node, is_listening: bool, request: pytest.FixtureRequest
) -> None:
    if is_listening:
        request.getfixturevalue("listener")
    week = board_of(tenant, "tenant", Window.WEEK, "views")
    load_old_dump(board, own_redis, week)
    if is_listening:
        eventually(lambda: not caught_up.is_known(week))
    assert values(week) == (Source.POSTGRES, [3]), "the first read after it"
    project(tenant)
    assert values(week) == (Source.REDIS, [3])


def test_snapshots_are_not_taken_of_an_old_dump(board: MakeBoard, tenant: str, own_redis: Node) -> None:
    week = board_of(tenant, "tenant", Window.WEEK, "views")
    load_old_dump(board, own_redis, week)
    snapshots.refresh(tenant, now=utcnow())
    with tenant_tx(tenant) as tx:
        taken = snapshots.live(tx, week, now=utcnow())
    assert taken is not None
    assert [row.value for row in taken.rows] == [3]


def test_answers_that_are_read_together_are_not_of_an_old_dump(
    board: MakeBoard, tenant: str, own_redis: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("analytics.boards.reading.NO_RANKS_FOR_S", 60)
    week, memory = board_of(tenant, "tenant", Window.WEEK, "views"), BoardMemory(lambda: True)

    def read_together() -> list[reading.ShownBoard | None]:
        reading.read(week, reading.Top(5), now=utcnow(), memory=memory)
        return reading.read_together([(week, reading.Top(5))], now=utcnow(), memory=memory)

    load_old_dump(board, own_redis, week, read_together)
    assert reading.read_together([(week, reading.Top(5))], now=utcnow(), memory=memory) == [None]


def test_ranks_are_not_those_of_an_old_dump(board: MakeBoard, tenant: str, own_redis: Node) -> None:
    week = board_of(tenant, "tenant", Window.WEEK, "views")
    questions = [RankQuestion(board_of(tenant, "users", Window.ALL, "points"))]
    load_old_dump(board, own_redis, week, lambda: reading.known_ranks_together(questions))
    assert reading.known_ranks_together(questions) == [None]


def load_old_dump(
    board: MakeBoard, server: Node, week: Board, read_before: Callable[[], object] = lambda: None
) -> None:
    """Restart Redis with its boards of before a change. This process was idle meanwhile."""
    board(a=2)
    with server.client() as client:
        client.save()
    board(a=1)
    assert values(week) == (Source.REDIS, [3])
    assert read_before() != [None]
    server.kill()
    server.start()


def test_snapshots_are_not_taken_of_a_redis_that_hung_unnoticed(
    board: MakeBoard, app_client: Caller, tenant: str
) -> None:
    week = board_of(tenant, "tenant", Window.WEEK, "views")
    board(a=2)
    assert values(week) == (Source.REDIS, [2])
    view(app_client, "a")
    with redis_unavailable():
        project(tenant)
    assert caught_up.is_known(week), "a worker does not listen"
    snapshots.refresh_all(now=utcnow())
    with tenant_tx(tenant) as tx:
        taken = snapshots.live(tx, week, now=utcnow())
    assert taken is not None
    assert [row.value for row in taken.rows] == [3]
