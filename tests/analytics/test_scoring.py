"""The score, by its properties."""

import math

from hypothesis import given
from hypothesis import strategies as st

from analytics.scoring import Weights, explain, score

counts = st.integers(0, 2**53)
weights = st.builds(Weights, likes=st.floats(0, 1000), views=st.floats(0, 1000))


@given(weights, counts, counts, counts)
def test_more_likes_or_views_never_lower_a_score(weighed: Weights, likes: int, views: int, more: int) -> None:
    base = score(weighed, likes=likes, views=views)
    assert score(weighed, likes=likes + more, views=views) >= base
    assert score(weighed, likes=likes, views=views + more) >= base


@given(weights, counts, counts)
def test_a_score_has_six_decimals_and_its_explanation_says_the_same(weighed: Weights, likes: int, views: int) -> None:
    value = score(weighed, likes=likes, views=views)
    assert value == round(value, 6)
    assert math.isfinite(value)
    said = explain(weighed, likes=likes, views=views)
    assert said["score"] == value
    assert math.isclose(said["likes"]["points"] + said["views"]["points"], value, rel_tol=1e-9, abs_tol=1e-5)


def test_nothing_scores_nothing() -> None:
    assert score(Weights(), likes=0, views=0) == 0
