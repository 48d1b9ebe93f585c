"""`plaudit client …`, `plaudit key …`, `plaudit user …`, `plaudit signing-key …`"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from app.cli.common import audit, inside_tenant, json_option, migrated_database, show, show_table
from tenants.security_events import SecurityEvent

ALL_SCOPES = "pages:write,events:write,events:backfill,stats:read,users:write,actions:write,quests:write,admin"


def register(cli: click.Group) -> None:
    for group in (client, key, user, signing_key):
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


@click.group()
def user() -> None:
    """The users of a tenant."""


@user.command("create")
@click.argument("tenant_id", metavar="TENANT")
@click.argument("username", metavar="USERNAME")
@click.option("--role", type=click.Choice(["member", "admin"]), default="member", show_default=True)
@click.option("--email")
@click.option("--password-stdin", is_flag=True, help="Read the password from standard input instead of generating one.")
@json_option
@click.pass_obj
def user_create(
    data_dir: Path, tenant_id: str, username: str, role: str, email: str | None, password_stdin: bool, as_json: bool
) -> None:
    """Create a user of TENANT who can log in.

    Without --password-stdin, prints a generated password, which the user must change at the first login.
    """
    import secrets
    import sys

    from tenants import passwords, users
    from tenants.db import utcnow
    from tenants.users import Role

    password = sys.stdin.readline().rstrip("\n") if password_stdin else secrets.token_urlsafe(12)
    with inside(data_dir, tenant_id) as tx:
        hashed = (
            passwords.hash_new(password, users.words_about(tx, username=username, email=email))
            if password_stdin
            else passwords.hash_password(password)
        )
        created = users.register(
            tx,
            username=username,
            email=email,
            password_hash=hashed,
            role=Role(role),
            must_change_password=not password_stdin,
            now=utcnow(),
        )
    audit(SecurityEvent.USER_CREATED, tenant_id, user=str(created.id), role=role)
    result = {"id": str(created.id), "username": username, "role": role}
    text = f"Created user {username} ({role})."
    if not password_stdin:
        result["password"] = password
        text += f" Password: {password}"
    show(result, as_json=as_json, text=text)


@user.command("list")
@click.argument("tenant_id", metavar="TENANT")
@click.option("--q", help="The beginning of a username, e-mail address or external id.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True)
@json_option
@click.pass_obj
def user_list(data_dir: Path, tenant_id: str, q: str | None, limit: int, as_json: bool) -> None:
    """List the users of TENANT, newest first."""
    from tenants import suspensions, users
    from tenants.db import utcnow

    now = utcnow()
    with inside(data_dir, tenant_id) as tx:
        rows = [
            {
                "id": str(row.id),
                "username": row.username,
                "external_id": row.external_id,
                "role": row.role,
                "suspended": suspensions.is_suspended(row, now=now),
                "suspended_until": _time(suspensions.end_of(row, now=now)),
            }
            for row in users.search(tx, q=q, after=None, limit=limit)
        ]
    show_table(
        rows,
        as_json=as_json,
        columns=("id", "username", "external_id", "role", "suspended", "suspended_until"),
        empty="There is no such user.",
    )


@user.command("suspend")
@click.argument("tenant_id", metavar="TENANT")
@click.argument("username", metavar="USERNAME")
@click.option("--lift", is_flag=True, help="End the suspension.")
@click.option("--until", type=click.DateTime(), help="When it ends by itself (UTC). Without it: when it is lifted.")
@json_option
@click.pass_obj
def user_suspend(
    data_dir: Path, tenant_id: str, username: str, lift: bool, until: datetime | None, as_json: bool
) -> None:
    """Suspend a user of TENANT and end their sessions at once."""
    changes: dict[str, Any] = {"suspended": not lift}
    if until is not None:
        changes["suspended_until"] = until.replace(tzinfo=UTC)
    change_user(data_dir, tenant_id, username, changes, as_json=as_json)


@user.command("role")
@click.argument("tenant_id", metavar="TENANT")
@click.argument("username", metavar="USERNAME")
@click.argument("role", type=click.Choice(["member", "admin"]))
@json_option
@click.pass_obj
def user_role(data_dir: Path, tenant_id: str, username: str, role: str, as_json: bool) -> None:
    """Change the role of a user of TENANT, at once."""
    change_user(data_dir, tenant_id, username, {"role": role}, as_json=as_json)


@user.command("correct")
@click.argument("tenant_id", metavar="TENANT")
@click.argument("reference", metavar="USER")
@click.option("--account", type=click.Choice(["points", "xp", "reputation"]), default="points", show_default=True)
@click.option("--delta", type=int, required=True, help="What is added; negative: taken.")
@click.option("--reason", required=True, help="3 to 500 characters; the user sees it in the ledger.")
@json_option
@click.pass_obj
def user_correct(
    data_dir: Path, tenant_id: str, reference: str, account: str, delta: int, reason: str, as_json: bool
) -> None:
    """Correct the score of a user of TENANT. USER is a username, our id, or ext:<external id>."""
    from analytics.metrics import user_metrics
    from analytics.scores import corrections
    from tenants import users
    from tenants.db import utcnow

    metric = next(metric for metric, source in user_metrics().items() if source.account == account)
    with inside(data_dir, tenant_id) as tx:
        target = users.by_username(tx, reference) or users.find(tx, reference)
        corrected = corrections.correct(tx, target.id, metric, delta, reason=reason, by="command line", now=utcnow())
    audit(SecurityEvent.SCORE_CORRECTED, tenant_id, user=str(target.id), **corrected.logged())
    show(
        {"user": str(target.id), **vars(corrected)},
        as_json=as_json,
        text=f"User {reference} has {corrected.score} {account} now.",
    )


def change_user(data_dir: Path, tenant_id: str, username: str, changes: dict[str, Any], *, as_json: bool) -> None:
    from analytics import user_changes
    from tenants import suspensions, users
    from tenants.db import utcnow

    with inside(data_dir, tenant_id) as tx:
        before = users.by_username(tx, username)
        if before is None:
            raise users.UserNotFound(f"There is no user {username!r} in {tenant_id}")
        changed = user_changes.change_user(tx, before, changes, now=utcnow())
    until = _time(changed.suspended_until)
    logged = {**changes, "suspended_until": until} if until else changes
    audit(SecurityEvent.USER_CHANGED, tenant_id, user=str(changed.id), **logged)
    is_suspended = suspensions.is_suspended(changed, now=utcnow())
    state = f"suspended{f' until {until}' if until else ''}" if is_suspended else changed.role
    shown = {"id": str(changed.id), "username": username, "role": changed.role}
    show(
        {**shown, "suspended": is_suspended, "suspended_until": until},
        as_json=as_json,
        text=f"User {username} is {state} now.",
    )


def _time(at: datetime | None) -> str | None:
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}" if at is not None else None


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
