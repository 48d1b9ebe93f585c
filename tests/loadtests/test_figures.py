"""Medians, spreads and ratios of rounds."""

from math import isnan, nan

from loadtests.figures import Figure, Spread, number
from loadtests.generator import Sample


def test_a_spread_is_median_and_extremes_of_what_is_known() -> None:
    assert Spread.of([3, 1, nan, 2]) == Spread(2, 1, 3)
    assert isnan(Spread.of([nan]).median)
    assert Spread.of([nan]).as_json() == {"median": None, "low": None, "high": None}


def test_ratios_are_of_the_same_round() -> None:
    """A round in which the machine was slow changes neither ratio."""
    figure = Figure("x", "X", events=100, floor="sql")
    figure.samples = [Sample(10), Sample(20), Sample(5)]
    figure.floors = [Sample(2_000), Sample(4_000), Sample(1_000)]
    figure.flask = [Sample(500), Sample(1_000), Sample(250)]
    assert figure.per_second == Spread(1_000, 500, 2_000)
    assert figure.ratio == Spread(0.5, 0.5, 0.5)
    assert figure.ratio_to_flask == Spread(2, 2, 2)
    assert figure.as_json()["rounds"] == [1_000, 2_000, 500]


def test_a_figure_with_many_failures_is_refused() -> None:
    figure = Figure("x", "X", samples=[Sample(10, failed_share=0.0), Sample(10, failed_share=0.5)], failures={429: 7})
    assert figure.refused == "25% of the requests failed: {429: 7}"
    assert "per_second" not in figure.as_json()
    assert Figure("x", "X").refused == "not measured"
    assert Figure("x", "X", samples=[Sample(10, failed_share=0.01)]).refused is None


def test_numbers_are_short() -> None:
    assert [number(value) for value in (12_345.6, 123.4, 12.34, 0.1234, nan)] == ["12,346", "123", "12", "0.12", "?"]
