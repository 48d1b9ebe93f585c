"""`plaudit import`"""

import sys
from pathlib import Path
from typing import IO, Any

import click

from app.cli.common import inside_tenant, json_option, show


def register(cli: click.Group) -> None:
    cli.add_command(import_)


@click.command("import", short_help="Count the events in a file.")
@click.argument("tenant_id", metavar="TENANT")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True, readable=True))
@click.option(
    "--rejects",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where refused lines go, with their reasons. [default: FILE.rejects.ndjson]",
)
@json_option
@click.pass_obj
def import_(data_dir: Path, tenant_id: str, file: Path, rejects: Path | None, as_json: bool) -> None:
    """Count the events in FILE, one JSON object a line, as old as buckets are kept.

    The lines are those of POST /api/v1/events, such as {"type": "view", "page": "hello", "occurred_at":
    "2026-01-31T12:00:00Z", "id": "1"}; their pages must be there. Interrupted, it goes on where it stopped; a file
    that was imported before adds nothing, nor does an event whose id was counted. What is refused is written to
    another file, which can itself be imported when the reason is gone; then the exit status is 1.
    """
    from analytics import imports
    from analytics.events import Ages
    from analytics.wake import wake
    from tenants import settings as tenant_settings
    from tenants.db import utcnow

    rejects = rejects or file.with_name(file.name + ".rejects.ndjson")
    with inside_tenant(data_dir, tenant_id) as open_tx:
        file_hash, lines = imports.hash_file(file)
        now = utcnow()
        with open_tx() as tx:
            begun = imports.begin(tx, file_hash, name=file.name, now=now, again=True)
            days = tenant_settings.read(tx)[0].retention.hourly_buckets_days
        if begun.finished_at is None:
            chunks = imports.run(
                tenant_id,
                file,
                file_hash,
                lines_done=begun.lines_done,
                ages=Ages.for_caller(now, backfill_days=days),
                now=now,
            )
            _keep(rejects, begun.lines_done)
            with rejects.open("ab") as out, _progress(lines, begun.lines_done, quiet=as_json) as advance:
                for chunk in chunks:
                    _write(out, chunk.rejects)
                    advance(chunk.lines_done)
                    wake([tenant_id])
        with open_tx() as tx:
            done = imports.begin(tx, file_hash, name=file.name, now=now)
    if not done.rejected:
        rejects.unlink(missing_ok=True)
    counts = {"accepted": done.accepted, "duplicates": done.duplicates, "rejected": done.rejected}
    before = begun.finished_at.isoformat(timespec="seconds") if begun.finished_at else None
    text = f"{done.accepted:,} accepted, {done.duplicates:,} duplicates, {done.rejected:,} rejected"
    text += f" (see {rejects})." if done.rejected and rejects.exists() else "."
    if before:
        text = f"This file was imported at {before}; nothing was added. Then: {text}"
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


def _keep(rejects: Path, lines_done: int) -> None:
    """Drop what an interrupted run wrote of a chunk that was not committed (or of another file)."""
    import json

    if not rejects.exists():
        return
    kept = [line for line in rejects.read_text().splitlines() if line and json.loads(line).get("line", 0) <= lines_done]
    rejects.write_text("".join(f"{line}\n" for line in kept))


def _write(out: IO[bytes], rejects: list[Any]) -> None:
    out.writelines(reject.as_json() + b"\n" for reject in rejects)
    out.flush()


class _progress:  # noqa: N801  reads as a statement
    """A bar with the rate, on standard error when that is a terminal."""

    def __init__(self, lines: int, done: int, *, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            ProgressColumn,
            Task,
            TextColumn,
            TimeRemainingColumn,
        )
        from rich.text import Text

        class Rate(ProgressColumn):
            def render(self, task: Task) -> Text:
                return Text(f"{task.speed or 0:>10,.0f} lines/s")

        columns = (TextColumn("Importing"), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), disable=quiet)
        self._task = self._progress.add_task("import", total=lines, completed=done)

    def __enter__(self) -> Any:
        self._progress.start()
        return lambda lines_done: self._progress.update(self._task, completed=lines_done)

    def __exit__(self, *_error: object) -> None:
        self._progress.stop()
