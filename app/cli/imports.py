"""`plaudit import`"""

import contextlib
import json
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import click

from app.cli.common import inside_tenant, json_option, progress, show


def register(cli: click.Group) -> None:
    cli.add_command(import_)


@click.command("import", short_help="Import events from a file.")
@click.argument("tenant_id", metavar="TENANT")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True, readable=True))
@click.option(
    "--rejects",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where rejected lines are written, with their reasons. [default: FILE.rejects.ndjson]",
)
@json_option
@click.pass_obj
def import_(data_dir: Path, tenant_id: str, file: Path, rejects: Path | None, as_json: bool) -> None:
    """Import the events in FILE, one JSON object per line. They may be as old as hourly counts are kept.

    The lines have the format of POST /api/v1/events, such as {"type": "view", "page": "hello", "occurred_at":
    "2026-01-31T12:00:00Z", "id": "1"}; their pages must exist. After an interruption, the same command continues
    where it stopped. A file that was imported before adds nothing, nor does an event whose id was counted. Rejected
    lines are written to another file, which can be imported when their reason is resolved; then the exit status is 1.
    While the tenant's boards are over a minute behind, the import waits for them.
    """
    from analytics.ingest import imports
    from analytics.ingest.events import Ages
    from tenants import settings as tenant_settings
    from tenants.db import utcnow

    rejects = rejects or file.with_name(file.name + ".rejects.ndjson")
    with _rejects_file(rejects, not_=file) as (out, written), inside_tenant(data_dir, tenant_id) as open_tx:
        file_hash, lines = imports.hash_file(file)
        now = utcnow()
        with open_tx() as tx:
            import_before = imports.begin(tx, file_hash, name=file.name, now=now, again=True)
            days = tenant_settings.read(tx)[0].retention.hourly_buckets_days
        if import_before.finished_at is None:
            _keep(out, written, import_before.lines_done)
            chunks = imports.run(
                tenant_id,
                file,
                file_hash,
                lines_done=import_before.lines_done,
                ages=Ages.for_caller(now, backfill_days=days),
                now=now,
            )
            with progress("lines", lines, import_before.lines_done, quiet=as_json) as advance:
                for chunk in chunks:
                    _write(out, chunk.rejects)
                    for lag_s in imports.hold_back(tenant_id, now=utcnow):
                        advance(chunk.lines_done, f"boards {lag_s:.0f} s behind")
        with open_tx() as tx:
            done = imports.begin(tx, file_hash, name=file.name, now=now)
    counts = {"accepted": done.accepted, "duplicates": done.duplicates, "rejected": done.rejected}
    finished_at = import_before.finished_at
    before = finished_at.isoformat(timespec="seconds") if finished_at else None
    text = f"{done.accepted:,} accepted, {done.duplicates:,} duplicates, {done.rejected:,} rejected"
    text += f" (see {rejects})." if done.rejected and rejects.exists() else "."
    if before:
        text = f"This file was imported at {before}; nothing was added. At that time: {text}"
    show(
        {
            **counts,
            "lines": done.lines_done,
            "imported_before": before,
            "rejects": str(rejects) if done.rejected else None,
        },
        as_json=as_json,
        text=text,
    )
    if done.rejected:
        sys.exit(1)


@contextlib.contextmanager
def _rejects_file(rejects: Path, *, not_: Path) -> Iterator[tuple[IO[bytes], list[bytes]]]:
    """Open and read the file of rejected lines before any other work. Delete it at the end if it is empty."""
    from app.run.data_folder import open_private
    from tenants.errors import Invalid

    if rejects.exists() and rejects.samefile(not_):
        raise Invalid(f"{rejects} is the file to import: choose another with --rejects")
    try:
        out = open_private(rejects)
    except OSError as error:
        raise Invalid(f"{rejects} cannot be written ({error.strerror}): choose another with --rejects") from None
    with out:
        try:
            written = _lines_of(out.read())
        except (ValueError, TypeError, KeyError):
            raise Invalid(
                f"{rejects} contains something else than rejected lines: choose another with --rejects"
            ) from None
        try:
            yield out, written
        finally:
            out.flush()
            _remove_if_empty(rejects)


def _lines_of(content: bytes) -> list[bytes]:
    """The whole lines, without one that an interrupted run did not finish."""
    *lines, unfinished = content.split(b"\n")
    if unfinished[:8] != b'{"line":'[: len(unfinished)] or not all(json.loads(line)["line"] for line in lines if line):
        raise ValueError
    return [line for line in lines if line]


def _keep(out: IO[bytes], written: list[bytes], lines_done: int) -> None:
    """Drop the lines of a chunk that an interrupted run did not commit."""
    out.truncate(0)
    out.writelines(line + b"\n" for line in written if json.loads(line)["line"] <= lines_done)


def _remove_if_empty(rejects: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        info = rejects.lstat()
        if stat.S_ISREG(info.st_mode) and info.st_size == 0:
            rejects.unlink()


def _write(out: IO[bytes], rejects: list[Any]) -> None:
    out.writelines(reject.as_json() + b"\n" for reject in rejects)
    out.flush()
