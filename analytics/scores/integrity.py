"""Suspicious scores: flagged by a rule, then reviewed by an admin, who dismisses, suspends or reverses."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import CheckConstraint, ForeignKeyConstraint, Index, Uuid, select, text, tuple_, update
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.orm import Mapped, mapped_column

from analytics import user_changes
from analytics.scores import ledger, sources
from analytics.scores.ledger import LockedUser
from tenants import users
from tenants.db import Base, TenantOwned, Tx
from tenants.errors import Conflict, NotFound

WINDOW = timedelta(hours=1)


class Rule(StrEnum):
    POINTS_PER_HOUR = "points_per_hour"
    IMPOSSIBLE_CLOCK = "impossible_clock"


class Verdict(StrEnum):
    DISMISS = "dismiss"
    SUSPEND = "suspend"
    REVERSE = "reverse"


class State(StrEnum):
    OPEN = "open"
    SUSPENDED = "suspended"
    DISMISSED = "dismissed"
    REVERSED = "reversed"


class Flag(TenantOwned, Base):
    __tablename__ = "integrity_flags"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id", "user_id"], ["users.tenant_id", "users.id"], ondelete="CASCADE"),
        CheckConstraint("state IN ('open', 'suspended', 'dismissed', 'reversed')", name="state"),
        Index(
            "uq_integrity_flags_open",
            "tenant_id",
            "user_id",
            "rule",
            unique=True,
            postgresql_where=text("state IN ('open', 'suspended')"),
        ),
        Index("ix_integrity_flags_newest", "tenant_id", "created_at", "id"),
    )

    id: Mapped[UUID] = mapped_column(Uuid, primary_key=True, default=uuid4)
    user_id: Mapped[UUID] = mapped_column(Uuid)
    rule: Mapped[str]
    details: Mapped[dict[str, Any]] = mapped_column(JSONB)
    state: Mapped[str]
    created_at: Mapped[datetime]
    resolved_at: Mapped[datetime | None]
    resolved_by: Mapped[str | None]
    note: Mapped[str | None]


class FlagNotFound(NotFound):
    """There is no such flag."""


class AlreadyResolved(Conflict):
    code = "flag_resolved"
    title = "This flag was resolved before"


def raise_flag(
    tx: Tx, user_id: UUID, rule: Rule, details: dict[str, Any], *, now: datetime, state: State = State.OPEN
) -> bool:
    """Raise a flag, unless the same rule has an unresolved one of this user. Returns whether it was raised."""
    created = tx.scalar(
        insert(Flag)
        .values(
            tenant_id=tx.tenant,
            id=uuid4(),
            user_id=user_id,
            rule=rule.value,
            details=details,
            state=state.value,
            created_at=now,
        )
        .on_conflict_do_nothing()
        .returning(Flag.id)
    )
    return created is not None


def list_(tx: Tx, *, state: str | None, after: tuple[datetime, UUID] | None, limit: int) -> list[Flag]:
    """Newest first."""
    query = select(Flag).order_by(Flag.created_at.desc(), Flag.id.desc()).limit(limit)
    if state is not None:
        query = query.where(Flag.state == state)
    if after is not None:
        query = query.where(tuple_(Flag.created_at, Flag.id) < after)
    return list(tx.scalars(query))


@dataclass(frozen=True)
class Resolved:
    flag: Flag
    reversed_entries: int


def resolve(tx: Tx, flag_id: UUID, verdict: Verdict, *, by: str, note: str | None, now: datetime) -> Resolved:
    """Resolve a flag, and suspend or unsuspend its user as the verdict says.

    A suspended flag may still be dismissed or reversed. Dismissing the last one that suspended the user ends the
    suspension; a reversal does not.
    """
    user_id = tx.scalar(select(Flag.user_id).where(Flag.id == flag_id))
    if user_id is None:
        raise FlagNotFound
    user = ledger.lock_user(tx, user_id)  # users before flags, as when a flag is raised
    flag = tx.scalars(select(Flag).where(Flag.id == flag_id).with_for_update()).one()
    if flag.state not in {State.OPEN, State.SUSPENDED}:
        raise AlreadyResolved(f"This flag was {flag.state} before")
    suspend = _suspends(tx, flag, verdict)
    reversed_entries = 0
    if verdict is Verdict.REVERSE and user is not None:
        reversed_entries = _reverse(tx, user, since=flag.created_at - WINDOW, flag_id=flag.id, now=now)
    state = {Verdict.DISMISS: State.DISMISSED, Verdict.SUSPEND: State.SUSPENDED, Verdict.REVERSE: State.REVERSED}
    tx.execute(
        update(Flag)
        .where(Flag.id == flag_id)
        .values(state=state[verdict].value, resolved_at=now, resolved_by=by, note=note or Flag.note)
    )
    tx.refresh(flag)
    if suspend is not None:
        user_changes.change_user(tx, users.get(tx, user_id), {"suspended": suspend}, now=now)
    return Resolved(flag, reversed_entries)


def _suspends(tx: Tx, flag: Flag, verdict: Verdict) -> bool | None:
    """Whether the verdict suspends or unsuspends the flag's user; None: neither."""
    if verdict is Verdict.SUSPEND:
        return True
    if verdict is not Verdict.DISMISS or flag.state != State.SUSPENDED:
        return None
    others = select(Flag.id).where(
        Flag.user_id == flag.user_id, Flag.id != flag.id, Flag.state == State.SUSPENDED.value
    )
    return None if tx.scalar(others.limit(1)) is not None else False


def _reverse(tx: Tx, user: LockedUser, *, since: datetime, flag_id: UUID, now: datetime) -> int:
    """Reverse the user's payments since then, entry by entry."""
    entries = ledger.since(tx, user.id, since)
    for entry in entries:
        user = ledger.reverse(tx, user, entry, source=sources.of_reversal(flag_id, entry.id), at=now)
    return len(entries)
