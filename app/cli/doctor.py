"""`plaudit doctor`"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from app.cli.common import database, json_option

if TYPE_CHECKING:
    from rich.console import Console

    from app.doctor.examination import Report

MARKS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "problem": ("✗", "bold red")}


def register(cli: click.Group) -> None:
    cli.add_command(doctor)


@click.command(short_help="Examine settings, servers and data; say what to change.")
@json_option
@click.pass_obj
def doctor(data_dir: Path, as_json: bool) -> None:
    """Look at settings, servers and data, and say what to change. Changes nothing.

    Exits with 1 if there are problems: data, answers or speed suffer now. Warnings are advice. Boards that are behind
    are watched for some seconds first. (Whether every number is right: plaudit check.)
    """
    from app.doctor import examination, installation
    from app.settings import Settings
    from tenants.db import utcnow

    is_local = Settings.from_env().database_url is None
    with database(data_dir) as settings:
        report = examination.examine(installation.of(settings, data_dir, is_local=is_local, now=utcnow()))
    if as_json:
        click.echo(json.dumps(as_dict(report)))
    else:
        _print(report)
    sys.exit(0 if report.is_ok else 1)


def as_dict(report: "Report") -> dict[str, object]:
    from app.doctor.findings import Level

    return {
        "ok": report.is_ok,
        "problems": report.count(Level.PROBLEM),
        "warnings": report.count(Level.WARN),
        "versions": report.versions,
        "findings": [asdict(finding) for finding in report.findings],
        "statements": [asdict(statement) for statement in report.statements],
    }


def _print(report: "Report") -> None:
    from rich.console import Console

    from app.doctor.findings import Level

    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    console.print(", ".join(f"{name} {number}" for name, number in report.versions.items()))
    for about in dict.fromkeys(finding.about for finding in report.findings):
        console.print(f"\n{about}", style="bold")
        for finding in report.findings:
            if finding.about != about:
                continue
            mark, style = MARKS[finding.level]
            console.print(f"  {mark} {finding.what}", style=style if finding.level is not Level.OK else None)
            if finding.level is not Level.OK:
                console.print(f"      why: {finding.why}")
                console.print(f"      do:  {finding.advice}")
    if report.statements:
        _print_statements(report, console)
    problems, warnings = report.count(Level.PROBLEM), report.count(Level.WARN)
    console.print(f"\n{problems or 'No'} problem{'s' * (problems != 1)}, {warnings} warning{'s' * (warnings != 1)}.")


def _print_statements(report: "Report", console: "Console") -> None:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("share", "calls", "mean ms"):
        table.add_column(column, justify="right")
    table.add_column("statement", overflow="fold")
    for each in report.statements:
        table.add_row(f"{each.share:.0%}", f"{each.calls:,}", f"{each.mean_ms:,.3g}", each.text)
    console.print("\nThe most expensive statements", style="bold")
    console.print(table)
