"""Suspicious scores: flagged by a rule, then reviewed by an admin, who dismisses, suspends or reverses."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import CheckConstraint, ForeignKeyConstraint, Index, Uuid, select, text, tuple_, update
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.orm import Mapped, mapped_column

from analytics import user_changes
from analytics.metrics import POINTS, REPUTATION, XP
from analytics.scores import ledger, sources
from analytics.scores.ledger import LedgerEntry
from tenants import users
from tenants.db import Base, TenantOwned, Tx
from tenants.errors import Conflict, NotFound

WINDOW = timedelta(hours=1)
# Of entries, quests and people in a flag's details.
MAX_LISTED = 10_000
# The accounts that quests pay to.
QUEST = (XP.account, REPUTATION.account)


class Rule(StrEnum):
    POINTS_PER_HOUR = "points_per_hour"
    IMPOSSIBLE_CLOCK = "impossible_clock"
    ATTESTATION_RING = "attestation_ring"


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


def raise_or_extend(tx: Tx, user_id: UUID, rule: Rule, details: dict[str, Any], *, now: datetime) -> None:
    """Raise a flag; or add what the details list to an open one of the same rule. The user's row may be locked."""
    if raise_flag(tx, user_id, rule, details, now=now):
        return
    flag = tx.scalar(
        select(Flag)
        .where(Flag.user_id == user_id, Flag.rule == rule.value, Flag.state.in_([State.OPEN, State.SUSPENDED]))
        .with_for_update()
    )
    if flag is None:
        return
    kept = {name: values for name, values in flag.details.items() if isinstance(values, list)}
    if "entries" in details and "entries" not in kept:  # a flag of an older release
        kept["entries"] = [entry.id for entry in _of_the_hour(tx, flag)]
    flag.details = {
        **flag.details,
        **{name: list(dict.fromkeys([*kept.get(name, ()), *values]))[-MAX_LISTED:] for name, values in details.items()},
    }
    tx.flush()


def name_entries(tx: Tx, user_id: UUID, rule: Rule, *, now: datetime) -> None:
    """Let the open flag of a rule about points name the payments of the last hour: those that a reversal takes back."""
    entries = ledger.since(tx, user_id, now - WINDOW)[-MAX_LISTED:]
    raise_or_extend(
        tx, user_id, rule, {"accounts": [POINTS.account], "entries": [entry.id for entry in entries]}, now=now
    )


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
    """Resolve a flag, and suspend or unsuspend its user as the verdict says. A reversal takes back what it names.

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
        reversed_entries = _reverse(tx, flag, now=now)
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


def _of_the_hour(tx: Tx, flag: Flag) -> Sequence[LedgerEntry]:
    return ledger.since(tx, flag.user_id, flag.created_at - WINDOW, until=flag.created_at)


def is_taken_back(tx: Tx, user_id: UUID, quest_id: str) -> bool:
    """Whether an admin has taken back what a quest paid to this user, or would have: then it is paid no more."""
    reversed_ = select(Flag.id).where(
        Flag.user_id == user_id,
        Flag.rule == Rule.ATTESTATION_RING.value,
        Flag.state == State.REVERSED.value,
        Flag.details["quests"].contains([quest_id]),
    )
    return tx.scalar(reversed_.limit(1)) is not None


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


def _reverse(tx: Tx, flag: Flag, *, now: datetime) -> int:
    """Reverse the entries that the flag names, whatever their account; those of a flag of an older release by time."""
    if "quests" in flag.details:  # also what they paid since
        paid = [sources.of_quest(UUID(quest), flag.user_id, name) for quest in flag.details["quests"] for name in QUEST]
        entries = ledger.unreversed_of(tx, flag.user_id, paid)
    elif "entries" in flag.details:
        entries = ledger.unreversed(tx, flag.user_id, flag.details["entries"])
    else:
        entries = _of_the_hour(tx, flag)
    for entry in entries:
        ledger.reverse(tx, entry, source=sources.of_reversal(flag.id, entry.id), at=now)
    return len(entries)
