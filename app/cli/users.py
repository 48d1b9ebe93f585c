"""`plaudit user …`"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from app.cli.common import audit, json_option, show, show_table
from app.cli.credentials import inside
from tenants.security_events import SecurityEvent


def register(cli: click.Group) -> None:
    cli.add_command(user)


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
        text += f" Password: {password} (must be changed at the first login)"
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
