"""How findings read."""

import pytest

from app.doctor.findings import Level, duration, has_problem, ok, problem, size, some, warn


def test_only_problems_are_problems() -> None:
    advice = {"why": "because", "advice": "change it"}
    assert not has_problem([ok("x", "fine"), warn("x", "well", **advice)])
    assert has_problem([ok("x", "fine"), problem("x", "bad", **advice)])
    assert [level.value for level in Level] == ["ok", "warn", "problem"]


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 bytes"), (1023, "1.02e+03 bytes"), (128 * 2**20, "128 MB"), (1.5 * 2**40, "1.5 TB")]
)
def test_sizes_are_in_units_of_1024(number: float, text: str) -> None:
    assert size(number) == text


@pytest.mark.parametrize(("seconds", "text"), [(7, "7 s"), (600, "10 min"), (9000, "2.5 h"), (864_000, "10 days")])
def test_times_are_in_the_unit_that_fits(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_of_many_names_a_few_are_listed_and_the_rest_is_counted() -> None:
    assert some(["a", "b"]) == "a, b"
    assert some("abcde") == "a, b, c and 2 more"
