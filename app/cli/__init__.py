"""The command line: `plaudit --help` lists it."""

import sys
from pathlib import Path

import click

from app.cli import (
    actions,
    backup,
    boards,
    credentials,
    distribution,
    doctor,
    imports,
    pages,
    quests,
    service,
    static_tokens,
    tenant,
    users,
)
from app.cli.common import clear_errors
from app.run import environment
from app.run.launcher import die_with_parent
from tenants.quick_exit import run_and_exit


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="plaudit", prog_name="plaudit")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="PLAUDIT_DATA_DIR",
    default=Path(".plaudit"),
    show_default=True,
    help="Where the local servers keep their data.",
)
@click.pass_context
def cli(context: click.Context, data_dir: Path) -> None:
    """Plaudit: which content matters, in which space, this week, and who contributed.

    `plaudit up --demo` starts everything. Without DATABASE_URL and REDIS_URL it runs local servers, PostgreSQL and
    Valkey, in the data folder. Other commands use these servers, and start them temporarily if they are not running.
    """
    context.obj = data_dir


for module in (
    service,
    tenant,
    credentials,
    users,
    static_tokens,
    actions,
    quests,
    pages,
    imports,
    boards,
    doctor,
    backup,
    distribution,
):
    module.register(cli)


def main() -> None:
    """The console script."""
    run_and_exit(_main)


def _main() -> None:
    parent_pid = environment.take_parent_pid()
    if parent_pid is not None:
        die_with_parent(parent_pid)
    with clear_errors():
        cli(_data_dir_first(sys.argv[1:]), prog_name="plaudit")


def _data_dir_first(arguments: list[str]) -> list[str]:
    """Accept `--data-dir` anywhere: people write it after the command as often as before it."""
    first: list[str] = []
    rest: list[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        if argument == "--":
            rest += [argument, *remaining]
        elif argument == "--data-dir":
            first += [argument, *[value for value in [next(remaining, None)] if value is not None]]
        else:
            (first if argument.startswith("--data-dir=") else rest).append(argument)
    return [*first, *rest]
