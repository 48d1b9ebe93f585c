"""`plaudit client …`, `plaudit key …`, `plaudit signing-key …`"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from app.cli.common import audit, inside_tenant, json_option, migrated_database, show, show_table
from tenants.security_events import SecurityEvent

ALL_SCOPES = "pages:write,events:write,events:backfill,stats:read,users:write,actions:write,quests:write,admin"


def register(cli: click.Group) -> None:
    for group in (client, key, signing_key):
        cli.add_command(group)


@contextmanager
def inside(data_dir: Path, tenant_id: str) -> Iterator[Any]:
    """A transaction of an existing tenant."""
    with inside_tenant(data_dir, tenant_id) as open_tx, open_tx() as tx:
        yield tx


@click.group()
def client() -> None:
    """OAuth clients: how tenant apps authenticate."""


@client.command("create")
@click.argument("tenant_id", metavar="TENANT")
@click.option("--scopes", required=True, help=f"Comma-separated list of {ALL_SCOPES}.")
@click.option("--name", default="Tenant app", show_default=True)
@json_option
@click.pass_obj
def client_create(data_dir: Path, tenant_id: str, scopes: str, name: str, as_json: bool) -> None:
    """Create a client of TENANT. Prints its id and secret, which is not shown again."""
    from tenants import credentials
    from tenants.db import utcnow

    wanted = scopes.replace(",", " ").split()
    with inside(data_dir, tenant_id) as tx:
        created = credentials.create_client(tx, name=name, scopes=wanted, now=utcnow())
    audit(SecurityEvent.CLIENT_CREATED, tenant_id, client=created.client.id)
    show_secret(created, as_json=as_json)


@client.command("list")
@click.argument("tenant_id", metavar="TENANT")
@json_option
@click.pass_obj
def client_list(data_dir: Path, tenant_id: str, as_json: bool) -> None:
    """List the clients of TENANT."""
    from tenants import credentials

    with inside(data_dir, tenant_id) as tx:
        rows = [
            {
                "client_id": row.id,
                "name": row.name,
                "scopes": " ".join(row.scopes),
                "last_used_at": row.last_used_at.isoformat(timespec="seconds") if row.last_used_at else None,
            }
            for row in credentials.list_clients(tx)
        ]
    show_table(
        rows, as_json=as_json, columns=("client_id", "name", "scopes", "last_used_at"), empty="There is no client yet."
    )


@client.command("rotate")
@click.argument("tenant_id", metavar="TENANT")
@click.argument("client_id", metavar="CLIENT")
@json_option
@click.pass_obj
def client_rotate(data_dir: Path, tenant_id: str, client_id: str, as_json: bool) -> None:
    """Give CLIENT a new secret. The old one stays valid for another day."""
    from tenants import credentials
    from tenants.db import utcnow

    with inside(data_dir, tenant_id) as tx:
        created = credentials.rotate_client(tx, client_id, now=utcnow())
    audit(SecurityEvent.CLIENT_ROTATED, tenant_id, client=client_id)
    show_secret(created, as_json=as_json)


@client.command("revoke")
@click.argument("tenant_id", metavar="TENANT")
@click.argument("client_id", metavar="CLIENT")
@json_option
@click.pass_obj
def client_revoke(data_dir: Path, tenant_id: str, client_id: str, as_json: bool) -> None:
    """Revoke CLIENT and its tokens at once."""
    from tenants import credentials
    from tenants.db import utcnow

    with inside(data_dir, tenant_id) as tx:
        credentials.revoke_client(tx, client_id, now=utcnow())
    audit(SecurityEvent.CLIENT_REVOKED, tenant_id, client=client_id)
    show({"client_id": client_id, "revoked": True}, as_json=as_json, text=f"Revoked client {client_id}.")


@click.group()
def key() -> None:
    """Publishable keys: what a tenant's pages use in browsers."""


@key.command("create")
@click.argument("tenant_id", metavar="TENANT")
@click.option(
    "--origin", "origins", multiple=True, required=True, help="Such as https://wiki.example; may be repeated."
)
@click.option("--name", default="Browser", show_default=True)
@click.option("--auto-pages", is_flag=True, help="The first view of an unknown address makes its page.")
@json_option
@click.pass_obj
def key_create(
    data_dir: Path, tenant_id: str, origins: tuple[str, ...], name: str, auto_pages: bool, as_json: bool
) -> None:
    """Create a publishable key of TENANT. Its signing secret, for the site's server, cannot be shown again."""
    from tenants import credentials
    from tenants.db import utcnow

    signatures, signer = reader_signatures(data_dir), signer_of(data_dir)
    with inside(data_dir, tenant_id) as tx:
        created = credentials.create_key(
            tx, signer=signer, name=name, origins=origins, auto_pages=auto_pages, now=utcnow()
        )
    audit(SecurityEvent.KEY_CREATED, tenant_id, origins=list(origins))
    show_signing_secret(created, signatures, as_json=as_json)


