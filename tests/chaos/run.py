"""`make chaos MINUTES=n SEED=s`: one run, its findings and its table. Ends with 1 if anything was found.

`ARGS=--strict`: also if a target of recovery is missed.
"""

import json
import os
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from tests.chaos import checker, faults, final, history, report, world
from tests.chaos.checker import Limits
from tests.chaos.driver import Driver
from tests.chaos.faults import Faults
from tests.chaos.history import Recorder
from tests.chaos.probes import Probes
from tests.chaos.schedule import Fault, Kind, schedule
from tests.chaos.seen import Finding
from tests.chaos.site import NODES, Site
from tests.conftest import reachable_folder
from tests.secrets_seen import LOG_FOLDER
from tests.service import plaudit

SETTLED_WITHIN_S = 120.0
# Until the last frames of sockets and streams have arrived.
FRAMES_WITHIN_S = 3.0
LIMITS = Limits()
OUTPUT = Path(__file__).parents[2] / ".build" / "chaos"


@dataclass(frozen=True)
class Result:
    seed: int
    findings: list[Finding]
    lines: list[str]
    # Targets of recovery: a busy machine misses some.
    missed: list[str] = field(default_factory=list)

    def status(self, *, is_strict: bool = False) -> int:
        return 1 if self.findings or (is_strict and self.missed) else 0


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def possible_kinds(wanted: Sequence[Kind] = tuple(Kind)) -> list[Kind]:
    """Those that this machine allows. The others are named."""
    kinds = []
    for kind in wanted:
        if reason := faults.why_not(kind):
            say(f"skipped: {kind} ({reason})")
        else:
            kinds.append(kind)
    return kinds


def run(seed: int, minutes: float, kinds: Sequence[Kind] = tuple(Kind), limits: Limits = LIMITS) -> Result:
    """One run on a site of its own. Its history and the final rows stay in a folder."""
    random.seed(seed)
    planned = schedule(seed, minutes, possible_kinds(kinds))
    OUTPUT.mkdir(parents=True, exist_ok=True)
    LOG_FOLDER.mkdir(parents=True, exist_ok=True)
    recorder = Recorder(OUTPUT / f"history-{seed}.jsonl")
    with reachable_folder() as folder, faults.small_disk(folder) as disk, Site(folder, disk / "data") as site:
        say(f"seed {seed}: {len(planned)} faults in {minutes:g} minutes, the site runs in {folder}")
        tenant = world.create(site)
        live_ports = {node: site.client_port(node, "live") for node in NODES}
        driver = Driver(tenant, recorder, live_ports, seed)
        probes = Probes(tenant, recorder, live_ports, seed)
        carried_out = Faults(site, driver.clients, recorder, disk)
        driver.start()
        probes.start()
        try:
            _carry_out(planned, carried_out, recorder, minutes)
        finally:
            probes.stop()
            driver.stop()
        found, settled_s = _settle(site, tenant)
        time.sleep(FRAMES_WITHIN_S)
        driver.stop_reading()
        (OUTPUT / f"final-{seed}.json").write_text(json.dumps(found))
        for finding in _site_findings(site):
            recorder.note("finding", rule=finding.rule, what=finding.what)
        recorder.note("settled", after_s=settled_s, skew_s=carried_out.jumped_s)
    recorder.close()
    return judge(seed, limits)


def _carry_out(planned: Sequence[Fault], faults_: Faults, recorder: Recorder, minutes: float) -> None:
    began = time.monotonic()
    for number, fault in enumerate(planned, start=1):
        time.sleep(max(0.0, began + fault.at_s - time.monotonic()))
        elapsed_s = time.monotonic() - began
        say(f"{elapsed_s:6.0f} s  {recorder.calls:7} calls  fault {number}/{len(planned)}: {fault}")
        faults_.carry_out(fault)
    time.sleep(max(0.0, began + minutes * 60 - time.monotonic()))


def _settle(site: Site, tenant: world.World) -> tuple[dict[str, Any], float]:
    """What the site has once its boards are equal to the model, and after how many seconds that was."""
    began = time.monotonic()
    while True:
        try:
            found = final.collect(site, tenant)
            differences = list(checker.boards(found))
            if not differences or time.monotonic() - began > SETTLED_WITHIN_S:
                return found, time.monotonic() - began
            say(f"not yet: {differences[0].what}")
        except Exception as error:
            if time.monotonic() - began > SETTLED_WITHIN_S:
                raise
            say(f"not yet: {type(error).__name__}")
        time.sleep(1)


def _site_findings(site: Site) -> list[Finding]:
    found = [Finding("site", problem) for problem in site.problems]
    checked = plaudit("check", "--json", data_dir=site.data_dir)
    if checked.returncode != 0:
        found.append(Finding("check", f"`plaudit check` ends with {checked.returncode}: {checked.stdout[:500]}"))
    return found


def judge(seed: int, limits: Limits = LIMITS) -> Result:
    """Check the history and the rows that a run has left."""
    asked = history.read_file(OUTPUT / f"history-{seed}.jsonl")
    found = json.loads((OUTPUT / f"final-{seed}.json").read_text())
    (settled,) = asked.noted("settled")
    findings = [Finding(note["rule"], note["what"]) for note in asked.noted("finding")]
    findings += checker.check(asked, found, replace(limits, skew_s=settled["skew_s"]))
    noted = asked.noted("fault")
    longest_s, by = report.longest_answer(asked)
    if longest_s > limits.answers_within_s:
        findings.append(Finding("slow", f"an answer took {longest_s:.1f} s: {by}"))
    if settled["after_s"] > limits.boards_within_s:
        findings.append(Finding("slow", f"boards were equal to the model after {settled['after_s']:.0f} s"))
    recoveries = report.recoveries(asked)
    missed = report.missed(recoveries)
    lines = [
        *report.table(recoveries),
        f"{len(noted)} faults, {len(asked.calls)} calls; boards equal to the model after {settled['after_s']:.1f} s",
        *(f"not carried out: {note['kind']} ({note['error']})" for note in noted if note["error"]),
        f"longest answer {longest_s:.1f} s (target {limits.answers_within_s:g}): {by}",
        *report.findings(findings),
        f"missed targets: {len(missed)}",
        *(f"  {line}" for line in missed),
    ]
    return Result(seed, findings, lines, missed)


@click.command()
@click.option("--minutes", type=float, default=5.0)
@click.option("--seed", type=int, default=1)
@click.option("--kinds", default="", help="Only these kinds, comma-separated.")
@click.option("--again", is_flag=True, help="Only check again what the last run with this seed has left.")
@click.option("--strict", is_flag=True, help="End with 1 also if a target of recovery is missed.")
def main(minutes: float, seed: int, kinds: str, again: bool, strict: bool) -> None:
    """Run traffic and faults from a seed, and check what is left."""
    os.environ["PYTHONUNBUFFERED"] = "1"
    wanted = [Kind(kind.strip()) for kind in kinds.split(",")] if kinds else list(Kind)
    result = judge(seed) if again else run(seed, minutes, wanted)
    for line in result.lines:
        say(line)
    say("failed" if result.findings else "nothing was lost, nothing counted twice")
    sys.exit(result.status(is_strict=strict))


if __name__ == "__main__":
    main()
