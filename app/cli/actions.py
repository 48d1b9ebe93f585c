"""`plaudit action …`"""

from pathlib import Path

import click

from app.cli.common import audit, inside_tenant, json_option, show, show_table


def register(cli: click.Group) -> None:
    cli.add_command(action)


@click.group()
def action() -> None:
    """What users can do, and what it is worth."""


@action.command("set")
@click.argument("tenant_id", metavar="TENANT")
@click.argument("action_type", metavar="TYPE")
@click.option("--points", type=int, required=True, help="What it is worth.")
@click.option("--daily-cap", type=int, help="How often it counts in a day (UTC).")
@click.option("--cooldown", "cooldown_s", type=int, help="Seconds until it counts again.")
@click.option("--once-per-object", is_flag=True, help="It counts once for each object.")
@click.option("--requires-token", is_flag=True, help="A user's own word is not enough.")
@click.option("--disabled", is_flag=True, help="Keep it in the catalog, but let nobody do it.")
@json_option
@click.pass_obj
def set_(
    data_dir: Path,
    tenant_id: str,
    action_type: str,
    points: int,
    daily_cap: int | None,
    cooldown_s: int | None,
    once_per_object: bool,
    requires_token: bool,
    disabled: bool,
    as_json: bool,
) -> None:
    """Make the action TYPE in TENANT's catalog, or change its terms."""
    from analytics import catalog
    from analytics.catalog import Terms
    from tenants.db import utcnow

    terms = Terms(points, daily_cap, cooldown_s, once_per_object, requires_token, enabled=not disabled)
    with inside_tenant(data_dir, tenant_id) as open_tx, open_tx() as tx:
        catalog.put(tx, action_type, terms, now=utcnow())
    audit("action.changed", tenant_id, type=action_type, points=points)
    show({"type": action_type, **vars(terms)}, as_json=as_json, text=f"{action_type} is worth {points} points now.")


@action.command("list")
@click.argument("tenant_id", metavar="TENANT")
@json_option
@click.pass_obj
def list_(data_dir: Path, tenant_id: str, as_json: bool) -> None:
    """List TENANT's catalog."""
    from analytics import catalog

    columns = ("type", "points", "daily_cap", "cooldown_s", "once_per_object", "requires_token", "enabled")
    with inside_tenant(data_dir, tenant_id) as open_tx, open_tx() as tx:
        rows = [{name: getattr(row, name) for name in columns} for row in catalog.list_(tx)]
    empty = "There is no action yet. Make one: plaudit action set TENANT TYPE --points N"
    show_table(rows, as_json=as_json, columns=columns, empty=empty)


@action.command("remove")
@click.argument("tenant_id", metavar="TENANT")
@click.argument("action_type", metavar="TYPE")
@json_option
@click.pass_obj
def remove(data_dir: Path, tenant_id: str, action_type: str, as_json: bool) -> None:
    """Take the action TYPE out of TENANT's catalog. What was paid stays paid."""
    from analytics import catalog

    with inside_tenant(data_dir, tenant_id) as open_tx, open_tx() as tx:
        catalog.remove(tx, action_type)
    audit("action.removed", tenant_id, type=action_type)
    show({"type": action_type, "removed": True}, as_json=as_json, text=f"{action_type} is not in the catalog any more.")
