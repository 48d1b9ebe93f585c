"""`plaudit distribute`"""

import sys
from pathlib import Path

import click

from app.cli.common import database, json_option, show


def register(cli: click.Group) -> None:
    cli.add_command(distribute)


@click.command(short_help="Distribute the tables over a Citus, by tenant.")
@click.option("--check", is_flag=True, help="Change nothing: list what is missing, and exit with 1 if something is.")
@json_option
@click.pass_obj
def distribute(data_dir: Path, check: bool, as_json: bool) -> None:
    """Distribute the tables over the nodes of a Citus, by tenant. Safe to run twice.

    DATABASE_URL names the coordinator, where the extension exists and the workers have been added (docs/operating.md).
    Afterwards `plaudit migrate` distributes new tables by itself.
    """
    from migrations import distribution
    from tenants import db

    with database(data_dir):
        if check:
            with db.owner_engine().connect() as connection:
                missing = distribution.missing(connection)
            text = "\n".join(missing) or "Everything is distributed."
            show({"ok": not missing, "missing": missing}, as_json=as_json, text=text)
            sys.exit(1 if missing else 0)
        done = []
        for step in distribution.distribute(db.owner_engine()):
            done.append(step)
            if not as_json:
                click.echo(step, err=True)
    text = f"Distributed, in {len(done)} steps." if done else "Everything is distributed already."
    show({"done": done}, as_json=as_json, text=text)
