"""The ledger: every change of a score, kept for ever. Entries are added, never changed; corrections are new entries.

An entry adds to an *account* of its user; a metric of users (`analytics.metrics`) shows one. `source` names what an
entry is for and is unique for ever in its account: that is why nothing is paid twice, even after the audit is gone. The
role that requests run as may neither update nor delete here. Whoever adds an entry has locked the user's row, so that
`previous + delta = score` is a chain, and the user's balance changes in the same transaction.
"""

from collections.abc import Collection, Sequence
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
    Select,
    Uuid,
    select,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from analytics import outbox
from analytics.metrics import POINTS, Metric, user_metrics
from analytics.outbox import Kind
from analytics.scores import sources
from analytics.windows import hour_of
from tenants.db import Base, DeletedWithTenant, TenantOwned, Tx
from tenants.errors import Conflict

MAX_SCORE = 2**53 - 1


class LedgerEntry(DeletedWithTenant, Base):
    __tablename__ = "score_ledger"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id", "user_id"], ["users.tenant_id", "users.id"]),
        CheckConstraint("previous + delta = score AND score >= 0", name="adds_up"),
        Index("uq_score_ledger_source", "tenant_id", "account", "source", unique=True),
        Index(
            "uq_score_ledger_once_key",
            *("tenant_id", "account", "once_key"),
            unique=True,
            postgresql_where=text("once_key IS NOT NULL"),
        ),
        Index(
            "uq_score_ledger_reverses",
            *("tenant_id", "reverses"),
            unique=True,
            postgresql_where=text("reverses IS NOT NULL"),
        ),
        Index("ix_score_ledger_user", "tenant_id", "user_id", "id"),
        Index("ix_score_ledger_time", "tenant_id", "user_id", "account", "at"),
        Index("ix_score_ledger_action", "tenant_id", "user_id", "account", "action_type", "at"),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    user_id: Mapped[UUID] = mapped_column(Uuid)
    source: Mapped[str]
    # What the entry adds to: an account of `analytics.metrics.Ledger`.
    account: Mapped[str]
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
    # Of a correction: why. Blanked when the user is erased.
    reason: Mapped[str | None]


class UserPointsHour(TenantOwned, Base):
    """A user's points in an hour, and the time of the last entry in it."""

    __tablename__ = "user_points_hour"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id", "user_id"], ["users.tenant_id", "users.id"], ondelete="CASCADE"),
        Index("ix_user_points_hour_hour", "tenant_id", text("(bucket_hour AT TIME ZONE 'UTC')"), "user_id"),
    )

    user_id: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    account: Mapped[str] = mapped_column(primary_key=True)
    bucket_hour: Mapped[datetime] = mapped_column(primary_key=True)
    points: Mapped[int] = mapped_column(BigInteger)
    last_at: Mapped[datetime]


@dataclass(frozen=True)
class LockedUser:
    """A user whose row is locked until the transaction ends, and the balance of one account."""

    id: UUID
    balance: int
    # The entry that was just added.
    entry_id: int | None = None


class TooHigh(Conflict):
    code = "score_too_high"
    title = f"A score cannot be above {MAX_SCORE}"


def lock_user(tx: Tx, user_id: UUID, metric: Metric = POINTS) -> LockedUser | None:
    """Lock the user's row, as everybody does who changes a balance; None: there is no such user."""
    rows = tx.run(_LOCK[metric], {"tenant": tx.tenant, "user": user_id})
    return LockedUser(rows[0].id, rows[0].balance) if rows else None


