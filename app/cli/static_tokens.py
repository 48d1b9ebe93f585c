"""`plaudit token …`"""

from datetime import timedelta
from pathlib import Path

import click

from app.cli.common import audit, json_option, show, show_table
from app.cli.credentials import ALL_SCOPES, inside, signer_of
from tenants.security_events import SecurityEvent


def register(cli: click.Group) -> None:
    cli.add_command(token)


@click.group()
def token() -> None:
    """Static tokens: for tools that can only send a fixed header."""


@token.command("create")
@click.argument("tenant_id", metavar="TENANT")
@click.option("--name", required=True, help="What the token is for.")
@click.option("--scopes", required=True, help=f"Comma-separated list of {ALL_SCOPES}.")
@click.option("--expires-in-days", type=click.IntRange(1, 3650), help="Without it: when it is revoked.")
@json_option
@click.pass_obj
def token_create(
    data_dir: Path, tenant_id: str, name: str, scopes: str, expires_in_days: int | None, as_json: bool
) -> None:
    """Create a static token of TENANT. Prints it; it is not shown again."""
    from tenants import static_tokens
    from tenants.db import utcnow

    signer, now = signer_of(data_dir), utcnow()
    expires_at = now + timedelta(days=expires_in_days) if expires_in_days is not None else None
    wanted = scopes.replace(",", " ").split()
    with inside(data_dir, tenant_id) as tx:
        created = static_tokens.create(tx, signer=signer, name=name, scopes=wanted, expires_at=expires_at, now=now)
    audit(SecurityEvent.STATIC_TOKEN_CREATED, tenant_id, token=created.row.id, scopes=created.row.scopes)
    shown = {"id": created.row.id, "token": created.token, "scopes": created.row.scopes, "expires_at": expires_at}
    text = f"id     {created.row.id}\ntoken  {created.token}\nThe token is not shown again."
    show(shown, as_json=as_json, text=text)


@token.command("list")
@click.argument("tenant_id", metavar="TENANT")
@json_option
@click.pass_obj
def token_list(data_dir: Path, tenant_id: str, as_json: bool) -> None:
    """List the static tokens of TENANT and of its users."""
    from tenants import static_tokens

    with inside(data_dir, tenant_id) as tx:
        rows = [
            {
                "id": row.id,
                "name": row.name,
                "scopes": " ".join(row.scopes),
                "user": str(row.user_id) if row.user_id is not None else None,
                "expires_at": row.expires_at.isoformat(timespec="seconds") if row.expires_at else None,
                "last_used_at": row.last_used_at.isoformat(timespec="seconds") if row.last_used_at else None,
            }
            for row in static_tokens.list_tokens(tx)
        ]
    columns = ("id", "name", "scopes", "user", "expires_at", "last_used_at")
    show_table(rows, as_json=as_json, columns=columns, empty="There is no static token yet.")


@token.command("revoke")
@click.argument("tenant_id", metavar="TENANT")
@click.argument("token_id", metavar="ID")
@json_option
@click.pass_obj
def token_revoke(data_dir: Path, tenant_id: str, token_id: str, as_json: bool) -> None:
    """Revoke the static token with this ID at once."""
    from tenants import static_tokens
    from tenants.db import utcnow

    with inside(data_dir, tenant_id) as tx:
        static_tokens.revoke(tx, token_id, now=utcnow())
    audit(SecurityEvent.STATIC_TOKEN_REVOKED, tenant_id, token=token_id)
    show({"id": token_id, "revoked": True}, as_json=as_json, text=f"Revoked token {token_id}.")
