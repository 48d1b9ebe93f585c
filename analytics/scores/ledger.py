"""The ledger: every change of a score, kept for ever. Entries are added, never changed; corrections are new entries.

`source` names what an entry is for and is unique for ever: that is why nothing is paid twice, even after the audit is
gone. The role that requests run as may neither update nor delete here. Whoever adds an entry has locked the user's row,
so that `previous + delta = score` is a chain, and the user's score changes in the same transaction.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKeyConstraint,
    Identity,
    Index,
    LargeBinary,
    Uuid,
    select,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from analytics import outbox
from analytics.metrics import POINTS
from analytics.outbox import Kind
from analytics.windows import hour_of
from tenants.db import Base, DeletedWithTenant, TenantOwned, Tx, array
from tenants.errors import Conflict

MAX_SCORE = 2**53 - 1


class LedgerEntry(DeletedWithTenant, Base):
    __tablename__ = "score_ledger"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id", "user_id"], ["users.tenant_id", "users.id"]),
        CheckConstraint("previous + delta = score AND score >= 0", name="adds_up"),
        Index("uq_score_ledger_source", "tenant_id", "source", unique=True),
        Index("uq_score_ledger_once_key", "tenant_id", "once_key", unique=True),
        Index("uq_score_ledger_reverses", "tenant_id", "reverses", unique=True),
        Index("ix_score_ledger_user", "tenant_id", "user_id", "id"),
        Index("ix_score_ledger_time", "tenant_id", "user_id", "at"),
        Index("ix_score_ledger_action", "tenant_id", "user_id", "action_type", "at"),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    user_id: Mapped[UUID] = mapped_column(Uuid)
    source: Mapped[str]
    metric: Mapped[str]
    action_type: Mapped[str | None]
    delta: Mapped[int] = mapped_column(BigInteger)
    previous: Mapped[int] = mapped_column(BigInteger)
    score: Mapped[int] = mapped_column(BigInteger)
    # As it was answered: a replay gets the same answer.
    rank: Mapped[int | None] = mapped_column(BigInteger)
    at: Mapped[datetime]
    event_id: Mapped[UUID | None] = mapped_column(Uuid)
    payload_hash: Mapped[bytes] = mapped_column(LargeBinary)
    # For actions that are paid once for each object.
    once_key: Mapped[str | None]
    # The entry that this one reverses.
    reverses: Mapped[int | None] = mapped_column(BigInteger)


class UserPointsHour(TenantOwned, Base):
    """A user's points in an hour, and the time of the last entry in it."""

    __tablename__ = "user_points_hour"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id", "user_id"], ["users.tenant_id", "users.id"], ondelete="CASCADE"),
        Index("ix_user_points_hour_hour", "tenant_id", text("(bucket_hour AT TIME ZONE 'UTC')"), "user_id"),
    )

    user_id: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    metric: Mapped[str] = mapped_column(primary_key=True)
    bucket_hour: Mapped[datetime] = mapped_column(primary_key=True)
    points: Mapped[int] = mapped_column(BigInteger)
    last_at: Mapped[datetime]


@dataclass(frozen=True)
class LockedUser:
    """A user whose row is locked until the transaction ends."""

    id: UUID
    score: int
    is_suspended: bool


class TooHigh(Conflict):
    code = "score_too_high"
    title = f"A score cannot be above {MAX_SCORE}"


def lock_user(tx: Tx, user_id: UUID) -> LockedUser | None:
    """Lock the user's row, as everybody does who changes a score; None: there is no such user."""
    return lock_users(tx, {user_id}).get(user_id)


def lock_users(tx: Tx, user_ids: Iterable[UUID]) -> dict[UUID, LockedUser]:
    """The same for several, in the order of their ids; those that exist."""
    rows = tx.run(
        text("""
            SELECT id, current_score, suspended_at FROM users
            WHERE tenant_id = :tenant AND id = ANY(CAST(:users AS uuid[])) AND erased_at IS NULL
            ORDER BY id FOR NO KEY UPDATE
        """),
        {"tenant": tx.tenant, "users": array(user_ids)},
    )
    return {row.id: LockedUser(row.id, row.current_score, row.suspended_at is not None) for row in rows}


