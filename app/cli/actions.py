"""`plaudit action …`"""

from pathlib import Path

import click

from app.cli.common import audit, inside_tenant, json_option, show, show_table
from tenants.security_events import SecurityEvent


def register(cli: click.Group) -> None:
    cli.add_command(action)


@click.group()
def action() -> None:
    """The action catalog: what users are paid points for."""


@action.command("set")
@click.argument("tenant_id", metavar="TENANT")
@click.argument("action_type", metavar="TYPE")
@click.option("--points", type=int, help="Points for each time (required for a new action).")
@click.option("--daily-cap", type=int, help="Maximum points that a user is paid for it in a day (UTC); 0: no cap.")
@click.option("--daily-limit", type=int, help="Maximum times that a user is paid for it in a day (UTC); 0: no limit.")
@click.option("--cooldown", "cooldown_s", type=int, help="Seconds until a user is paid for it again; 0: none.")
@click.option(
    "--once-per-object/--many-per-object", default=None, help="Whether a user is paid only once for each object."
)
@click.option("--requires-token/--no-token", default=None, help="Whether a user needs an action token to claim it.")
@click.option("--enabled/--disabled", default=None, help="Whether it can be claimed.")
@json_option
@click.pass_obj
def set_(data_dir: Path, /, tenant_id: str, action_type: str, as_json: bool, **given: int | bool | None) -> None:
    """Create or change the action TYPE. Options that are not given keep the values in TENANT's catalog."""
    from dataclasses import fields

    from analytics.scores import catalog
    from analytics.scores.catalog import Terms
    from tenants.db import utcnow

    with inside_tenant(data_dir, tenant_id) as open_tx, open_tx() as tx:
        before = {row.type: row for row in catalog.list_(tx)}.get(action_type)
        current = {field.name: getattr(before, field.name) for field in fields(Terms)} if before is not None else {}
        merged = {**current, **{name: value for name, value in given.items() if value is not None}}
        if "points" not in merged:
            raise click.UsageError("A new action needs --points.")
        for name in ("daily_cap", "daily_limit", "cooldown_s"):
            merged[name] = merged.get(name) or None
        terms = Terms(**merged)
        catalog.put(tx, action_type, terms, now=utcnow())
    audit(SecurityEvent.ACTION_CHANGED, tenant_id, type=action_type, points=terms.points)
    summary = ", ".join(f"{name} {value}" for name, value in vars(terms).items() if value is not None)
    show({"type": action_type, **vars(terms)}, as_json=as_json, text=f"{action_type}: {summary}.")


@action.command("list")
@click.argument("tenant_id", metavar="TENANT")
@json_option
@click.pass_obj
def list_(data_dir: Path, tenant_id: str, as_json: bool) -> None:
    """List TENANT's catalog."""
    from analytics.scores import catalog

    limits = ("daily_cap", "daily_limit", "cooldown_s")
    columns = ("type", "points", *limits, "once_per_object", "requires_token", "enabled")
    with inside_tenant(data_dir, tenant_id) as open_tx, open_tx() as tx:
        rows = [{name: getattr(row, name) for name in columns} for row in catalog.list_(tx)]
    empty = "There is no action yet. Create one: plaudit action set TENANT TYPE --points N"
    show_table(rows, as_json=as_json, columns=columns, empty=empty)


@action.command("remove")
@click.argument("tenant_id", metavar="TENANT")
@click.argument("action_type", metavar="TYPE")
@json_option
@click.pass_obj
def remove(data_dir: Path, tenant_id: str, action_type: str, as_json: bool) -> None:
    """Remove the action TYPE from TENANT's catalog. Points that were paid stay."""
    from analytics.scores import catalog

    with inside_tenant(data_dir, tenant_id) as open_tx, open_tx() as tx:
        catalog.remove(tx, action_type)
    audit(SecurityEvent.ACTION_REMOVED, tenant_id, type=action_type)
    show({"type": action_type, "removed": True}, as_json=as_json, text=f"Removed {action_type} from the catalog.")
