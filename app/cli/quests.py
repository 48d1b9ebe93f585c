"""`plaudit quest …` and `plaudit reward …`"""

from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import click

from app.cli.common import audit, inside_tenant, json_option, show, show_table
from tenants.security_events import SecurityEvent

STATUSES = ["OPEN", "CLAIMED", "PENDING_REVIEW", "COMPLETE", "DISPUTED", "EXPIRED", "CANCELLED"]
BY = "command"
MAX_REASON_CHARS = 1_000


def register(cli: click.Group) -> None:
    cli.add_command(quest)
    cli.add_command(reward)


@click.group()
def quest() -> None:
    """Quests: what members offer, do and attest."""


@quest.command("list")
@click.argument("tenant_id", metavar="TENANT")
@click.option("--status", type=click.Choice(STATUSES, case_sensitive=False), help="Only those in this state.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="At most so many.")
@json_option
@click.pass_obj
def list_(data_dir: Path, tenant_id: str, status: str | None, limit: int, as_json: bool) -> None:
    """List TENANT's quests, newest first."""
    from analytics.quests import listing, showing
    from analytics.quests.listing import Filter
    from analytics.quests.people import Person
    from analytics.quests.showing import Viewer
    from analytics.quests.states import Status
    from tenants.db import utcnow

    now = utcnow()
    viewer = Viewer(Person(None, is_admin=True, by=BY), sees_external_ids=True)
    with inside_tenant(data_dir, tenant_id) as open_tx, open_tx() as tx:
        wanted = Filter(Status(status.upper()) if status is not None else None)
        listed = listing.read(tx, wanted, after=None, limit=limit, now=now)
        shown = showing.in_list(tx, listed.quests, viewer, now=now)
    rows = [
        {
            **one,
            "creator": _name(one["creator"]),
            "performer": _name(one["performer"]),
            "created_at": one["created_at"].isoformat(timespec="minutes"),
        }
        for one in shown
    ]
    columns = ("id", "status", "title", "reward_xp", "creator", "performer", "created_at")
    show_table(rows, as_json=as_json, columns=columns, empty="There is no such quest yet.")


@quest.command()
@click.argument("tenant_id", metavar="TENANT")
@click.argument("quest_id", metavar="QUEST", type=click.UUID)
@click.option(
    "--to",
    type=click.Choice(["COMPLETE", "OPEN", "CANCELLED"], case_sensitive=False),
    required=True,
    help="Pay it, open a new round, or cancel it.",
)
@click.option("--reason", required=True, help="Why: people read it in the quest's history.")
@click.option(
    "--expires-at",
    type=click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"]),
    help="Of the new round (UTC), with --to OPEN.",
)
@json_option
@click.pass_obj
def resolve(
    data_dir: Path, tenant_id: str, quest_id: UUID, to: str, reason: str, as_json: bool, expires_at: datetime | None
) -> None:
    """End the dispute about QUEST."""
    from analytics.quests import steps
    from analytics.quests.people import Person
    from analytics.quests.states import Status
    from analytics.quests.texts import clean_lines
    from tenants.db import utcnow

    reason = clean_lines(reason)
    if not 1 <= len(reason) <= MAX_REASON_CHARS:
        raise click.UsageError(f"--reason: 1 to {MAX_REASON_CHARS:,} characters.")
    until = expires_at.replace(tzinfo=UTC) if expires_at is not None else None
    operator = Person(None, is_admin=True, by=BY)
    with inside_tenant(data_dir, tenant_id) as open_tx, open_tx() as tx:
        resolved = steps.resolve(
            tx, quest_id, operator, Status(to.upper()), reason=reason, expires_at=until, now=utcnow()
        )
    audit(SecurityEvent.QUEST_RESOLVED, tenant_id, quest=str(quest_id), to=resolved.status)
    result = {"id": str(quest_id), "status": resolved.status, "version": resolved.version}
    show(result, as_json=as_json, text=f"{resolved.title}: {resolved.status}.")


@click.group()
def reward() -> None:
    """Rewards of quests that could not be paid at once."""


@reward.command("list")
@click.argument("tenant_id", metavar="TENANT")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="At most so many.")
@json_option
@click.pass_obj
def list_rewards(data_dir: Path, tenant_id: str, limit: int, as_json: bool) -> None:
    """List TENANT's rewards that could not be paid at once, newest first."""
    from analytics.quests import rewards

    columns = ("id", "quest_id", "user_id", "reward_type", "amount", "status", "attempt_count", "reason")
    with inside_tenant(data_dir, tenant_id) as open_tx, open_tx() as tx:
        found = rewards.list_(tx, status=None, after=None, limit=limit)
        rows = [{name: getattr(row, name) for name in columns} for row in found]
    show_table(rows, as_json=as_json, columns=columns, empty="Every reward was paid at once.")


@reward.command()
@click.argument("tenant_id", metavar="TENANT")
@click.argument("reward_id", metavar="REWARD", type=click.UUID)
@json_option
@click.pass_obj
def retry(data_dir: Path, tenant_id: str, reward_id: UUID, as_json: bool) -> None:
    """Try to pay REWARD now. Exit code 1 if that fails again."""
    from analytics.quests import rewards
    from tenants.db import utcnow

    now = utcnow()
    with inside_tenant(data_dir, tenant_id) as open_tx:
        with open_tx() as tx:
            lease = rewards.lease_one(tx, reward_id, now=now)
        is_paid = rewards.attempt_leased(tenant_id, lease, by=BY, now=now)
        with open_tx() as tx:
            owed = rewards.get(tx, reward_id)
    audit(SecurityEvent.REWARD_RETRIED, tenant_id, reward=str(reward_id), paid=is_paid)
    result = {"id": str(reward_id), "status": owed.status, "attempt_count": owed.attempt_count, "reason": owed.reason}
    text = f"{owed.amount} {owed.reward_type} paid." if is_paid else f"Not paid: {owed.reason}"
    show(result, as_json=as_json, text=text)
    if not is_paid:
        raise SystemExit(1)


def _name(person: object) -> str | None:
    """How a table shows somebody."""
    if not isinstance(person, dict):
        return None
    return str(person["username"] or person["external_id"] or person["id"])