def add_entry(
    tx: Tx,
    user: LockedUser,
    *,
    source: str,
    delta: int,
    at: datetime,
    payload_hash: bytes,
    action_type: str | None = None,
    event_id: UUID | None = None,
    rank: int | None = None,
    once_key: str | None = None,
    reverses: int | None = None,
    dated: datetime | None = None,
) -> int | None:
    """Add an entry for a locked user: the new score; None if the source has an entry already.

    Score, hour and boards follow in the same transaction. `dated`: the hour it belongs to, if not that of `at`: a
    reversal leaves every window together with the entry that it reverses.
    """
    score = user.score + delta
    if score > MAX_SCORE:
        raise TooHigh
    at = at.replace(microsecond=at.microsecond // 1000 * 1000)
    added = tx.run(
        _ADD_ENTRY,
        {
            "tenant": tx.tenant,
            "user": user.id,
            "source": source,
            "metric": POINTS.name,
            "action": action_type,
            "delta": delta,
            "previous": user.score,
            "score": score,
            "rank": rank,
            "at": at,
            "hour": hour_of(dated or at),
            "event": event_id,
            "hash": payload_hash,
            "once": once_key,
            "reverses": reverses,
            "actions": 1 if reverses is None else 0,
        },
    ).one_or_none()
    if added is None:
        return None
    outbox.mark_stale(tx, Kind.USER, [str(user.id)])
    return score


# One statement: the entry, the score it makes, and the hour it is in.
_ADD_ENTRY = text("""
    WITH entry AS (
        INSERT INTO score_ledger (tenant_id, user_id, source, metric, action_type, delta, previous, score, rank, at,
                                  event_id, payload_hash, once_key, reverses)
        VALUES (:tenant, :user, :source, :metric, :action, :delta, :previous, :score, :rank, :at, :event, :hash, :once,
                :reverses)
        ON CONFLICT (tenant_id, source) DO NOTHING RETURNING user_id
    ), hour AS (
        INSERT INTO user_points_hour AS h (tenant_id, user_id, metric, bucket_hour, points, last_at)
        SELECT :tenant, user_id, :metric, :hour, CAST(:delta AS bigint), CAST(:at AS timestamptz) FROM entry
        ON CONFLICT (tenant_id, user_id, metric, bucket_hour)
        DO UPDATE SET points = h.points + EXCLUDED.points, last_at = GREATEST(h.last_at, EXCLUDED.last_at)
    )
    UPDATE users u SET current_score = :score, total_actions = total_actions + :actions,
        score_reached_at = GREATEST(COALESCE(score_reached_at, :at), :at)
    FROM entry WHERE u.tenant_id = :tenant AND u.id = entry.user_id RETURNING u.id
""")


def of_user(tx: Tx, user_id: UUID, *, before: int | None, limit: int) -> list[LedgerEntry]:
    """Newest first."""
    wanted = select(LedgerEntry).where(LedgerEntry.user_id == user_id).order_by(LedgerEntry.id.desc()).limit(limit)
    if before is not None:
        wanted = wanted.where(LedgerEntry.id < before)
    return list(tx.scalars(wanted))


def since(tx: Tx, user_id: UUID, moment: datetime) -> Sequence[LedgerEntry]:
    """A user's entries since then that were not reversed, oldest first."""
    reversed_ids = select(LedgerEntry.reverses).where(LedgerEntry.user_id == user_id, LedgerEntry.reverses.is_not(None))
    return tx.scalars(
        select(LedgerEntry)
        .where(
            LedgerEntry.user_id == user_id,
            LedgerEntry.at >= moment,
            LedgerEntry.reverses.is_(None),
            LedgerEntry.id.not_in(reversed_ids),
        )
        .order_by(LedgerEntry.id)
    ).all()
