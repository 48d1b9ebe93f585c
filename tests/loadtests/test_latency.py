"""How long a like took to its board is computed from answers and reads of the board."""

import pytest

from loadtests.latency import WATCHED_IN, Latency, waits_of
from loadtests.steady import Answered


def like(place: int, at: float, likes: int, status: int = 200) -> Answered:
    return Answered(place * WATCHED_IN, at, status, b'{"liked":true,"likes":%d}' % likes)


def test_a_like_waits_until_the_board_shows_as_many() -> None:
    read = [(10.0, 500), (11.0, 501), (12.0, 503)]
    answers = [like(1, 10.5, 501), like(2, 10.75, 502), like(3, 12.5, 503), like(4, 12.6, 504)]
    assert waits_of(answers, read) == [0.5, 1.25, 0.0]  # the last is not on the board yet


def test_other_pages_second_likes_and_failures_are_left_out() -> None:
    read = [(10.0, 500), (11.0, 501)]
    other = Answered(WATCHED_IN + 1, 10.5, 200, b'{"liked":true,"likes":501}')
    assert waits_of([other, like(1, 10.5, 500), like(2, 10.5, 501, status=429)], read) == []
    assert waits_of([like(1, 10.5, 501), like(2, 10.9, 501)], read) == [0.5]


@pytest.mark.parametrize(
    ("reached", "likes", "is_valid"), [(1_000, 9, True), (960, 9, True), (940, 9, False), (1_000, 0, False)]
)
def test_a_rate_that_was_not_reached_is_not_valid(reached: float, likes: int, is_valid: bool) -> None:
    assert Latency(1_000, reached, likes, 1.0, 2.0).is_valid is is_valid
