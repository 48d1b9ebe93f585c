"""`plaudit check`, `plaudit rebuild`"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from app.cli.common import connect_redis, json_option, migrated_database, show

MAX_SHOWN_DIFFERENCES = 50
CHECK_AGAIN_AFTER_S = 2.0
# Ledgers, quests and visitors are what numbers are computed from.
BEYOND_REBUILD = "What another check still lists is wrong in PostgreSQL itself."


def register(cli: click.Group) -> None:
    cli.add_command(check)
    cli.add_command(rebuild)


@click.command(short_help="Compare every board with PostgreSQL.")
@click.argument("tenant_id", metavar="[TENANT]", required=False)
@json_option
@click.pass_obj
def check(data_dir: Path, tenant_id: str | None, as_json: bool) -> None:
    """Compare every board and every number with PostgreSQL: of all tenants, or of one.

    Computes everything again from the hourly counts and the likes. If there are differences, lists them and exits
    with 1. Skips pages that a worker has yet to process ("still due"); start a worker if there are many.
    """
    from analytics import checks
    from tenants.db import utcnow

    with tenants_of(data_dir, tenant_id) as tenant_ids:
        reports = []
        with _progress("Checking", len(tenant_ids), quiet=as_json) as advance:
            for name in tenant_ids:
                reports.append(checks.check(name, now=utcnow()))
                advance(1)
        differences = [difference for report in reports for difference in report.differences]
        if tenant_id is None:
            differences += _check_global(tenant_ids)
    pages, boards, due = (sum(getattr(report, name) for report in reports) for name in ("pages", "boards", "due"))
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


def _check_global(tenant_ids: list[str]) -> list[Any]:
    """No lock covers all tenants: a difference is real if it is found again a moment later."""
    from analytics.boards import checking
    from tenants.db import utcnow

    def compare() -> set[Any]:
        expected: dict[int, checking.Expected] = {}
        for name in tenant_ids:
            expected |= checking.shared_pages(name, now=utcnow())
        return set(checking.check_global(expected))

    differences = compare()
    for _ in range(3):
        if not differences:
            break
        time.sleep(CHECK_AGAIN_AFTER_S)
        differences &= compare()
    return sorted(differences, key=str)


@contextmanager
def _progress(what: str, total: int | None, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=quiet, transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda n: progress.update(task, advance=n)
