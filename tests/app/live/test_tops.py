"""The first rows of boards: read once for all connections."""

from dataclasses import replace
from typing import Any

import orjson
import pytest

from analytics.boards import projection, reading, versions
from analytics.boards.names import Board, board_of
from analytics.boards.reading import ShownBoard
from analytics.boards.rows import Source
from analytics.locks import lock_boards
from analytics.metrics import LIKES
from analytics.windows import Window
from app.live import tops as live_tops
from app.live.tops import Tops
from tenants.db import tenant_tx, utcnow
from tenants.errors import Unavailable
from tests.app.live.conftest import like
from tests.app.live.test_hub import BOARD
from tests.people import Caller


def empty_board(board: Board) -> ShownBoard:
    return ShownBoard(board, [], total=0, version=1, source=Source.REDIS, as_of=utcnow(), next=None)


def test_rows_are_read_once_however_many_ask_also_where_they_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []

    def read(board: Board, *_args: Any, **_options: Any) -> ShownBoard:
        reads.append(1)
        if len(reads) > 1:
            raise Unavailable
        return empty_board(board)

    monkeypatch.setattr(reading, "read", read)
    tops = Tops()
    for _ in range(100):
        assert tops.get(BOARD, 10, 1, ()).version == 1
    assert len(reads) == 1
    for _ in range(100):
        with pytest.raises(Unavailable):
            tops.get(BOARD, 10, 2, ())
    assert len(reads) == 2


def test_rows_are_at_the_wanted_version_or_the_newest_there_is(wiki: Caller) -> None:
    board, tops = Board(wiki.tenant, "tenant", Window.WEEK, LIKES), Tops()
    like(wiki, "ann")
    first = tops.get(board, 10, 1, ())
    assert [row["page"]["external_id"] for row in first.items] == ["a"]
    assert orjson.loads(orjson.dumps(first.body)) == first.items
    assert not first.is_newest, "nobody asked for more"
    lost = tops.get(board, 10, first.version + 7, ())
    assert (lost.version, lost.is_newest) == (first.version, True), "PostgreSQL has none that is newer"
    like(wiki, "ben")
    (row,) = Tops().get(board, 10, first.version + 1, ()).items
    assert row["value"] == 2


def test_rows_show_of_users_what_the_follower_may_see(wiki: Caller) -> None:
    wiki("PUT", "/api/v1/actions/catalog/post", json={"points": 5})
    event = {"type": "action", "action_type": "post", "user": "ada@example.org"}
    assert wiki("POST", "/api/v1/events", json={"events": [event]}).get_json()["accepted"] == 1
    projection.project_all(wiki.tenant, now=utcnow)
    board, tops = board_of(wiki.tenant, "users", Window.ALL, None), Tops()
    for fields in (("id", "external_id"), ("id",)):
        (row,) = tops.get(board, 10, 1, fields).items
        assert row["user"].get("external_id") == ("ada@example.org" if "external_id" in fields else None)


def test_the_rows_of_made_up_boards_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []

    def read(board: Board, *_args: Any, **_options: Any) -> ShownBoard:
        reads.append(board.scope)
        return empty_board(board)

    monkeypatch.setattr(reading, "read", read)
    monkeypatch.setattr(live_tops, "MAX_ENTRIES", 3)
    tops = Tops()
    for scope in ("a", "b", "c", "a", "d", "a"):
        tops.get(replace(BOARD, scope=f"space:{scope}"), 10, 1, ())
    assert reads == [f"space:{scope}" for scope in ("a", "b", "c", "a", "d")], "all are forgotten when there are three"


def test_rows_are_not_the_newest_while_a_newer_version_may_be_committed(
    wiki: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = Board(wiki.tenant, "tenant", Window.WEEK, LIKES)
    like(wiki, "ann")
    version = Tops().get(board, 10, 1, ()).version
    monkeypatch.setattr(reading, "MAX_COMMIT_WAIT_MS", 50)
    with tenant_tx(wiki.tenant, separate=True) as projecting:
        lock_boards(projecting, wiki.tenant)
        raised = versions.advance(projecting, [board], now=utcnow())[board].number
        with pytest.raises(Unavailable):
            Tops().get(board, 10, raised, ())
    found = Tops().get(board, 10, raised, ())
    assert (found.version, found.is_newest) == (raised, False)
    assert version < raised
