"""Answers about boards: kept under what the caller may see, computed with what the process knows."""

from typing import Any

import orjson
import pytest
from flask.testing import FlaskClient

from analytics.boards import projection
from analytics.boards.kept import BoardMemory
from analytics.boards.names import board_of
from analytics.ingest.pages import PageNotFound
from analytics.windows import Window
from app.http.auth import Reader
from app.http.board_answers import answer_key, page_rank_answer, stats_answer, top_answer
from tenants.db import utcnow
from tests.analytics.conftest import make_page
from tests.people import client_of


@pytest.fixture
def reader(client: FlaskClient, tenant: str) -> Reader:
    admin = client_of(client, tenant)
    for name, views in (("a", 1), ("b", 2)):
        make_page(admin, name)
        events = [{"type": "view", "page": name}] * views
        assert admin("POST", "/api/v1/events", json={"events": events}).status_code == 202
    projection.project_all(tenant, now=utcnow)
    return Reader(tenant, public_only=False, is_anonymous=False)


def test_a_key_differs_by_tenant_by_what_is_seen_and_by_whose_answer_it_is() -> None:
    audiences = [(False, False), (True, False), (True, True)]
    readers = [Reader(tenant, public_only=p, is_anonymous=a) for tenant in ("a", "b") for p, a in audiences]
    keys = {answer_key(reader, target, of=of) for reader in readers for target in ("/x?", "/y?") for of in ("", "me")}
    assert len(keys) == 6 * 2 * 2


def test_a_second_read_needs_neither_postgresql_nor_summaries(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = BoardMemory(lambda: True)
    board = board_of(reader.tenant_id, "tenant", Window.WEEK, "views")

    def read() -> tuple[Any, Any]:
        top = top_answer(reader, board, 10, None, 0, explain=False, memory=memory)
        rank = page_rank_answer(reader, board, "a", 5, 0, memory=memory)
        return orjson.loads(top.body), orjson.loads(rank.body)

    first = read()

    def refuse(*_args: Any, **_more: Any) -> Any:
        raise AssertionError("asked again")

    for place in ("analytics.boards.reading.transaction_for", "app.http.board_answers.tenant_tx"):
        monkeypatch.setattr(place, refuse)
    monkeypatch.setattr("analytics.boards.summaries.summary_key", refuse)
    assert read() == first
    assert (first[0]["source"], first[1]["rank"], len(first[1]["around"])) == ("redis", 2, 2)


def test_an_unknown_page_has_neither_rank_nor_numbers(reader: Reader) -> None:
    board = board_of(reader.tenant_id, "tenant", Window.WEEK, "views")
    memory = BoardMemory(lambda: True)
    memory.page_ids.keep((reader.tenant_id, "gone"), "999999")
    for name in ("nowhere", "gone", "not a name"):
        with pytest.raises(PageNotFound):
            page_rank_answer(reader, board, name, 0, 0, memory=memory)
    with pytest.raises(PageNotFound):
        stats_answer(reader, "nowhere")
    assert orjson.loads(stats_answer(reader, "a"))["views"]["7d"] == 1
