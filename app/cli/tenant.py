"""`plaudit tenant …`"""

import contextlib
from pathlib import Path

import click

from app.cli.common import audit, connect_redis, json_option, migrated_database, show, show_table

MAX_CEILING = 10**12
CEILING = click.IntRange(0, MAX_CEILING)


def register(cli: click.Group) -> None:
    cli.add_command(tenant)


@click.group()
def tenant() -> None:
    """Make, list, limit and delete tenants."""


@tenant.command()
@click.argument("tenant_id", metavar="ID")
@click.option("--name", required=True, help="What people call it.")
@json_option
@click.pass_obj
def create(data_dir: Path, tenant_id: str, name: str, as_json: bool) -> None:
    """Make the tenant ID (2 to 63 of a-z, 0-9 and -, starting with a letter)."""
    from tenants import liveness, registry
    from tenants.db import owner_tx, utcnow

    with migrated_database(data_dir, make=True) as settings:
        with owner_tx() as tx:
            made = registry.create(tx, tenant_id, name=name, now=utcnow())
        connect_redis(settings)
        liveness.forget(tenant_id, [liveness.TENANT])
    audit("tenant.created", tenant_id)
    show(
        {"id": made.id, "name": made.name, "created_at": made.created_at.isoformat()},
        as_json=as_json,
        text=f"Tenant {made.id} ({made.name}) is there.",
    )


@tenant.command("list")
@json_option
@click.pass_obj
def list_(data_dir: Path, as_json: bool) -> None:
    """List the tenants."""
    from tenants import registry
    from tenants.db import owner_tx

    with migrated_database(data_dir), owner_tx() as tx:
        rows = [
            {"id": row.id, "name": row.name, "created_at": row.created_at.isoformat(timespec="seconds")}
            for row in registry.live(tx)
        ]
    show_table(
        rows,
        as_json=as_json,
        columns=("id", "name", "created_at"),
        empty="There is no tenant yet. Make one: plaudit tenant create ID --name NAME",
    )


@tenant.command("limit")
@click.argument("tenant_id", metavar="TENANT")
@click.option("--pages", type=CEILING, help="Pages.")
@click.option("--users", type=CEILING, help="Users, erased ones too.")
@click.option("--spaces", type=CEILING, help="Spaces, former ones with boards too.")
@click.option("--segments", type=CEILING, help="Segments, former ones with boards too.")
@click.option("--sockets", type=CEILING, help="Open sockets and streams in each live process.")
@json_option
@click.pass_obj
def limit_(data_dir: Path, /, tenant_id: str, as_json: bool, **most: int | None) -> None:
    """Set how much TENANT may have; without options, show it and how much is used.

    What is above a ceiling already stays. New values hold at once; processes that make things at the same time may
    pass one by a little.
    """
    from sqlalchemy import text

    from analytics.ingest import pages
    from tenants import ceilings, registry, users
    from tenants.ceilings import Ceiling
    from tenants.db import owner_tx, tenant_tx

    changes = {Ceiling(name): number for name, number in most.items() if number is not None}
    counts = {
        Ceiling.PAGES: pages.count,
        Ceiling.USERS: users.count,
        Ceiling.SPACES: pages.count_spaces,
        Ceiling.SEGMENTS: users.count_segments,
    }
    with migrated_database(data_dir):
        with owner_tx() as tx:
            registry.get(tx, tenant_id)
            if changes:
                ceilings.change(tx, tenant_id, changes)
        with tenant_tx(tenant_id) as tx:
            tx.execute(text("SET LOCAL statement_timeout = 0"))
            limits = ceilings.read(tx)
            used = {ceiling: count(tx, MAX_CEILING) for ceiling, count in counts.items()}
    if changes:
        audit("tenant.limited", tenant_id, **{ceiling.value: number for ceiling, number in changes.items()})
    rows = [{"what": name.value, "limit": number, "used": used.get(name)} for name, number in limits.items()]
    show_table(rows, as_json=as_json, columns=("what", "limit", "used"), empty="")


@tenant.command()
@click.argument("tenant_id", metavar="ID")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@click.pass_obj
def delete(data_dir: Path, tenant_id: str, yes: bool, as_json: bool) -> None:
    """Delete the tenant ID with everything it has. It is shut out at once; its rows go within minutes."""
    from analytics.boards import projection
    from analytics.locks import Busy
    from tenants import liveness, registry
    from tenants.db import owner_tx, utcnow
    from tenants.redis import RedisUnavailable

    with migrated_database(data_dir) as settings:
        with owner_tx() as tx:
            found = registry.get(tx, tenant_id)
        if not yes:
            click.confirm(f"Delete {found.id} ({found.name}) and all its data?", abort=True)
        with owner_tx() as tx:
            registry.mark_deleted(tx, tenant_id, now=utcnow())
        connect_redis(settings)
        liveness.announce_revoked(tenant_id, [liveness.TENANT])
        with contextlib.suppress(RedisUnavailable, Busy):  # else the purge does it, within minutes
            projection.retire(tenant_id, now=utcnow())
    audit("tenant.deleted", tenant_id)
    show({"id": tenant_id, "deleted": True}, as_json=as_json, text=f"Tenant {tenant_id} is deleted.")
