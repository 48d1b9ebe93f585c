"""`plaudit pages …`"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from app.cli.common import inside_tenant, json_option, progress, show

if TYPE_CHECKING:
    from analytics.ingest.page_files import Entry
    from tenants.errors import DomainError

CHUNK_PAGES = 1000
# Rejected ones that are listed: with --json, and as text.
MAX_LISTED = 10_000
MAX_PRINTED = 20


def register(cli: click.Group) -> None:
    cli.add_command(pages)


@click.group()
def pages() -> None:
    """Pages: what a tenant counts."""


@pages.command("import")
@click.argument("tenant_id", metavar="TENANT")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True, readable=True))
@click.option("--space", help="The space of new pages for which FILE names none; a sitemap needs it.")
@click.option(
    "--visibility",
    type=click.Choice(["private", "public"]),
    help="For pages for which FILE does not say it. [default: as they are; new ones are private]",
)
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@json_option
@click.pass_obj
def import_(
    data_dir: Path,
    tenant_id: str,
    file: Path,
    space: str | None,
    visibility: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Create or change the pages in FILE: a sitemap.xml, or CSV. Each is written as PUT /api/v1/pages/{id} does.

    CSV has the header external_id,space,title,url and, optionally, visibility and owner. A sitemap may be gzipped, or
    an index of sitemaps that are in the same folder. It has addresses only: a page's id is its path (docs:intro), its
    title the last part of it; a page that exists keeps both title and space. The same file can be imported again. If
    pages are rejected, the others are written all the same, and the exit status is 1.
    """
    from analytics.ingest import page_files
    from analytics.ingest.page_files import Defaults

    defaults = Defaults(space, visibility)
    total = sum(1 for _ in page_files.read(file, defaults))  # a file that cannot be read to its end changes nothing
    summary = _Summary()
    with inside_tenant(data_dir, tenant_id) as open_tx, progress("pages", total, quiet=as_json) as advance:
        entries = page_files.read(file, defaults)
        while chunk := list(islice(entries, CHUNK_PAGES)):
            _write(open_tx, chunk, summary, dry_run=dry_run)
            advance(summary.pages)
    _show(summary, dry_run=dry_run, as_json=as_json)


@dataclass
class _Summary:
    created: int = 0
    updated: int = 0
    rejected: int = 0
    listed: list[dict[str, Any]] = field(default_factory=list)

    @property
    def pages(self) -> int:
        return self.created + self.updated + self.rejected

    def reject(self, entry: "Entry", error: "DomainError") -> None:
        self.rejected += 1
        if self.rejected <= MAX_LISTED:
            self.listed.append({"file": entry.file, "line": entry.line, "code": error.code, "detail": error.detail})


class _DryRunError(Exception):
    """Rolls a transaction back."""


def _write(
    open_tx: Callable[[], contextlib.AbstractContextManager[Any]],
    chunk: "list[Entry]",
    summary: _Summary,
    *,
    dry_run: bool,
) -> None:
    from analytics.ingest import page_files
    from tenants.db import utcnow
    from tenants.errors import DomainError

    with contextlib.suppress(_DryRunError), open_tx() as tx:
        outcomes = page_files.write(tx, chunk, now=utcnow())
        if dry_run:
            raise _DryRunError
    for entry, outcome in zip(chunk, outcomes, strict=True):
        if isinstance(outcome, DomainError):
            summary.reject(entry, outcome)
        elif outcome.new:
            summary.created += 1
        else:
            summary.updated += 1


def _show(summary: _Summary, *, dry_run: bool, as_json: bool) -> None:
    counts = {"created": summary.created, "updated": summary.updated, "rejected": summary.listed}
    would = "would be " if dry_run else ""
    text = f"{summary.created:,} {would}created, {summary.updated:,} {would}updated, {summary.rejected:,} rejected."
    if not as_json:
        for line in _rejected_lines(summary):
            click.echo(line, err=True)
    show({**counts, "rejected_total": summary.rejected, "dry_run": dry_run}, as_json=as_json, text=text)
    if summary.rejected:
        sys.exit(1)


def _rejected_lines(summary: _Summary) -> Iterator[str]:
    for one in summary.listed[:MAX_PRINTED]:
        yield f"{one['file']}, line {one['line']}: {one['detail']} ({one['code']})"
    if summary.rejected > MAX_PRINTED:
        yield f"… and {summary.rejected - MAX_PRINTED:,} more: --json lists them"
