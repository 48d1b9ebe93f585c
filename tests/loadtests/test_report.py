"""The report has a row for each figure, and says what cannot be trusted."""

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from loadtests import generator
from loadtests.figures import Figure, Spread
from loadtests.generator import Sample
from loadtests.growth import Growth
from loadtests.latency import Latency
from loadtests.report import Report, verdict


def report() -> Report:
    flask = Figure("flask", "a bare Flask route (F)", samples=[Sample(10_000)])
    view = Figure("view", "a view", floor="flask", at_least=0.35, aim=0.5, samples=[Sample(4_000, 8.0, 20.0)])
    view.floors = view.flask = flask.samples
    action = Figure("action", "an action", floor="flask", samples=[Sample(9_000, failed_share=0.9)], failures={429: 5})
    growth = Growth("pages", [1_000, 10_000], {"view": [Spread(10, 9, 11), Spread(5, 5, 5)]})
    return Report(
        {"rounds": 1},
        {"flask": flask},
        {"view": view, "action": action},
        Latency(1_000, 600, 30, 900, 1_500),
        {"pages": growth},
    )


def test_figures_are_printed_and_refused_ones_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator, "find_wrk", lambda: None)
    out = StringIO()
    report().print(Console(file=out, width=150))
    text = " ".join(out.getvalue().split())
    assert "4,000 (4,000-4,000)" in text
    assert " ok" in text
    assert "refused: 90% of the requests failed: {429: 5}" in text
    assert "only 600 likes/s were answered" in text
    assert "above" in text  # what twice as many pages cost
    assert "the bottleneck" in text


def test_the_file_has_every_figure(tmp_path: Path) -> None:
    file = tmp_path / "new" / "bench.json"
    report().save(file)
    saved = json.loads(file.read_text())
    assert saved["operations"]["view"]["ratio"]["median"] == 0.4
    assert saved["operations"]["action"].keys() == {"title", "floor", "at_least", "aim", "refused"}
    assert saved["like_to_board"]["is_valid"] is False
    assert saved["growth"]["pages"]["cost"] == {"view": 2.0}
    assert saved["machine"]["cores"] > 0


def test_the_table_for_the_documentation_has_a_row_for_each_figure() -> None:
    lines = report().markdown().splitlines()
    assert "| a view | 4,000 | 0.4 (0.4-0.4) F | 0.35 F | 0.5 F | 8, 20 ms |" in lines
    assert "| an action | refused: 90% of the requests failed: {429: 5} | | | | |" in lines
    assert len(lines) == 5
    assert {line.count("|") for line in lines} == {7}


@pytest.mark.parametrize(("value", "expected"), [(0.1, "below"), (0.35, "ok"), (0.5, "aim")])
def test_a_ratio_is_judged(value: float, expected: str) -> None:
    assert verdict(value, 0.35, 0.5) == expected
    assert verdict(value, None, None) == ""
