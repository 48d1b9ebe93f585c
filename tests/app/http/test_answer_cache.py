"""The cache of boards' answers is bounded (P8)."""

from dataclasses import replace

import pytest

from analytics.boards import names
from analytics.metrics import VIEWS
from analytics.windows import Window
from app.http.answer_cache import MOST_BOARDS, MOST_BYTES, Answer, BoardShelf


def a_shelf() -> BoardShelf:
    shelf = BoardShelf()
    shelf._listener.is_connected = True
    shelf._listener.start = lambda: None  # type: ignore[method-assign]
    return shelf


def test_made_up_spaces_do_not_empty_the_shelf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.http.answer_cache.KEPT_S", 60)
    shelf = a_shelf()
    one = names.Board("t", "tenant", Window.WEEK, VIEWS)
    for number in range(MOST_BOARDS + 1):
        shelf.get(replace(one, scope=f"space:{number}"), 1, lambda: Answer(b"x", "e", 1))
    made: list[int] = []
    for number in range(2, MOST_BOARDS + 1):
        shelf.get(replace(one, scope=f"space:{number}"), 1, lambda: made.append(1) or Answer(b"x", "e", 1))  # type: ignore[func-returns-value]
    assert made == [], "only the oldest made room"


def test_the_shelf_is_bounded_in_bytes() -> None:
    shelf = a_shelf()
    one = names.Board("t", "tenant", Window.WEEK, VIEWS)
    for number in range(400):
        body = b"x" * 200_000
        shelf.get(one, number, lambda body=body: Answer(body, "e", 1))  # type: ignore[misc]
        shelf.get(replace(one, scope=f"space:{number}"), 1, lambda body=body: Answer(body, "e", 1))  # type: ignore[misc]
        assert shelf._bytes == sum(len(k.answer.body) for kept in shelf._kept.values() for k in kept.values())
        assert shelf._bytes <= MOST_BYTES
    assert shelf._bytes > MOST_BYTES / 4, "and it keeps something"
