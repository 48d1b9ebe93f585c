"""The cache of boards' answers is bounded (P8)."""

from dataclasses import replace

import pytest

from analytics.boards import names
from analytics.metrics import VIEWS
from analytics.windows import Window
from app.http.answer_cache import MAX_BOARDS, MAX_BYTES, Answer, BoardAnswerCache


def listening_cache() -> BoardAnswerCache:
    cache = BoardAnswerCache()
    cache._listener.is_connected = True
    cache._listener.start = lambda: None  # type: ignore[method-assign]
    return cache


def test_made_up_spaces_do_not_evict_other_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.http.answer_cache.MAX_AGE_S", 60)
    cache = listening_cache()
    one = names.Board("t", "tenant", Window.WEEK, VIEWS)
    for number in range(MAX_BOARDS + 1):
        cache.get(replace(one, scope=f"space:{number}"), 1, lambda: Answer(b"x", "e", 1))
    made: list[int] = []
    for number in range(2, MAX_BOARDS + 1):
        cache.get(replace(one, scope=f"space:{number}"), 1, lambda: made.append(1) or Answer(b"x", "e", 1))  # type: ignore[func-returns-value]
    assert made == [], "only the oldest made room"


def test_the_cache_is_bounded_in_bytes() -> None:
    cache = listening_cache()
    one = names.Board("t", "tenant", Window.WEEK, VIEWS)
    for number in range(400):
        body = b"x" * 200_000
        cache.get(one, number, lambda body=body: Answer(body, "e", 1))  # type: ignore[misc]
        cache.get(replace(one, scope=f"space:{number}"), 1, lambda body=body: Answer(body, "e", 1))  # type: ignore[misc]
        assert cache._bytes == sum(len(k.answer.body) for kept in cache._cached.values() for k in kept.values())
        assert cache._bytes <= MAX_BYTES
    assert cache._bytes > MAX_BYTES / 4, "and it keeps something"
