"""The command line of the benchmarks."""

import pytest

from loadtests.bench import DEFAULT, QUICK_DEFAULT, chosen_operations, names, parse
from loadtests.operations import OPERATIONS


def test_without_names_everything_is_measured_and_quick_measures_less() -> None:
    full, quick = parse([]), parse(["--quick"])
    assert (full.names, full.seconds, full.rounds) == ([*DEFAULT], 6.0, 5)
    assert (quick.names, quick.seconds, quick.rounds) == ([*QUICK_DEFAULT], 1.0, 3)
    assert {*QUICK_DEFAULT} < {*DEFAULT} < names().keys()


def test_options_overrule_what_quick_chooses() -> None:
    options = parse(["view", "top10", "--quick", "--seconds", "3", "--rounds", "7"])
    assert (options.names, options.seconds, options.rounds) == (["view", "top10"], 3.0, 7)


def test_operations_are_chosen_by_name_or_all_together() -> None:
    assert [operation.name for operation in chosen_operations(["view", "top10"])] == ["top10", "view"]
    assert chosen_operations(["operations"]) == [*OPERATIONS]
    assert chosen_operations(["pages"]) == []


def test_an_unknown_name_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["reads"])
    error = capsys.readouterr().err
    assert "unknown: reads" in error
    assert all(name in error for name in names())
