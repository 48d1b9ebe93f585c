"""The ledger: every change of a score, for ever. Entries are added, never changed; corrections are new entries.

`source` says what an entry is for and is unique for ever: that is what pays once, also after the audit is gone. The
role that requests run as may neither update nor delete here. Whoever enters something holds the user's row, so that
`previous + delta = score` is a chain, and the user's score moves in the same transaction.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
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
from analytics.outbox import Kind
from analytics.windows import hour_of
from tenants.db import Base, TenantOwned, Tx
from tenants.errors import Conflict

POINTS = "points"
MOST_SCORE = 2**53 - 1


class LedgerEntry(TenantOwned, Base):
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

    tenant_id: Mapped[str] = mapped_column(
        ForeignKey("tenants.id", ondelete="CASCADE"), primary_key=True, sort_order=-1
    )
    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    user_id: Mapped[UUID] = mapped_column(Uuid)
    source: Mapped[str]
    metric: Mapped[str]
    action_type: Mapped[str | None]
    delta: Mapped[int] = mapped_column(BigInteger)
    previous: Mapped[int] = mapped_column(BigInteger)
    score: Mapped[int] = mapped_column(BigInteger)
    # As the caller was told: a replay is answered the same.
    rank: Mapped[int | None] = mapped_column(BigInteger)
    at: Mapped[datetime]
    event_id: Mapped[UUID | None] = mapped_column(Uuid)
    payload_hash: Mapped[bytes] = mapped_column(LargeBinary)
    # For actions that count once for each object.
    once_key: Mapped[str | None]
    # The entry that this one takes back.
    reverses: Mapped[int | None] = mapped_column(BigInteger)


class UserPointsHour(TenantOwned, Base):
    """What a user got in an hour, and when the last entry of it was."""

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
class Held:
    """A user whose row is locked until the transaction ends."""

    id: UUID
    score: int
    is_suspended: bool


class TooHigh(Conflict):
    code = "score_too_high"
    title = f"A score cannot be above {MOST_SCORE}"


def hold(tx: Tx, user_id: UUID) -> Held | None:
    """Lock the user's row: whoever changes a score does so first."""
    row = tx.run(
        text("""
            SELECT id, current_score, suspended_at, erased_at FROM users
            WHERE tenant_id = :tenant AND id = :user FOR NO KEY UPDATE
        """),
        {"tenant": tx.tenant, "user": user_id},
    ).one_or_none()
    if row is None or row.erased_at is not None:
        return None
    return Held(row.id, row.current_score, row.suspended_at is not None)


@dataclass(frozen=True)
class Entry:
    """What was entered for a source: what a replay is answered by."""

    score: int
    delta: int
    rank: int | None
    event_id: UUID | None
    payload_hash: bytes


def entry_for(tx: Tx, source: str) -> Entry | None:
    row = tx.run(
        text("""
            SELECT score, delta, rank, event_id, payload_hash FROM score_ledger
            WHERE tenant_id = :tenant AND source = :source
        """),
        {"tenant": tx.tenant, "source": source},
    ).one_or_none()
    return Entry(row.score, row.delta, row.rank, row.event_id, bytes(row.payload_hash)) if row is not None else None


def known(tx: Tx, sources: Sequence[str]) -> set[str]:
    """Those of these that have an entry."""
    rows = tx.run(
        text("SELECT source FROM score_ledger WHERE tenant_id = :tenant AND source = ANY(CAST(:sources AS text[]))"),
        {"tenant": tx.tenant, "sources": list(sources)},
    )
    return {row.source for row in rows}


def enter(
    tx: Tx,
    user: Held,
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
    counts_for: datetime | None = None,
) -> int | None:
    """Add an entry for a user who is held: the new score; None if the source has an entry already.

    Score, hour and boards follow in the same transaction. It counts for the hour of `counts_for`, if that is given:
    what is taken back leaves every window together with what was given.
    """
    score = user.score + delta
    if score > MOST_SCORE:
        raise TooHigh
    at = at.replace(microsecond=at.microsecond // 1000 * 1000)
    entered = tx.run(
        _ENTER,
        {
            "tenant": tx.tenant,
            "user": user.id,
            "source": source,
            "metric": POINTS,
            "action": action_type,
            "delta": delta,
            "previous": user.score,
            "score": score,
            "rank": rank,
            "at": at,
            "hour": hour_of(counts_for or at),
            "event": event_id,
            "hash": payload_hash,
            "once": once_key,
            "reverses": reverses,
            "actions": 1 if reverses is None else 0,
        },
    ).one_or_none()
    if entered is None:
        return None
    outbox.mark_stale(tx, Kind.USER, [str(user.id)])
    return score


# One statement: the entry, the score it makes, and the hour it is in.
_ENTER = text("""
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
    """A user's entries since then that nobody has taken back, oldest first."""
    taken_back = select(LedgerEntry.reverses).where(LedgerEntry.user_id == user_id, LedgerEntry.reverses.is_not(None))
    return tx.scalars(
        select(LedgerEntry)
        .where(
            LedgerEntry.user_id == user_id,
            LedgerEntry.at >= moment,
            LedgerEntry.reverses.is_(None),
            LedgerEntry.id.not_in(taken_back),
        )
        .order_by(LedgerEntry.id)
    ).all()
