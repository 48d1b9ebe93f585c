"""Suspensions of users: in effect from `suspended_at` until `suspended_until`, or until they are lifted.

Who may act is decided by the time (`is_suspended`). The columns stay set after the end until a job clears them
(`end_due`): on boards the user is shown again from then on, so that what boards show changes by a write, as always.
"""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from sqlalchemy import text

from tenants import across
from tenants.across import OF_ONE
from tenants.db import Tx, owner_tx
from tenants.errors import Forbidden, Invalid

if TYPE_CHECKING:
    from tenants.users import User

# A longer one has no end.
MAX_LENGTH = timedelta(days=3660)
MAX_PER_STEP = 500


class Suspended(Forbidden):
    """Only for who has given the right password: others must not learn of it."""

    code = "suspended"
    title = "This account is suspended"

    def __init__(self, until: datetime | None) -> None:
        end = until.astimezone(UTC) if until is not None else None
        super().__init__(f"This account is suspended until {end:%Y-%m-%d %H:%M} UTC" if end else None)
        self.members = {"suspended_until": end}


def is_suspended(user: "User", *, now: datetime) -> bool:
    return user.suspended_at is not None and (user.suspended_until is None or user.suspended_until > now)


def end_of(user: "User", *, now: datetime) -> datetime | None:
    """When the user's suspension ends, if one is in effect that does."""
    return user.suspended_until if is_suspended(user, now=now) else None


def require_active(user: "User", *, now: datetime) -> None:
    """Raise if the user is suspended."""
    if is_suspended(user, now=now):
        raise Suspended(user.suspended_until)


def columns(
    tx: Tx, user: "User", suspended: bool | None, until: datetime | None, *, now: datetime
) -> dict[str, datetime | None]:
    """The new values of both columns: a suspension begins, ends, or (`suspended` is None) gets another end.

    Locks the user. One that is in effect keeps its first time.
    """
    tx.refresh(user, with_for_update={"key_share": True})
    was_suspended = is_suspended(user, now=now)
    is_now = was_suspended if suspended is None else suspended
    if until is not None and not is_now:
        raise Invalid.field("suspended_until", "only with suspended: true, or for a user who is suspended")
    if until is not None and not now < until <= now + MAX_LENGTH:
        raise Invalid.field("suspended_until", "in the future, within ten years; null: without an end")
    if not is_now:
        return {"suspended_at": None, "suspended_until": None}
    return {"suspended_at": user.suspended_at if was_suspended else now, "suspended_until": until}


def tenants_with_due(*, now: datetime) -> list[str]:
    """The tenants with suspensions past their end."""
    return [row.id for row in across.read(_TENANTS_WITH_DUE, {"now": now}, tx=owner_tx)]


def end_due(tx: Tx, *, now: datetime) -> list[UUID]:
    """Clear suspensions past their end, a bounded number of them. Returns the users."""
    return [row.id for row in tx.run(_END_DUE, {"tenant": tx.tenant, "now": now, "limit": MAX_PER_STEP})]


_TENANTS_WITH_DUE = text(f"""
    SELECT DISTINCT t.id FROM tenants t JOIN users u ON u.tenant_id = t.id
    WHERE u.suspended_until <= :now AND {OF_ONE} ORDER BY t.id
""")  # noqa: S608  our own names
_END_DUE = text("""
    WITH due AS MATERIALIZED (
        SELECT id FROM users WHERE tenant_id = :tenant AND suspended_until <= :now
        ORDER BY id LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE users u SET suspended_at = NULL, suspended_until = NULL, updated_at = :now
    FROM due WHERE u.tenant_id = :tenant AND u.id = due.id RETURNING u.id
""")
