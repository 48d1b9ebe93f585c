"""`plaudit backup` and `plaudit restore`."""

import contextlib
from pathlib import Path

import click

from app.cli.common import connect_redis, database, json_option, show


def register(cli: click.Group) -> None:
    cli.add_command(backup)
    cli.add_command(restore)


@click.command(short_help="Back up the database to a file.")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@json_option
@click.pass_obj
def backup(data_dir: Path, file: Path, as_json: bool) -> None:
    """Back up everything in PostgreSQL to FILE, consistent as of one moment, while the service runs."""
    from app.run import backups
    from tenants import db

    with database(data_dir, direct=True):
        size = backups.write(file, db.owner_engine())
    show({"file": str(file), "bytes": size}, as_json=as_json, text=f"Wrote {file} ({size:,} bytes).")


@click.command(short_help="Replace the database by a backup.")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--yes", is_flag=True, help="Replace existing data without asking.")
@click.option("--trust", is_flag=True, help="Restore FILE even if it contains objects that no backup of Plaudit has.")
@json_option
@click.pass_obj
def restore(data_dir: Path, file: Path, yes: bool, trust: bool, as_json: bool) -> None:
    """Replace everything in PostgreSQL by what `plaudit backup` wrote to FILE, all or nothing.

    FILE may come from an older PostgreSQL or an older Plaudit: it is migrated to this release's schema.

    The SQL in FILE runs as the owner of the database: restore only backups that you trust. One with objects that no
    backup of Plaudit has (other functions, triggers, views, schemas) is refused without --trust; a skilled forgery is
    not detected that way.
    """
    from analytics.boards import rebuilding, timeline
    from analytics.locks import Busy
    from app.run import backups
    from migrations import distribution
    from migrations.run import migrate
    from tenants import db, redis

    with database(data_dir, keep_old_version=True, create=True, direct=True) as settings:
        backups.refuse_pooler(db.owner_engine())
        if not yes:
            click.echo(f"The SQL in {file} runs as the owner of the database: continue only if you trust it.", err=True)
            if backups.has_data(db.owner_engine()):
                click.confirm("The database has data. Replace all of it?", abort=True)
        with db.owner_engine().connect() as connection:
            was_distributed = distribution.is_distributed(connection)
        backups.read(file, db.owner_engine(), trust=trust)
        before, after = migrate(db.owner_engine(), service_url=settings.service_database_url)
        with db.owner_tx() as tx:
            timeline.forget(tx)  # before anything else can fail: what Redis has is of the data before
        if was_distributed:
            distribution.distribute_all(db.owner_engine())
        connect_redis(settings, boards_timeout_s=5.0)
        # If Redis cannot be reached, a worker does it later; if it is busy, one is doing it.
        with contextlib.suppress(redis.RedisUnavailable, Busy):
            rebuilding.rebuild_global(now=db.utcnow())
    show(
        {"file": str(file), "schema_before": before, "schema": after},
        as_json=as_json,
        text=f"Restored {file} (schema {after}). The workers fill the boards again within seconds.",
    )
