"""The charts are XML with everything that was measured."""

from typing import Any
from xml.etree import ElementTree as ET

from loadtests import charts

SVG = "{http://www.w3.org/2000/svg}"


def entry(title: str, median: float, **more: Any) -> dict[str, Any]:
    ratio = {"median": median, "low": median / 2, "high": median * 2}
    return {"title": title, "floor": "flask", "at_least": None, "ratio_to_flask": ratio, **more}


def test_operations_are_bars_and_what_falls_short_has_another_colour() -> None:
    report = {
        "operations": {
            "a": entry("<top> & 10", 3.0, at_least=2.0),
            "b": entry("a like", 0.1, at_least=0.25),
            "c": {"title": "refused one", "refused": "50% of the requests failed"},
        }
    }
    drawn = ET.fromstring(charts.operations(report))  # noqa: S314  our own
    bars = drawn.findall(f"{SVG}rect")[1:]
    assert [bar.get("fill") for bar in bars] == [charts.BAR, charts.MISSED]
    assert float(bars[0].get("width", 0)) > float(bars[1].get("width", 0))
    labels = [text.text for text in drawn.findall(f"{SVG}text")]
    assert "<top> & 10" in labels
    assert "refused one" not in labels


def test_growth_is_a_line_for_each_operation() -> None:
    def rates(*medians: float | None) -> list[dict[str, float | None]]:
        return [{"median": median} for median in medians]

    measured = {"sizes": [1, 10, 1_000], "per_second": {"view": rates(100, 90, 80), "like": rates(10, None, 5)}}
    drawn = ET.fromstring(charts.growth("tenants", measured))  # noqa: S314  our own
    lines = drawn.findall(f"{SVG}polyline")
    assert [len(line.get("points", "").split()) for line in lines] == [3, 2]
    assert {"view", "like", "1,000"} <= {text.text for text in drawn.findall(f"{SVG}text")}