def add_entry(
    tx: Tx,
    user: LockedUser,
    metric: Metric = POINTS,
    *,
    source: str,
    delta: int,
    at: datetime,
    payload_hash: bytes,
    action_type: str | None = None,
    reverses: LedgerEntry | None = None,
    reason: str | None = None,
    event_id: UUID | None = None,
) -> LockedUser:
    """Add an entry for a locked user, unless its source has one already: the user with the balance after it.

    Hour and boards follow in the same transaction. An entry that reverses another belongs to the hour of that one, so
    that both leave every window together.
    """
    balance = user.balance + delta
    if balance > MAX_SCORE:
        raise TooHigh
    added = tx.run(
        _ADD_ENTRY[metric],
        {
            "tenant": tx.tenant,
            "user": user.id,
            "source": source,
            "account": metric.account,
            "action": action_type,
            "delta": delta,
            "previous": user.balance,
            "balance": balance,
            "at": at.replace(microsecond=at.microsecond // 1000 * 1000),
            "hour": hour_of(reverses.at if reverses is not None else at),
            "hash": payload_hash,
            "reverses": reverses.id if reverses is not None else None,
            "reason": reason,
            "event": event_id,
        },
    )
    if not added:
        return user
    outbox.mark_stale(tx, Kind.USER, [str(user.id)])
    return LockedUser(user.id, balance, added[0].entry_id)


def reverse(tx: Tx, entry: LedgerEntry, *, source: str, at: datetime) -> None:
    """Take an entry back, if its user was not erased. A balance never falls below 0."""
    metric = next(metric for metric, ledger in user_metrics().items() if ledger.account == entry.account)
    user = lock_user(tx, entry.user_id, metric)
    if user is None:
        return
    add_entry(
        tx,
        user,
        metric,
        source=source,
        delta=-min(entry.delta, user.balance),
        at=at,
        payload_hash=entry.payload_hash,
        action_type=entry.action_type,
        reverses=entry,
    )


# For each metric of users the statements with its columns: to lock a user, and to add an entry (one statement: the
# entry, the balance it makes, and the hour it belongs to).
_LOCK = {
    metric: text(f"""
        SELECT id, {source.total} AS balance FROM users
        WHERE tenant_id = :tenant AND id = :user AND erased_at IS NULL FOR NO KEY UPDATE
    """)  # noqa: S608  names from the table of metrics
    for metric, source in user_metrics().items()
}
_ADD_ENTRY = {
    metric: text(f"""
        WITH entry AS (
            INSERT INTO score_ledger (tenant_id, user_id, source, account, action_type, delta, previous, score, at,
                                      payload_hash, reverses, reason, event_id)
            VALUES (:tenant, :user, :source, :account, :action, :delta, :previous, :balance, :at, :hash, :reverses,
                    :reason, :event)
            ON CONFLICT (tenant_id, account, source) DO NOTHING RETURNING id, user_id
        ), hour AS (
            INSERT INTO user_points_hour AS h (tenant_id, user_id, account, bucket_hour, points, last_at)
            SELECT :tenant, user_id, :account, :hour, CAST(:delta AS bigint), CAST(:at AS timestamptz) FROM entry
            ON CONFLICT (tenant_id, user_id, account, bucket_hour)
            DO UPDATE SET points = h.points + EXCLUDED.points, last_at = GREATEST(h.last_at, EXCLUDED.last_at)
            RETURNING h.user_id
        )
        UPDATE users u SET {source.total} = :balance,
            {source.reached_at} = GREATEST(COALESCE({source.reached_at}, :at), :at)
        FROM entry WHERE u.tenant_id = :tenant AND u.id = entry.user_id RETURNING entry.id AS entry_id
    """)  # noqa: S608  names from the table of metrics
    for metric, source in user_metrics().items()
}


def of_user(tx: Tx, user_id: UUID, *, before: int | None, limit: int) -> list[LedgerEntry]:
    """Newest first."""
    wanted = select(LedgerEntry).where(LedgerEntry.user_id == user_id).order_by(LedgerEntry.id.desc()).limit(limit)
    if before is not None:
        wanted = wanted.where(LedgerEntry.id < before)
    return list(tx.scalars(wanted))


def since(
    tx: Tx, user_id: UUID, moment: datetime, metric: Metric = POINTS, *, until: datetime | None = None
) -> Sequence[LedgerEntry]:
    """A user's payments of an account since then (and until then) that were not reversed, oldest first."""
    wanted = _unreversed(user_id).where(LedgerEntry.account == metric.account, LedgerEntry.at >= moment)
    return tx.scalars(wanted.where(LedgerEntry.at <= until) if until is not None else wanted).all()


def unreversed(tx: Tx, user_id: UUID, entry_ids: Collection[int]) -> Sequence[LedgerEntry]:
    """Of these entries of a user, in any account, those that were not reversed, oldest first."""
    return tx.scalars(_unreversed(user_id).where(LedgerEntry.id.in_(entry_ids))).all()


def unreversed_of(tx: Tx, user_id: UUID, paid_for: Collection[str]) -> Sequence[LedgerEntry]:
    """The same by their sources."""
    return tx.scalars(_unreversed(user_id).where(LedgerEntry.source.in_(paid_for))).all()


def _unreversed(user_id: UUID) -> Select[LedgerEntry]:
    reversed_ids = select(LedgerEntry.reverses).where(LedgerEntry.user_id == user_id, LedgerEntry.reverses.is_not(None))
    wanted = select(LedgerEntry).where(
        LedgerEntry.user_id == user_id,
        LedgerEntry.reverses.is_(None),
        ~LedgerEntry.source.startswith(sources.CORRECTION),
    )
    return wanted.where(LedgerEntry.id.not_in(reversed_ids)).order_by(LedgerEntry.id)
