"""The processes: `plaudit up`, and what it starts."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from app.cli.common import database, json_option, show

if TYPE_CHECKING:
    from app.settings import Settings


def register(cli: click.Group) -> None:
    for command in (up, web, live, worker, cron, migrate, demo_traffic):
        cli.add_command(command)


@click.command(short_help="Run everything in this terminal.")
@click.option("--demo", is_flag=True, help="Create the tenant `demo`, with pages, a month of history and live traffic.")
@click.option("--no-traffic", is_flag=True, help="With --demo: create only the tenant and its credentials.")
@click.option("--port", type=click.IntRange(1, 65535), envvar="PLAUDIT_PORT", default=8000, show_default=True)
@click.option(
    "--workers", type=click.IntRange(0, 64), default=2, show_default=True, help="RQ worker processes; 0: none here."
)
@json_option
@click.pass_obj
def up(data_dir: Path, demo: bool, no_traffic: bool, port: int, workers: int, as_json: bool) -> None:
    """Run everything in this terminal: servers, API, sockets, workers. Ctrl-C stops all of it.

    With `--data-dir D` (before or after the command) its data is in D instead of .plaudit.
    """
    from app.run.up import run

    run(
        data_dir,
        demo=demo,
        traffic=demo and not no_traffic,
        port=port,
        workers=workers,
        as_json=as_json,
    )


@click.command()
@click.option("--port", type=click.IntRange(1, 65535), envvar="PLAUDIT_PORT", default=8000, show_default=True)
@click.pass_obj
def web(data_dir: Path, port: int) -> None:
    """Serve the API and the dashboard."""
    from app.run.http_servers import serve_web

    serve_web(prepare_process(data_dir, PLAUDIT_PORT=str(port)))


@click.command()
@click.option("--port", type=click.IntRange(1, 65535), envvar="PLAUDIT_LIVE_PORT", default=8001, show_default=True)
@click.pass_obj
def live(data_dir: Path, port: int) -> None:
    """Serve the sockets and Server-Sent Events."""
    from app.run.http_servers import serve_live

    serve_live(prepare_process(data_dir, PLAUDIT_LIVE_PORT=str(port)))


@click.command()
@click.pass_obj
def worker(data_dir: Path) -> None:
    """Run the jobs of the queue. Several may run at once."""
    become_workers_process(data_dir, "worker")


@click.command()
@click.pass_obj
def cron(data_dir: Path) -> None:
    """Enqueue scheduled jobs. Of several that run, one does, and another if that one is gone."""
    become_workers_process(data_dir, "cron")


@click.command("demo-traffic", hidden=True)
@click.option("--url", envvar="PLAUDIT_DEMO_URL", required=True)
@click.option("--client-id", envvar="PLAUDIT_DEMO_CLIENT_ID", required=True)
@click.option("--client-secret", envvar="PLAUDIT_DEMO_CLIENT_SECRET", required=True)
@click.option("--demo-secret", envvar="PLAUDIT_DEMO_SECRET", required=True)
@click.option("--days", envvar="PLAUDIT_DEMO_HISTORY_DAYS", type=int, default=None)
@click.pass_obj
def demo_traffic(
    data_dir: Path, url: str, client_id: str, client_secret: str, demo_secret: str, days: int | None
) -> None:
    """Send the demo tenant's history and continuous traffic, through the API."""
    from app.run.demo_traffic import HISTORY_DAYS, Api, run

    api = Api(url, client_id, client_secret, demo_secret=demo_secret)
    run(
        api,
        marker=data_dir / "demo-seeded",
        ready=data_dir / "demo-ready",
        days=days or HISTORY_DAYS,
        report=click.echo,
    )


@click.command()
@json_option
@click.pass_obj
def migrate(data_dir: Path, as_json: bool) -> None:
    """Migrate the database to this release's schema. Safe to run twice, or at the same time."""
    from migrations import run
    from tenants import db

    with database(data_dir, create=True, direct=True) as settings:
        before, after = run.migrate(db.owner_engine(), service_url=settings.service_database_url)
    text = (
        f"The schema is at {after} already."
        if before == after
        else f"Migrated the schema from {before or 'nothing'} to {after}."
    )
    show({"before": before, "after": after}, as_json=as_json, text=text)


def prepare_process(data_dir: Path, **env: str) -> "Settings":
    """Complete the environment of a process of the service, and read its settings.

    The program that it becomes sets up its own logging. Nothing more is imported here: that program would import it
    again.
    """
    from app.run import environment

    return environment.complete(data_dir, **env)


def become_workers_process(data_dir: Path, name: str) -> None:
    """Become another program: the package of the workers is not imported by this one."""
    prepare_process(data_dir)
    os.execv(sys.executable, [sys.executable, "-m", "workers", name])
