"""Speed as ratios, measured in one run on one machine, on a service as an operator runs it: `make bench`.

Without names: every operation in turn with its floors, the time from a like to its board, and the growth charts (not
with --quick). With names: only those. Everything is on loopback and on instances that the benchmark starts itself.
"""

import argparse
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from rich.console import Console

from loadtests import (
    bench_backlog,
    bench_live,
    bench_neighbours,
    bench_nodes,
    bench_overload,
    bench_projection,
    bench_servers,
    bench_sizing,
    charts,
    growth,
    latency,
)
from loadtests.dataset import FULL, QUICK, cache_folder
from loadtests.operations import OPERATIONS, Operation
from loadtests.report import Report
from loadtests.rounds import Rounds
from loadtests.service import ROOT
from loadtests.target import Target, running_target

SECONDS, QUICK_SECONDS = 6.0, 1.0
ROUNDS, QUICK_ROUNDS = 5, 3
LATENCY_SECONDS, QUICK_LATENCY_SECONDS = 20.0, 8.0
# Of tables that are written to a file.
WIDTH = 150
BENCH_JSON = ROOT / ".build" / "bench.json"
DOCS = ROOT / "docs"

# Measured on the service that the operations are measured on.
ON_TARGET = {
    "operations": "every operation of the table below, in turn with its floors",
    "latency": "from a like's answer to the board, at 1,000 likes/s",
    "connections": "growth: 1 to 256 connections",
}
# Each starts a service of its own.
GROWTH = {
    "pages": "growth: 1,000 to 1,000,000 pages of a tenant",
    "tenants": "growth: 1 to 1,000 tenants",
}
OTHERS: dict[str, tuple[str, Callable[[float], None]]] = {
    "servers": ("a bare Flask route under several WSGI servers", bench_servers.servers),
    "live": ("1,000 sockets: memory, and from a like's answer to the frame", bench_live.live),
    "neighbours": ("what a quiet tenant notices of another's flood", bench_neighbours.neighbours),
    "backlog": (
        "rows/s of a large backlog, and what a neighbour waits beside it, with one worker",
        bench_backlog.backlog,
    ),
    "sizing": ("bytes and processor time at three sizes, against the model", bench_sizing.sizing_costs),
    "nodes": ("what a request costs with 1, 2 and 4 nodes, and lock waits between them", bench_nodes.nodes),
    "overload": ("2 and 5 times what the API can do: refusals, and who is answered", bench_overload.overload),
    "projection": ("what projecting 1,000 stale pages costs", bench_projection.projection_costs),
}
DEFAULT, QUICK_DEFAULT = ("operations", "latency", "connections", "pages", "tenants"), ("operations", "latency")


def names() -> dict[str, str]:
    """Everything that can be chosen."""
    others = {name: title for name, (title, _) in OTHERS.items()}
    return {**ON_TARGET, **GROWTH, **others, **{operation.name: operation.title for operation in OPERATIONS}}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    listed = "\n".join(f"  {name:<14}{title}" for name, title in names().items())
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.bench",
        description=__doc__,
        epilog=f"names:\n{textwrap.indent(listed, '')}\n\nData sets are kept in {cache_folder()}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="what to measure (see below)")
    parser.add_argument("--quick", action="store_true", help="small data, short rounds: under three minutes")
    parser.add_argument("--seconds", type=float, help=f"for each measurement (default {SECONDS:g}, quick 1)")
    parser.add_argument("--rounds", type=int, help=f"how often each is measured (default {ROUNDS}, quick 3)")
    parser.add_argument("--json", type=Path, default=BENCH_JSON, metavar="FILE", help="where the figures are written")
    parser.add_argument("--docs", action="store_true", help="write the charts to docs/ instead of beside the figures")
    parser.add_argument("--list", action="store_true", help="print the names, and exit")
    parsed = parser.parse_args(arguments)
    unknown = [name for name in parsed.names if name not in names()]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}\nnames:\n{listed}")
    parsed.names = parsed.names or [*(QUICK_DEFAULT if parsed.quick else DEFAULT)]
    parsed.seconds = parsed.seconds or (QUICK_SECONDS if parsed.quick else SECONDS)
    parsed.rounds = parsed.rounds or (QUICK_ROUNDS if parsed.quick else ROUNDS)
    return parsed


