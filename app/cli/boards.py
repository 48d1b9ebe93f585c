"""`plaudit check`, `plaudit rebuild`"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import click

from app.cli.common import connect_redis, json_option, migrated_database, show

MAX_SHOWN_DIFFERENCES = 50
# The parts of a check (`analytics.checks`), which the command's help names: it must not wait for SQLAlchemy.
CHECKS = ("pages", "users", "profiles", "quests", "addresses", "visitors", "global")
MAX_CHECK_MINUTES = 24 * 60
SAY_EVERY_S = 5.0
# Ledgers, quests and visitors are what numbers are computed from.
BEYOND_REBUILD = "What another check still lists is wrong in PostgreSQL itself."


def register(cli: click.Group) -> None:
    cli.add_command(check)
    cli.add_command(rebuild)


@click.command(short_help="Compare every board with PostgreSQL.")
@click.argument("tenant_id", metavar="[TENANT]", required=False)
@click.option(
    "--only",
    "only",
    type=click.Choice(CHECKS),
    multiple=True,
    help="Compare this part only. May be given several times.",
)
@click.option(
    "--within",
    "minutes",
    type=click.IntRange(1, MAX_CHECK_MINUTES),
    default=30,
    show_default=True,
    metavar="MINUTES",
    help="Stop after so many minutes.",
)
@json_option
@click.pass_obj
def check(data_dir: Path, tenant_id: str | None, only: tuple[str, ...], minutes: int, as_json: bool) -> None:
    """Compare every board and every number with PostgreSQL: of all tenants, or of one.

    Computes everything again from the hourly counts and the likes. If there are differences, lists them and exits
    with 1. Skips pages that a worker has yet to process ("still due"); start a worker if there are many.

    Works in short transactions, beside a running service. The parts, for --only: pages (their numbers and boards),
    users (totals, ledgers and user boards), profiles (names and segments on boards), quests (and their rewards),
    addresses (of refused views), visitors, and global (pages of no tenant on the global boards).
    """
    from analytics import checks
    from tenants.db import utcnow

    parts = only or (CHECKS if tenant_id is None else CHECKS[:-1])
    if tenant_id is not None and checks.GLOBAL in parts:
        raise click.UsageError("The global boards are of all tenants: --only global is without TENANT.")
    with tenants_of(data_dir, tenant_id) as tenant_ids, _watching(quiet=as_json) as watching:
        report = checks.check_tenants(tenant_ids, parts, now=utcnow, max_s=minutes * 60, watching=watching)
    differences, pages, boards, due = report.differences, report.pages, report.boards, report.due
    if not as_json:
        for difference in differences[:MAX_SHOWN_DIFFERENCES]:
            click.echo(str(difference))
        if len(differences) > MAX_SHOWN_DIFFERENCES:
            click.echo(f"… and {len(differences) - MAX_SHOWN_DIFFERENCES:,} more (--json lists all)")
    result = plural(len(differences), "difference") if differences else "no differences"
    still_due = f", {due:,} still due" if due else ""
    show(
        {
            "ok": not differences,
            "tenants": len(tenant_ids),
            "pages": pages,
            "boards": boards,
            "due": due,
            "differences": [
                {
                    "tenant": d.tenant_id,
                    "where": d.where,
                    "member": d.member,
                    "found": d.found,
                    "expected": d.expected,
                }
                for d in differences
            ],
        },
        as_json=as_json,
        text=f"{plural(len(tenant_ids), 'tenant')}, {plural(pages, 'page')},"
        f" {plural(boards, 'board')}: {result}{still_due}.",
    )
    if differences and not as_json:
        command = f"plaudit rebuild {tenant_id}" if tenant_id else "plaudit rebuild"
        click.echo(f"{command} computes the numbers and fills the boards again. {BEYOND_REBUILD}")
    sys.exit(1 if differences else 0)


@click.command(short_help="Compute every number and fill every board again.")
@click.argument("tenant_id", metavar="[TENANT]", required=False)
@json_option
@click.pass_obj
def rebuild(data_dir: Path, tenant_id: str | None, as_json: bool) -> None:
    """Compute every number and fill every board again: of all tenants, or of one.

    Each new board replaces the old one in one step, so boards can be read meanwhile.
    """
    from analytics.boards import rebuilding, recomputing
    from tenants.db import utcnow

    pages = boards = 0
    with tenants_of(data_dir, tenant_id) as tenant_ids:
        for name in tenant_ids:
            with _progress(f"Rebuilding {name}", None, quiet=as_json) as advance:
                done = recomputing.recompute_tenant(name, now=utcnow, progress=advance)
            pages, boards = pages + done.pages, boards + len(done.rebuilt)
        boards += len(rebuilding.rebuild_global(now=utcnow(), only_missing=False))
    show(
        {"tenants": len(tenant_ids), "pages": pages, "boards": boards},
        as_json=as_json,
        text=f"{plural(len(tenant_ids), 'tenant')}: {plural(pages, 'page')} computed,"
        f" {plural(boards, 'board')} filled.",
    )


@contextmanager
def tenants_of(data_dir: Path, tenant_id: str | None) -> Iterator[list[str]]:
    """The ids of this tenant, or of all; connects to the database and Redis, without which nothing can be done here."""
    from tenants import registry
    from tenants.db import owner_tx
    from tenants.redis import RedisUnavailable
    from tenants.redis_addresses import shown

    with migrated_database(data_dir) as settings:
        boards_url = connect_redis(settings, boards_timeout_s=5.0)
        with owner_tx() as tx:
            wanted = [registry.get(tx, tenant_id)] if tenant_id is not None else registry.live(tx)
            names = [tenant.id for tenant in wanted]
        try:
            yield names
        except RedisUnavailable as error:
            raise RedisUnavailable(
                f"The boards' Redis cannot be reached ({shown(boards_url)}): start it, or check REDIS_URL"
            ) from error


def plural(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")


@contextmanager
def _watching(*, quiet: bool) -> Iterator[Callable[[str], Callable[[str, int, int | None], None]]]:
    """Shows what of a tenant is compared, and how much of it: a bar in a terminal, else lines, on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal, transient=True) as bar:
        task = bar.add_task("Checking", total=None)
        said_at = time.monotonic()

        def watch(tenant_id: str, part: str, done: int, total: int | None, /) -> None:
            nonlocal said_at
            bar.update(task, description=f"{tenant_id}: {part}", completed=done, total=total)
            if bar.disable and not quiet and time.monotonic() - said_at > SAY_EVERY_S:
                said_at = time.monotonic()
                of_all = f" of {total:,}" if total is not None else ""
                click.echo(f"{tenant_id}: {part}, {done:,}{of_all}", err=True)

        yield lambda tenant_id: partial(watch, tenant_id)


@contextmanager
def _progress(what: str, total: int | None, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=quiet, transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda n: progress.update(task, advance=n)
