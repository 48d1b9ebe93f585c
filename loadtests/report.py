"""The report of a run: tables in the terminal, and bench.json."""

import json
import os
import platform
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from math import isnan
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from loadtests import generator, latency
from loadtests.figures import Figure, number
from loadtests.growth import AIM, AT_MOST, Growth
from loadtests.latency import Latency
from loadtests.service import ROOT

BOTTLENECK = (
    "wrk is not installed: the load came from loadtests/blast.py, which takes a core and is itself the bottleneck of "
    "fast operations. Install wrk for figures that can be compared."
)


@dataclass
class Report:
    """What a run has measured so far."""

    settings: dict[str, Any]
    floors: dict[str, Figure] = field(default_factory=dict)
    figures: dict[str, Figure] = field(default_factory=dict)
    latency: Latency | None = None
    growth: dict[str, Growth] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {
            "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "revision": revision(),
            "generator": generator.name(),
            "machine": {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
            "settings": self.settings,
            "floors": {name: figure.as_json() for name, figure in self.floors.items()},
            "operations": {name: figure.as_json() for name, figure in self.figures.items()},
            "like_to_board": asdict(self.latency) | {"is_valid": self.latency.is_valid} if self.latency else None,
            "growth": {name: growth.as_json() for name, growth in self.growth.items()},
        }

    def save(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(self.as_json(), indent=1) + "\n")

    def markdown(self) -> str:
        """The operations as a table for docs/performance.md."""
        lines = ["| operation | per second | ratio | at least | aim | p50, p99 |", "|---|---|---|---|---|---|"]
        lines += [f"| {figure.title} | {number(figure.per_second.median)} | | | | |" for figure in self.floors.values()]
        for figure in self.figures.values():
            if figure.refused is not None:
                lines.append(f"| {figure.title} | refused: {figure.refused} | | | | |")
                continue
            unit = "F" if figure.floor == "flask" else "of raw SQL"
            wanted = [f"{number(value)} {unit}" if value is not None else "" for value in (figure.at_least, figure.aim)]
            times = f"{number(figure.p50_ms)}, {number(figure.p99_ms)} ms"
            cells = [figure.title, number(figure.per_second.median), f"{figure.ratio} {unit}", *wanted, times]
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join([*lines, ""])

    def print(self, console: Console) -> None:
        if self.floors:
            console.print(floor_table(self.floors.values()))
        if self.figures:
            console.print(operation_table(self.figures.values()))
        if self.latency is not None:
            console.print(latency_line(self.latency))
        for growth in self.growth.values():
            console.print(growth_table(growth))
        if generator.name() != "wrk":
            console.print(f"[bold]{BOTTLENECK}")


def revision() -> str:
    """The commit that was measured."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"],  # noqa: S607  any git does
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place == 0 else "right", no_wrap=True)
    return table


def floor_table(floors: Iterable[Figure]) -> Table:
    table = _table("Floors: median (min-max)", "", "per second")
    for figure in floors:
        table.add_row(figure.title, str(figure.per_second) if figure.refused is None else figure.refused)
    return table


def operation_table(figures: Iterable[Figure]) -> Table:
    columns = ("", "per second", "of F", "of raw SQL", "at least", "aim", "p50 ms", "p99 ms", "")
    table = _table("Operations: median (min-max); F is the bare Flask route", *columns)
    for figure in figures:
        if figure.refused is not None:
            table.add_row(figure.title, f"refused: {figure.refused}")
            continue
        is_of_sql = figure.floor != "flask"
        table.add_row(
            figure.title,
            str(figure.per_second),
            str(figure.ratio_to_flask),
            str(figure.ratio) if is_of_sql else "",
            number(figure.at_least) if figure.at_least is not None else "",
            number(figure.aim) if figure.aim is not None else "",
            number(figure.p50_ms),
            number(figure.p99_ms),
            verdict(figure.ratio.median, figure.at_least, figure.aim),
        )
    return table


def verdict(value: float, at_least: float | None, aim: float | None) -> str:
    if at_least is None or aim is None:
        return ""
    return "aim" if value >= aim else "ok" if value >= at_least else "below"


def latency_line(measured: Latency) -> str:
    wanted = ", ".join(
        f"{name.removesuffix('_ms')} at most {latency.AT_LEAST[name]:.0f} ms, aim {latency.AIM[name]:.0f} ms"
        for name in latency.AT_LEAST
    )
    text = (
        f"like → board at {measured.wanted_per_s:,.0f} likes/s: p50 {number(measured.p50_ms)} ms, "
        f"p99 {number(measured.p99_ms)} ms, {measured.likes:,} likes ({wanted})"
    )
    if not measured.is_valid:
        text += f"; [bold]refused: only {measured.reached_per_s:,.0f} likes/s were answered[/bold]"
    return text


def growth_table(growth: Growth) -> Table:
    title = f"Requests per second by {growth.name}; ?: more than 1 % of the requests failed"
    last = f"cost from {growth.sizes[growth.base]:,} to {growth.sizes[-1]:,}"
    table = _table(title, "", *(f"{size:,}" for size in growth.sizes), last, "")
    for name, rates in growth.per_second.items():
        cost = growth.cost(name)
        is_judged = growth.name == "pages" and not isnan(cost)
        word = ("aim" if cost <= AIM else "ok" if cost <= AT_MOST else "above") if is_judged else ""
        table.add_row(name, *(number(spread.median) for spread in rates), number(cost), word)
    return table