def chosen_operations(wanted: Sequence[str]) -> list[Operation]:
    return [operation for operation in OPERATIONS if {operation.name, "operations"} & {*wanted}]


class Bench:
    """One run."""

    def __init__(self, options: argparse.Namespace, console: Console) -> None:
        self.options = options
        self.console = console
        settings = {name: getattr(options, name) for name in ("names", "quick", "seconds", "rounds")}
        self.report = Report(settings)

    def run(self) -> None:
        wanted = self.options.names
        if chosen_operations(wanted) or {*ON_TARGET} & {*wanted}:
            data = QUICK if self.options.quick else FULL
            self.report.settings["data"] = [vars(tenant) for tenant in data.tenants]
            self.console.print(f"Starting the service on {data.pages:,} pages of {len(data.tenants)} tenants …")
            with running_target(data) as target:
                self._measure(target)
        for name, measure in (("pages", growth.by_pages), ("tenants", growth.by_tenants)):
            if name in wanted:
                with Status(self.console) as status:
                    self.report.growth[name] = measure(self.options.seconds, status)
        for name, (title, other) in OTHERS.items():
            if name in wanted:
                self.console.print(f"[bold]{name}[/bold]: {title}")
                other(self.options.seconds)
        self._finish()

    def _measure(self, target: Target) -> None:
        wanted, chosen = self.options.names, chosen_operations(self.options.names)
        with Status(self.console) as status:
            if "latency" in wanted:  # first, while the watched page is the most liked one
                status("from a like to the board")
                seconds = QUICK_LATENCY_SECONDS if self.options.quick else LATENCY_SECONDS
                latency.measure(target, seconds=2, per_second=100)  # warm up
                self.report.latency = latency.measure(target, seconds=seconds)
                target.wait_until_idle()
            if chosen:
                # Without a warm-up the first of three rounds is one: the median leaves it out.
                warms_up = not self.options.quick
                rounds = Rounds(target, chosen, seconds=self.options.seconds, report=status, warms_up=warms_up)
                status.total = rounds.measurements_per_round() * self.options.rounds + warms_up * len(chosen)
                rounds.run(self.options.rounds)
                self.report.floors, self.report.figures = rounds.floors, rounds.figures
            if "connections" in wanted:
                self.report.growth["connections"] = growth.by_connections(target, self.options.seconds, status)

    def _finish(self) -> None:
        self.report.print(self.console)
        report = self.report.as_json()
        if not (report["operations"] or report["growth"] or report["like_to_board"]):
            return
        self.report.save(self.options.json)
        self.console.print(f"Figures: {self.options.json}")
        folder = DOCS if self.options.docs else self.options.json.parent
        drawn = {"bench.svg": charts.operations(report)} if report["operations"] else {}
        if report["operations"]:
            self.options.json.with_suffix(".md").write_text(self.report.markdown())
        drawn |= {f"bench-{name}.svg": charts.growth(name, measured) for name, measured in report["growth"].items()}
        for name, content in drawn.items():
            (folder / name).write_text(content)
            self.console.print(f"Chart: {folder / name}")


class Status:
    """A line that says what is being measured, and how far the run is. Shown from the first measurement on."""

    def __init__(self, console: Console) -> None:
        self._status = console.status("")
        self._done = 0
        self.total: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._status.stop()

    def __call__(self, title: str) -> None:
        self._done += self.total is not None
        place = f"{min(self._done, self.total)} of {self.total}: " if self.total is not None else ""
        self._status.update(place + title)
        self._status.start()


def main() -> None:
    options = parse()
    if options.list:
        print("\n".join(f"{name:<14}{title}" for name, title in names().items()))
        return
    console = Console()
    Bench(options, console if console.is_terminal else Console(width=WIDTH)).run()


if __name__ == "__main__":
    main()