@key.command("signing-secret")
@click.argument("tenant_id", metavar="TENANT")
@click.argument("key_id", metavar="KEY")
@json_option
@click.pass_obj
def key_signing_secret(data_dir: Path, tenant_id: str, key_id: str, as_json: bool) -> None:
    """Give KEY a new signing secret. What the old one has signed is no longer valid."""
    from tenants import credentials

    signatures = reader_signatures(data_dir)
    with inside(data_dir, tenant_id) as tx:
        changed = credentials.change_reader_salt(tx, key_id)
    audit(SecurityEvent.KEY_SIGNING_SECRET_CHANGED, tenant_id, key=key_id[-6:])
    show_signing_secret(changed, signatures, as_json=as_json)


@key.command("list")
@click.argument("tenant_id", metavar="TENANT")
@json_option
@click.pass_obj
def key_list(data_dir: Path, tenant_id: str, as_json: bool) -> None:
    """List the publishable keys of TENANT."""
    from tenants import credentials

    with inside(data_dir, tenant_id) as tx:
        rows = [
            {"key": row.id, "name": row.name, "origins": " ".join(row.origins)} for row in credentials.list_keys(tx)
        ]
    show_table(rows, as_json=as_json, columns=("key", "name", "origins"), empty="There is no key yet.")


@key.command("revoke")
@click.argument("tenant_id", metavar="TENANT")
@click.argument("key_id", metavar="KEY")
@json_option
@click.pass_obj
def key_revoke(data_dir: Path, tenant_id: str, key_id: str, as_json: bool) -> None:
    """Revoke KEY at once."""
    from tenants import credentials
    from tenants.db import utcnow

    with inside(data_dir, tenant_id) as tx:
        credentials.revoke_key(tx, key_id, now=utcnow())
    audit(SecurityEvent.KEY_REVOKED, tenant_id)
    show({"key": key_id, "revoked": True}, as_json=as_json, text="Revoked the key.")


@click.group("signing-key")
def signing_key() -> None:
    """The keys that sign access tokens."""


@signing_key.command("rotate")
@json_option
@click.pass_obj
def signing_key_rotate(data_dir: Path, as_json: bool) -> None:
    """Publish a new key, which signs tokens from 15 minutes on. Existing tokens stay valid."""
    from tenants.db import utcnow

    with migrated_database(data_dir):
        kid = signer_of(data_dir).rotate(now=utcnow())
    audit(SecurityEvent.SIGNING_KEY_ROTATED, "", kid=kid)
    show({"kid": kid}, as_json=as_json, text=f"Key {kid} is published.")


def show_secret(created: Any, *, as_json: bool) -> None:
    show(
        {"client_id": created.client.id, "client_secret": created.secret, "scopes": created.client.scopes},
        as_json=as_json,
        text=f"client_id      {created.client.id}\nclient_secret  {created.secret}\nThe secret is not shown again.",
    )


def signer_of(data_dir: Path) -> Any:
    """What signs access tokens, keys and static tokens, as in the processes that answer requests."""
    from app.run import environment
    from app.settings import Settings
    from tenants.signing import Signer

    settings = Settings.from_env()
    return Signer(issuer=settings.public_url, secret_key=environment.secret_key(settings, data_dir))


def reader_signatures(data_dir: Path) -> Any:
    from app.run import environment
    from app.settings import Settings
    from tenants.reader_signatures import ReaderSignatures

    return ReaderSignatures(environment.secret_key(Settings.from_env(), data_dir))


def show_signing_secret(key: Any, signatures: Any, *, as_json: bool) -> None:
    secret = signatures.secret_of(key.id, key.reader_salt)
    show(
        {"key": key.id, "signing_secret": secret, "origins": key.origins, "auto_pages": key.auto_pages},
        as_json=as_json,
        text=f"key             {key.id}\nsigning_secret  {secret}",
    )
