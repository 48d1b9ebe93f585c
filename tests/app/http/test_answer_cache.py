"""The cache of boards' answers: of the newest version only, computed once, and bounded (P8)."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from analytics.boards.names import Board
from analytics.metrics import VIEWS
from analytics.windows import Window
from app.http import answer_cache
from app.http.answer_cache import MAX_BYTES, Answer, BoardAnswerCache

BOARD = Board("t", "tenant", Window.WEEK, VIEWS)


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> BoardAnswerCache:
    """A cache that receives what is published, and whose answers are valid for the whole test."""
    monkeypatch.setattr(answer_cache, "MAX_AGE_S", 600)
    cache = BoardAnswerCache()
    cache._listener.is_connected = True
    monkeypatch.setattr(cache._listener, "start", lambda: None)
    return cache


def answer(version: int = 1, body: bytes = b"x") -> Callable[[int], Answer]:
    return lambda _: Answer.of(body, version=version)


def publish(cache: BoardAnswerCache, version: int, tenant: str = "t") -> None:
    cache._on_change({"tenant": tenant, "versions": {BOARD.topic: version}})


def test_an_answer_is_used_until_its_board_changes(cache: BoardAnswerCache) -> None:
    assert cache.get(BOARD, "a", answer(1, b"first")).body == b"first"
    publish(cache, 9, tenant="another")
    assert cache.get(BOARD, "a", answer(1, b"second")).body == b"first"
    publish(cache, 2)
    assert cache.find("a") is None
    assert cache.get(BOARD, "a", answer(2, b"second")).body == b"second"


def test_an_answer_that_was_read_before_a_change_is_not_kept(cache: BoardAnswerCache) -> None:
    def compute(_: int) -> Answer:
        publish(cache, 2)
        return Answer.of(b"old", version=1)

    assert cache.get(BOARD, "a", compute).body == b"old"
    assert cache.find("a") is None


def test_nothing_is_used_while_messages_may_be_lost(cache: BoardAnswerCache) -> None:
    cache.get(BOARD, "a", answer())
    cache._listener.is_connected = False
    assert cache.find("a") is None
    cache._on_gap()
    cache._listener.is_connected = True
    assert cache.find("a") is None


def test_a_kept_answer_is_not_for_who_has_a_newer_one(cache: BoardAnswerCache) -> None:
    cache.get(BOARD, "a", answer(1, b"first"))
    assert cache.get(BOARD, "a", answer(2, b"second"), at_least=1).body == b"first"
    assert cache.get(BOARD, "a", answer(2, b"second"), at_least=2).body == b"second"
    assert cache.get(BOARD, "a", answer(3, b"third")).body == b"second"


def test_no_answer_is_to_be_older_than_those_before_wherever_it_is_read(cache: BoardAnswerCache) -> None:
    asked: list[int] = []

    def compute(at_least: int) -> Answer:
        asked.append(at_least)
        return Answer.of(b"x", version=5)

    cache.get(BOARD, "a", compute)
    cache.get(BOARD, "b", compute)
    cache._on_gap()
    cache._listener.is_connected = False
    cache.get(BOARD, "a", compute)
    publish(cache, 6)
    publish(cache, 4)
    cache.get(BOARD, "a", compute)
    assert not cache.keep(BOARD, "c", Answer.of(b"x", version=5))
    assert asked == [0, 5, 5, 6]
    cache._on_change({"tenant": "t", "versions": {}, "resync": True})
    assert cache.newest(BOARD) == 0, "the version may have been lost with a server"


def test_any_change_of_the_tenant_ends_what_is_kept_of_its_pages(cache: BoardAnswerCache) -> None:
    cache.get_of_tenant("t", "stats", lambda: b"1")
    assert cache.find("stats") is not None
    publish(cache, 5)
    assert cache.find("stats") is None
    cache.get_of_tenant("t", "stats", lambda: b"2")
    cache.drop_of_tenant("t")
    assert cache.find("stats") is None


def test_what_many_ask_for_at_once_is_computed_once(cache: BoardAnswerCache) -> None:
    gate, computed = threading.Barrier(8), []

    def compute(_: int) -> Answer:
        computed.append(1)
        waiting.wait(20)
        return Answer.of(b"x", version=1)

    def ask(_: int) -> bytes:
        gate.wait(20)
        return cache.get(BOARD, "a", compute).body

    waiting = threading.Event()
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(ask, number) for number in range(8)]
        waiting.set()
        assert {one.result(20) for one in asked} == {b"x"}
    assert len(computed) <= 2, "one, and whoever came after the first was done and before it was kept"


def test_who_computes_may_fail_and_others_compute_themselves(cache: BoardAnswerCache) -> None:
    def fail(_: int) -> Answer:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        cache.get(BOARD, "a", fail)
    assert cache.get(BOARD, "a", answer()).body == b"x"


def test_the_cache_is_bounded_in_bytes_and_answers(cache: BoardAnswerCache, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(400):
        cache.get(BOARD, number, answer(body=b"x" * 200_000))
        assert cache._bytes == sum(kept.size for kept in cache._answers.values()) <= MAX_BYTES
    assert cache._bytes > MAX_BYTES / 4, "and it keeps something"
    monkeypatch.setattr(answer_cache, "MAX_ANSWERS", 10)
    for number in range(100):
        cache.get(BOARD, f"small-{number}", answer())
    assert len(cache._answers) == 10
    assert cache.find("small-99") is not None


def test_the_names_of_boards_are_bounded(cache: BoardAnswerCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_cache, "MAX_NAMES", 100)
    for number in range(1_000):
        publish(cache, 1, tenant=f"t-{number}")
    assert len(cache._newest_versions) <= 101
