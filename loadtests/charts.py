"""Charts for docs/performance.md as SVG, from what bench.json contains. Pure."""

import math
from collections.abc import Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

WIDTH = 760
LABELS = 300
ROW = 26
INK, GRID, BAR, MISSED = "#1f2933", "#d5dae0", "#2a78b8", "#c2571a"
COLOURS = ("#2a78b8", "#c2571a", "#2e8b57", "#8a5fb3", "#a8842c")
FONT = 'font-family="system-ui, sans-serif" font-size="12"'


def text(x: float, y: float, content: str, *, anchor: str = "start", colour: str = INK) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(content)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str = GRID, width: float = 1) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width:.1f}"/>'
    )


def svg(width: float, height: float, parts: Sequence[str]) -> str:
    """A document with a white background: it is shown on dark pages too."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" {FONT}>'
    return "\n".join([head, '<rect width="100%" height="100%" fill="#ffffff"/>', *parts, "</svg>", ""])


def operations(report: Mapping[str, Any]) -> str:
    """A bar for each operation: its ratio to the bare Flask route, with the spread, and what it should reach at least.

    On a logarithmic scale, since a batch and an action differ by a factor of a hundred.
    """
    shown = {name: entry for name, entry in report["operations"].items() if entry.get("ratio_to_flask")}
    low, high = 0.005, 10.0
    right = WIDTH - 20

    def x(value: float) -> float:
        share = math.log(min(max(value, low), high) / low) / math.log(high / low)
        return LABELS + share * (right - LABELS)

    height = 60 + ROW * len(shown)
    title = "Speed as a multiple of a bare Flask route: median, minimum and maximum; | is what it should reach"
    parts = [text(10, 20, title)]
    for tick in (0.01, 0.1, 1.0, 10.0):
        parts += [line(x(tick), 30, x(tick), height - 24), text(x(tick), height - 8, f"{tick:g}", anchor="middle")]
    for place, entry in enumerate(shown.values()):
        parts += _bar(entry, 36 + place * ROW, x)
    return svg(WIDTH, height, parts)


def _bar(entry: Mapping[str, Any], y: float, x: Any) -> list[str]:
    ratio, at_least = entry["ratio_to_flask"], entry["at_least"] if entry["floor"] == "flask" else None
    is_missed = at_least is not None and ratio["median"] < at_least
    colour = MISSED if is_missed else BAR
    width = x(ratio["median"]) - LABELS
    middle = y + ROW / 2 - 4
    parts = [
        text(LABELS - 8, middle + 4, entry["title"], anchor="end"),
        f'<rect x="{LABELS}" y="{y:.1f}" width="{max(1, width):.1f}" height="{ROW - 8}" fill="{colour}"/>',
        line(x(ratio["low"]), middle, x(ratio["high"]), middle, INK, 1.5),
        text(x(max(ratio["high"], ratio["median"])) + 6, middle + 4, f"{ratio['median']:.2g}"),
    ]
    if at_least is not None:
        parts.append(line(x(at_least), y - 3, x(at_least), y + ROW - 5, INK, 2))
    return parts


def growth(name: str, measured: Mapping[str, Any]) -> str:
    """A line for each operation: requests per second by size, as a multiple of those at the first size."""
    sizes: list[float] = measured["sizes"]
    left, right, top, bottom = 60, WIDTH - 140, 40, 260
    relative = {
        operation: [(spread["median"] or math.nan) / (rates[0]["median"] or math.nan) for spread in rates]
        for operation, rates in measured["per_second"].items()
    }
    known = [value for values in relative.values() for value in values if not math.isnan(value)]
    highest = max([1.0, *known]) * 1.1

    def x(size: float) -> float:
        return left + math.log(size / sizes[0]) / math.log(sizes[-1] / sizes[0]) * (right - left)

    def y(value: float) -> float:
        return bottom - value / highest * (bottom - top)

    parts = [text(10, 20, f"Requests per second by {name}, as a multiple of those at {sizes[0]:,}")]
    for share in (0.0, 0.5, 1.0):
        value = share * highest / 1.1
        parts += [line(left, y(value), right, y(value)), text(left - 8, y(value) + 4, f"{value:.2g}", anchor="end")]
    parts += [text(x(size), bottom + 18, f"{size:,}", anchor="middle") for size in sizes]
    for place, (operation, values) in enumerate(relative.items()):
        colour = COLOURS[place % len(COLOURS)]
        points = [(x(size), y(value)) for size, value in zip(sizes, values, strict=True) if not math.isnan(value)]
        drawn = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        parts.append(f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(text(right + 12, top + 16 * place + 8, operation, colour=colour))
    return svg(WIDTH, bottom + 36, parts)
