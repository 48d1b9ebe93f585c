"""`plaudit backup` and `plaudit restore`."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from app.cli.common import audit, connect_redis, database, json_option, show
from tenants.security_events import SecurityEvent

if TYPE_CHECKING:
    from app.run.revocations import Restored

MAX_TENANTS_NAMED = 20
# `--revoke-all` keeps these: revoking a key breaks a site, and nobody could log in without a password.
STAYING = {"publishable keys", "passwords", "admins"}


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
@click.option(
    "--revoke-all", is_flag=True, help="Revoke all sessions, access tokens, client secrets and static tokens."
)
@json_option
@click.pass_obj
def restore(data_dir: Path, file: Path, yes: bool, trust: bool, revoke_all: bool, as_json: bool) -> None:
    """Replace everything in PostgreSQL by what `plaudit backup` wrote to FILE, all or nothing.

    FILE may come from an older PostgreSQL or an older Plaudit: it is migrated to this release's schema.

    Credentials that were revoked or changed after the backup stay so, as far as the replaced database knows. The others
    are valid again, and counted; --revoke-all revokes sessions, access tokens, client secrets, static tokens and
    password resets. Publishable keys, passwords and roles stay those of the backup.

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
        restored = backups.read(file, db.owner_engine(), trust=trust, revoke_all=revoke_all)
        before, after = migrate(db.owner_engine(), service_url=settings.service_database_url)
        with db.owner_tx() as tx:
            timeline.forget(tx)  # before anything else can fail: what Redis has is of the data before
        if was_distributed:
            distribution.distribute_all(db.owner_engine())
        connect_redis(settings, boards_timeout_s=5.0)
        _erase_again(restored)
        # If Redis cannot be reached, a worker does it later; if it is busy, one is doing it.
        with contextlib.suppress(redis.RedisUnavailable, Busy):
            rebuilding.rebuild_global(now=db.utcnow())
    counts = {
        "applied_again": dict(restored.applied_again),
        "revoked": dict(restored.revoked),
        "valid_again": dict(restored.valid_again),
        "tenants_back": [*restored.tenants_back],
    }
    audit(
        SecurityEvent.BACKUP_RESTORED,
        "",
        schema=after,
        revokeAll=revoke_all,
        appliedAgain=counts["applied_again"],
        revoked=counts["revoked"],
        validAgain=counts["valid_again"],
        tenantsBack=counts["tenants_back"],
    )
    done = f"Restored {file} (schema {after}). The workers fill the boards again within seconds."
    show(
        {"file": str(file), "schema_before": before, "schema": after, **counts},
        as_json=as_json,
        text="\n".join([done, *_said(restored)]),
    )


def _erase_again(restored: "Restored") -> None:
    """Erase what the backup has brought back of users who were erased since. If that is interrupted, restore again."""
    from analytics import privacy, redaction
    from tenants.db import tenant_tx, utcnow

    for one in restored.erased:
        with tenant_tx(one.tenant_id) as tx:
            privacy.erase_again(tx, one.user_id, one.external_id, now=utcnow())
        redaction.begin(one.tenant_id, one.user_id)


def _said(restored: "Restored") -> list[str]:
    """Sentences that tell the operator which credentials were revoked, and which are valid again."""
    said = []
    if restored.applied_again:
        said.append(f"Applied again what was ended or changed after the backup: {_listed(restored.applied_again)}.")
    if restored.tenants_back:
        named = ", ".join(restored.tenants_back[:MAX_TENANTS_NAMED])
        more = len(restored.tenants_back) - MAX_TENANTS_NAMED
        said.append(
            f"These tenants are back, although the replaced database had deleted them or never had them: {named}"
            f"{f' and {more} more' if more > 0 else ''}. Delete those that should not be: plaudit tenant delete TENANT."
        )
    if restored.revoked:
        said.append(
            f"Revoked: {_listed(restored.revoked)}. Users have to log in again; each client needs a new secret: "
            "plaudit client rotate TENANT CLIENT."
        )
    if restored.valid_again:
        said.append(
            "Valid again, even if they were revoked or changed after the backup, which nobody knows here: "
            f"{_listed(restored.valid_again)}."
        )
        if restored.valid_again.keys() - STAYING:
            said.append(
                "Restore again with --revoke-all to revoke sessions, access tokens, client secrets, static tokens and "
                "password resets."
            )
    return said


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{what}: {count:,}" for what, count in counts.items())
