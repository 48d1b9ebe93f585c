"""`plaudit check`, `plaudit rebuild`"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from app.cli.common import connect_redis, json_option, migrated_database, show

MOST_SHOWN = 50
LOOK_AGAIN_AFTER_S = 2.0


def register(cli: click.Group) -> None:
    cli.add_command(check)
    cli.add_command(rebuild)


@click.command(short_help="Compare every board with PostgreSQL.")
@click.argument("tenant_id", metavar="[TENANT]", required=False)
@json_option
@click.pass_obj
def check(data_dir: Path, tenant_id: str | None, as_json: bool) -> None:
    """Compare every board and every number with PostgreSQL: of all tenants, or of one.

    Computes all of it anew from the hourly buckets and the likes. Exits with 1 and lists the differences, if there
    are any. Pages that a worker is still due to look at are left out; start one if there are many.
    """
    from analytics.boards import checking
    from tenants.db import utcnow

    with tenants_of(data_dir, tenant_id) as tenant_ids:
        reports = []
        with _progress("Checking", len(tenant_ids), quiet=as_json) as advance:
            for name in tenant_ids:
                reports.append(checking.check(name, now=utcnow()))
                advance(1)
        differences = [difference for report in reports for difference in report.differences]
        if tenant_id is None:
            differences += _check_global(tenant_ids)
    pages, boards, due = (sum(getattr(report, name) for report in reports) for name in ("pages", "boards", "due"))
    if not as_json:
        for difference in differences[:MOST_SHOWN]:
            click.echo(str(difference))
        if len(differences) > MOST_SHOWN:
            click.echo(f"… and {len(differences) - MOST_SHOWN:,} more (--json lists all)")
    said = counted(len(differences), "difference") if differences else "no differences"
    late = f", {due:,} still due" if due else ""
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
        text=f"{counted(len(tenant_ids), 'tenant')}, {counted(pages, 'page')},"
        f" {counted(boards, 'board')}: {said}{late}.",
    )
    sys.exit(1 if differences else 0)


@click.command(short_help="Compute and fill every board anew.")
@click.argument("tenant_id", metavar="[TENANT]", required=False)
@json_option
@click.pass_obj
def rebuild(data_dir: Path, tenant_id: str | None, as_json: bool) -> None:
    """Compute every number anew and fill every board anew: of all tenants, or of one.

    Boards are filled beside the old ones and take their place at once, so they can be read all the while.
    """
    from analytics.boards import rebuilding, recomputing
    from tenants.db import utcnow

    pages = boards = 0
    with tenants_of(data_dir, tenant_id) as tenant_ids:
        for name in tenant_ids:
            with _progress(f"Rebuilding {name}", None, quiet=as_json) as advance:
                done = recomputing.recompute_tenant(name, now=utcnow, progress=advance)
            pages, boards = pages + done.pages, boards + len(done.rebuilt)
        boards += len(rebuilding.rebuild_global(only_missing=False))
    show(
        {"tenants": len(tenant_ids), "pages": pages, "boards": boards},
        as_json=as_json,
        text=f"{counted(len(tenant_ids), 'tenant')}: {counted(pages, 'page')} computed,"
        f" {counted(boards, 'board')} filled anew.",
    )


@contextmanager
def tenants_of(data_dir: Path, tenant_id: str | None) -> Iterator[list[str]]:
    """The tenants meant, with database and Redis at hand."""
    from tenants import registry
    from tenants.db import owner_tx

    with migrated_database(data_dir) as settings:
        connect_redis(settings, boards_timeout_s=5.0)
        with owner_tx() as tx:
            wanted = [registry.get(tx, tenant_id)] if tenant_id is not None else registry.live(tx)
            names = [tenant.id for tenant in wanted]
        yield names


def counted(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def _check_global(tenant_ids: list[str]) -> list[Any]:
    """No lock covers all tenants: a difference counts when it is still there a moment later."""
    from analytics.boards import checking
    from tenants.db import utcnow

    def look() -> set[Any]:
        expected: dict[int, checking.Expected] = {}
        for name in tenant_ids:
            expected |= checking.shared_pages(name, now=utcnow())
        return set(checking.check_global(expected))

    found = look()
    for _ in range(3):
        if not found:
            break
        time.sleep(LOOK_AGAIN_AFTER_S)
        found &= look()
    return sorted(found, key=str)


@contextmanager
def _progress(what: str, total: int | None, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A bar, on standard error when that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=quiet, transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda n: progress.update(task, advance=n)
