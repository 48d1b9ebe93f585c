"""Questions that are asked together: everything that came while another round trip was under way."""

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from analytics.boards.names import board_of
from analytics.boards.reading import Top
from analytics.windows import Window
from app.http.answer_cache import Answer
from app.http.auth import Reader
from app.http.fast_calls import BoardQuestion
from app.http.gathered import MAX_TOGETHER, Gathered
from tests.service import eventually


def question(name: str) -> BoardQuestion:
    reader = Reader("acme", public_only=False, is_anonymous=False)
    return BoardQuestion("user:ada", reader, board_of("acme", "tenant", Window.WEEK, "views"), Top(10), name)


Reads = Gathered[BoardQuestion, Answer]


class Asked:
    """Answers a question with its own key; the first round trip takes until it is released."""

    def __init__(self) -> None:
        self.rounds: list[list[Any]] = []
        self.release = threading.Event()

    def __call__(self, questions: Sequence[BoardQuestion]) -> list[Answer | None]:
        keys = [question.key for question in questions]
        self.rounds.append(keys)
        if len(self.rounds) == 1:
            assert self.release.wait(10)
        if "broken" in keys:
            raise ZeroDivisionError
        return [None if key == "unknown" else Answer.of(str(key).encode(), version=1) for key in keys]


@pytest.fixture
def answers() -> dict[str, bytes | None]:
    return {}


def submit(reads: Reads, names: Sequence[str], answers: dict[str, bytes | None]) -> None:
    for name in names:

        def done(answer: Answer | None, name: str = name) -> None:
            answers[name] = answer.body if answer is not None else None

        assert reads.submit(question(name), done)


def test_what_comes_during_a_round_trip_shares_the_next(answers: dict[str, bytes | None]) -> None:
    asked = Asked()
    reads = Reads("reads", asked, max_waiting=100)
    submit(reads, ["first"], answers)
    eventually(lambda: asked.rounds)
    names = [f"q{number}" for number in range(MAX_TOGETHER + 1)]
    submit(reads, [*names, "unknown"], answers)
    asked.release.set()
    eventually(lambda: len(answers) == len(names) + 2)
    assert asked.rounds == [["first"], names[:MAX_TOGETHER], [names[MAX_TOGETHER], "unknown"]]
    assert answers == {name: name.encode() for name in ("first", *names)} | {"unknown": None}


def test_after_a_failure_each_is_to_be_answered_by_itself_and_the_next_are_asked(
    answers: dict[str, bytes | None],
) -> None:
    asked = Asked()
    asked.release.set()
    reads = Reads("reads", asked, max_waiting=100)
    submit(reads, ["broken"], answers)
    eventually(lambda: answers)
    submit(reads, ["later"], answers)
    eventually(lambda: len(answers) == 2)
    assert answers == {"broken": None, "later": b"later"}


def test_when_too_many_wait_no_more_are_taken(answers: dict[str, bytes | None]) -> None:
    asked = Asked()
    reads = Reads("reads", asked, max_waiting=2)
    submit(reads, ["first"], answers)
    eventually(lambda: asked.rounds)
    submit(reads, ["second", "third"], answers)
    assert not reads.submit(question("fourth"), lambda _: pytest.fail("it was not taken"))
    asked.release.set()
    eventually(lambda: len(answers) == 3)
    submit(reads, ["fifth"], answers)
    eventually(lambda: "fifth" in answers)
