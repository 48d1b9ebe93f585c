"""`plaudit tenant …`"""

import time
from functools import partial
from pathlib import Path

import click

from app.cli.common import audit, connect_redis, json_option, migrated_database, progress, show, show_table
from tenants.security_events import SecurityEvent

MAX_CEILING = 10**12
# How often a deletion waits for a lock of boards, 5 s each time; and how long for another process that deletes.
MAX_WAITS = 60
WAIT_S = 0.2
CEILING = click.IntRange(0, MAX_CEILING)


def register(cli: click.Group) -> None:
    cli.add_command(tenant)


@click.group()
def tenant() -> None:
    """Create, list, limit and delete tenants."""


@tenant.command()
@click.argument("tenant_id", metavar="ID")
@click.option("--name", required=True, help="The name that people see.")
@json_option
@click.pass_obj
def create(data_dir: Path, tenant_id: str, name: str, as_json: bool) -> None:
    """Create a tenant. ID is 2 to 63 of a-z, 0-9 and -, starting with a letter."""
    from tenants import registry
    from tenants.db import owner_tx, utcnow

    with migrated_database(data_dir, create=True) as settings:
        connect_redis(settings)
        with owner_tx() as tx:
            created = registry.create(tx, tenant_id, name=name, now=utcnow())
    audit(SecurityEvent.TENANT_CREATED, tenant_id)
    show(
        {"id": created.id, "name": created.name, "created_at": created.created_at.isoformat()},
        as_json=as_json,
        text=f"Created tenant {created.id} ({created.name}).",
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
        empty="There is no tenant yet. Create one: plaudit tenant create ID --name NAME",
    )


@tenant.command("limit")
@click.argument("tenant_id", metavar="TENANT")
@click.option("--pages", type=CEILING, help="Pages.")
@click.option("--users", type=CEILING, help="Users, including erased ones.")
@click.option("--spaces", type=CEILING, help="Spaces, including former ones with boards.")
@click.option("--segments", type=CEILING, help="Segments, including former ones with boards.")
@click.option("--sockets", type=CEILING, help="Open sockets and streams, in all live processes together.")
@json_option
@click.pass_obj
def limit_(data_dir: Path, /, tenant_id: str, as_json: bool, **given: int | None) -> None:
    """Set the ceilings of TENANT. Without options, show them and how much is used.

    What exceeds a new ceiling already is not deleted. New values apply at once; processes that create things at the
    same time may exceed one by a little.
    """

    from analytics.ingest import pages
    from tenants import ceilings, registry, segments, users
    from tenants.ceilings import Ceiling
    from tenants.db import owner_tx, tenant_tx

    changes = {Ceiling(name): number for name, number in given.items() if number is not None}
    counts = {
        Ceiling.PAGES: pages.count,
        Ceiling.USERS: users.count,
        Ceiling.SPACES: pages.count_spaces,
        Ceiling.SEGMENTS: segments.count,
    }
    with migrated_database(data_dir):
        with owner_tx() as tx:
            registry.get(tx, tenant_id)
            if changes:
                ceilings.change(tx, tenant_id, changes)
        with tenant_tx(tenant_id) as tx:
            tx.set_statement_timeout(0)
            limits = ceilings.read(tx)
            used = {ceiling: count(tx, MAX_CEILING) for ceiling, count in counts.items()}
    if changes:
        audit(SecurityEvent.TENANT_LIMITED, tenant_id, **{ceiling.value: number for ceiling, number in changes.items()})
    rows = [{"what": name.value, "limit": number, "used": used.get(name)} for name, number in limits.items()]
    show_table(rows, as_json=as_json, columns=("what", "limit", "used"), empty="")


@tenant.command()
@click.argument("tenant_id", metavar="ID")
@click.option("--yes", is_flag=True, help="Delete without asking.")
@json_option
@click.pass_obj
def delete(data_dir: Path, tenant_id: str, yes: bool, as_json: bool) -> None:
    """Delete the tenant ID and all its data. Its access ends at once; its rows are deleted in small steps.

    Nobody waits for it. If it was interrupted, run it again, or leave the rest to a worker.
    """
    from tenants import registry
    from tenants.db import owner_tx, utcnow
    from tenants.redis import RedisUnavailable

    with migrated_database(data_dir) as settings:
        with owner_tx() as tx:
            existing = registry.get_even_deleted(tx, tenant_id)
        is_begun = existing.deleted_at is not None
        if not yes:
            rest = "what is left of it" if is_begun else "all its data"
            click.confirm(f"Delete {existing.id} ({existing.name}) and {rest}?", abort=True)
        audit(SecurityEvent.TENANT_DELETING, tenant_id, begun_before=is_begun)
        connect_redis(settings, boards_timeout_s=5.0)
        if not is_begun:
            with owner_tx() as tx:
                registry.mark_deleted(tx, tenant_id, now=utcnow())
        try:
            pages, keys = _take_off_boards(tenant_id, quiet=as_json)
        except RedisUnavailable:
            text = f"Access to {tenant_id} has ended. When Redis is back a worker deletes its rows, or run this again."
            show({"id": tenant_id, "deleted": True, "purged": False}, as_json=as_json, text=text)
            return
        rows, size = _delete_rows(tenant_id, quiet=as_json)
    audit(SecurityEvent.TENANT_DELETED, tenant_id, rows=rows, bytes=size, redis_keys=keys, global_pages=pages)
    show(
        {"id": tenant_id, "deleted": True, "purged": True, "rows": rows, "bytes": size, "redis_keys": keys},
        as_json=as_json,
        text=f"Deleted tenant {tenant_id}: {rows:,} rows and {keys:,} keys of Redis. {size / 1e6:,.1f} MB of rows, and"
        " their part of the indexes, are free for new rows after PostgreSQL's next autovacuum.",
    )


def _take_off_boards(tenant_id: str, *, quiet: bool) -> tuple[int, int]:
    """How many pages left the global boards, and how many keys Redis."""
    from analytics.boards import retiring
    from analytics.locks import Busy
    from tenants.db import utcnow

    waits = 0
    with progress("pages", retiring.count(tenant_id), quiet=quiet, verb="Taking off boards") as watch:
        while True:
            try:
                retired = retiring.retire(tenant_id, now=utcnow(), watch=watch)
            except Busy:  # a rebuild has the lock, or another process that deletes the tenant
                waits += 1
                if waits == MAX_WAITS:
                    raise
            else:
                return retired.pages, retired.keys


def _delete_rows(tenant_id: str, *, quiet: bool) -> tuple[int, int]:
    """How many rows were deleted here, and their bytes. A worker may do the same, and delete some of them."""
    from tenants import purging, registry
    from tenants.db import owner_tx

    def watch_from(before: int, done: int) -> None:
        watch(before + done)

    rows = size = 0
    with progress("rows", purging.count(tenant_id), quiet=quiet, verb="Deleting") as watch:
        while True:
            purged = purging.purge(tenant_id, watch=partial(watch_from, rows))
            rows, size = rows + purged.rows, size + purged.bytes
            with owner_tx() as tx:
                if tenant_id not in registry.deleted(tx):
                    return rows, size
            time.sleep(WAIT_S)
