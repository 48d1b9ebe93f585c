"""Boards on a Redis Cluster, a node of which dies: read throughout, and right again when it is back."""

from collections.abc import Iterator

import pytest
from flask.testing import FlaskClient

from analytics.boards import checking, projection, reading, redis_store
from analytics.boards.names import Board, boards_in
from analytics.boards.reading import Top
from analytics.boards.rows import Source
from app.settings import Settings
from tenants import redis
from tenants.db import utcnow
from tenants.redis_cluster import slot_of
from tests.analytics.conftest import make_page
from tests.people import client_of
from tests.redis_nodes import Node, node_of_slot, running_nodes, url_of
from tests.service import eventually


@pytest.fixture
def nodes(connected: None, settings: Settings) -> Iterator[list[Node]]:
    with running_nodes() as nodes:
        redis.configure(boards_url=url_of(nodes), queue_url=settings.queue_redis_url or "")
        yield nodes


def test_a_node_that_dies_costs_only_its_boards_redis_and_all_are_right_afterwards(
    client: FlaskClient, tenant: str, nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = client_of(client, tenant, "pages:write", "events:write")

    def view() -> None:
        assert sender("POST", "/api/v1/pages/home/views").status_code == 202

    def read_all() -> dict[Board, tuple[Source, float]]:
        found = {board: reading.read(board, Top(10), now=utcnow()) for board in boards if board.metric.name == "views"}
        return {board: (shown.source, shown.rows[0].value) for board, shown in found.items()}

    boards = [board for scope in ("tenant", "space:eng") for board in boards_in(tenant, scope)]
    make_page(sender, "home")
    view()
    assert projection.project_all(tenant, now=utcnow).in_redis
    assert set(read_all().values()) == {(Source.REDIS, 1)}
    lost = node_of(next(iter(read_all())))
    nodes[lost].kill()
    view()
    assert not projection.project_all(tenant, now=utcnow).in_redis
    for board, (source, _) in read_all().items():
        assert (source is Source.POSTGRES) == (node_of(board) == lost), board
    monkeypatch.setattr(projection, "MAX_BEHIND_S", 0.0)
    projection.project_all(tenant, now=utcnow)
    assert set(read_all().values()) == {(Source.POSTGRES, 2)}, "after a while none is behind, though nothing changes"
    nodes[lost].start()
    eventually(lambda: projection.project_all(tenant, now=utcnow).in_redis)
    assert set(read_all().values()) == {(Source.REDIS, 2)}
    report = checking.check(tenant, now=utcnow())
    assert (report.differences, report.due) == ([], 0)
    with redis.boards().client() as found:
        redis_store.delete_tenant(found, tenant)
        assert list(found.scan_iter(f"*{tenant}*")) == []


def node_of(board: Board) -> int:
    return node_of_slot(slot_of(("GET", board.key)))
