"""What a process keeps of boards: bounded, for a while, and not after it changed."""

from collections.abc import Callable
from datetime import date

import pytest

from analytics.boards.kept import BoardMemory, Kept
from analytics.boards.names import Board
from analytics.metrics import VIEWS
from analytics.windows import Window


def test_values_are_kept_for_their_time_and_the_oldest_make_room() -> None:
    now = [0.0]
    kept: Kept[str, int] = Kept(2, for_s=10, clock=lambda: now[0])
    kept.keep("a", 1)
    kept.keep("b", 2)
    kept.keep("a", 3)
    kept.keep("c", 4)
    assert [kept.get(name) for name in "abc"] == [3, None, 4], "b was the oldest"
    kept.keep("a", 5, for_s=1)
    now[0] = 2
    assert [kept.get(name) for name in "ac"] == [None, 4]
    now[0] = 11
    assert kept.get("c") is None
    assert len(kept) == 2


def test_summaries_that_changed_are_dropped_of_their_own_tenant_only() -> None:
    memory = BoardMemory(lambda: True)
    for tenant in ("a", "b"):
        memory.summaries.keep((tenant, "1"), {"title": "old"})
    before = memory.drops
    memory.on_change({"tenant": "a", "versions": {"tenant:7d:views": 2}})
    assert memory.drops == before, "only versions"
    memory.on_change({"tenant": "a", "versions": {}, "summaries": ["1", "2"]})
    assert memory.drops == before + 1
    assert memory.summaries.get(("a", "1")) is None
    assert memory.summaries.get(("b", "1")) == {"title": "old"}


@pytest.mark.parametrize(
    "forget",
    [BoardMemory.clear, lambda memory: memory.on_change({"tenant": "a", "versions": {}, "resync": True})],
    ids=["messages", "commits"],
)
def test_nothing_is_left_after_messages_or_commits_may_have_been_lost(forget: Callable[[BoardMemory], None]) -> None:
    memory = BoardMemory(lambda: True)
    board = Board("a", "tenant", Window.WEEK, VIEWS)
    memory.summaries.keep(("a", "1"), {})
    memory.page_ids.keep(("a", "home"), "1")
    memory.ranks.keep((board, date(2026, 1, 1)), (None,))
    forget(memory)
    assert (len(memory.summaries), len(memory.page_ids), len(memory.ranks)) == (0, 0, 0)


def test_a_page_that_is_shown_is_found_by_its_external_id_in_its_own_tenant() -> None:
    memory = BoardMemory(lambda: True)
    summary = {"external_id": "home", "tenant": "a"}
    memory.keep_page("_all", "1", summary)
    assert memory.summaries.get(("_all", "1")) == summary
    assert memory.page_ids.get(("a", "home")) == "1"
    assert memory.page_ids.get(("_all", "home")) is None
