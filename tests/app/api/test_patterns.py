"""Regular expressions in the contract: in ECMAScript's syntax, and with the same meaning."""

import pytest

from app.api import patterns


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (r"[a-z]{1,3}\Z", "[a-z]{1,3}$"),
        (r"\Aa", "^a"),
        (r"(?P<year>\d+)", r"(?<year>\d+)"),
        (r"a*+b++c?+d{2}+", "a*b+c?d{2}"),
        (r"(?>a)", "(?:a)"),
        (r"[^\x00]*\.\\Z", r"[^\x00]*\.\\Z"),
    ],
)
def test_what_only_python_knows_is_written_otherwise(ours: str, theirs: str) -> None:
    assert patterns.ecma(ours) == theirs


def test_a_pattern_has_the_ends_that_ours_is_matched_to() -> None:
    assert patterns.whole("a|b") == "^(?:a|b)$"
    assert patterns.start("a|b") == "^(?:a|b)"
    assert patterns.whole("a+") == "^a+$"
