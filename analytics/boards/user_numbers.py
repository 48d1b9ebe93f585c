"""User boards: each user's points over each window, and who reached them first.

A member of a user board is `<inverted reach time><inverted start of the id>:<user id>`, of fixed width. A sorted set
orders equals by member, so of two with the same points the one who reached them first is above, and of two in the same
millisecond the one with the smaller id; the value stays the plain number, exact up to 2^53. The reach time is that of
the newest entry that the window counts. Since a member moves with its time, Redis also keeps which one is whose.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, ForeignKeyConstraint, Index, Uuid, text
from sqlalchemy.orm import Mapped, mapped_column

from analytics.boards.names import Board
from analytics.metrics import Metric, Value
from analytics.windows import LONGEST, SLIDING, Window, hour_of
from tenants import redis
from tenants.db import Base, TenantOwned, Tx, array
from tenants.redis import RedisUnavailable

_LAST_MS = 9_999_999_999_999
_LAST_ID = 2**64 - 1


class UserStats(TenantOwned, Base):
    """A user's points over each window, and the members they are on the boards."""

    __tablename__ = "user_stats"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id", "user_id"], ["users.tenant_id", "users.id"], ondelete="CASCADE"),
        Index("ix_user_stats_segment", "tenant_id", "segment"),
        Index("ix_user_stats_all", "tenant_id", "metric", "value_all"),
    )

    user_id: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    metric: Mapped[str] = mapped_column(primary_key=True)
    segment: Mapped[str | None]
    value_1d: Mapped[int] = mapped_column(BigInteger)
    value_7d: Mapped[int] = mapped_column(BigInteger)
    value_30d: Mapped[int] = mapped_column(BigInteger)
    value_all: Mapped[int] = mapped_column(BigInteger)
    member_1d: Mapped[str]
    member_7d: Mapped[str]
    member_30d: Mapped[str]
    member_all: Mapped[str]
    computed_at: Mapped[datetime]


@dataclass(frozen=True)
class Standing:
    """A user as they are on the boards: in which segment, with how much, as which member."""

    segment: str | None
    values: tuple[Value, ...]
    members: tuple[str, ...]

    @property
    def scopes(self) -> list[str]:
        return ["users", f"users:{self.segment}"] if self.segment else ["users"]

    @property
    def places(self) -> tuple[tuple[str, Value] | None, ...]:
        """For each window the member and its value; None: not on the board."""
        return tuple(
            (member, value) if value > 0 else None for member, value in zip(self.members, self.values, strict=True)
        )


@dataclass(frozen=True)
class Rolled:
    """A user before and now; None: on no board."""

    user_id: str
    before: Standing | None
    now: Standing | None

    @property
    def member(self) -> str:
        return self.user_id


def member_of(user_id: UUID, reached_at: datetime | None) -> str:
    ms = int(reached_at.timestamp() * 1000 + 0.5) if reached_at is not None else 0
    return f"{_LAST_MS - ms:013d}{_LAST_ID - (user_id.int >> 64):016x}:{user_id}"


def user_of(member: str) -> str:
    return member.rpartition(":")[2]


def rank_for(tx: Tx, score: int) -> int:
    """How many of the tenant's users are above this score, and one: of all time, wherever the boards stand."""
    board = Board(tx.tenant, "users", Window.ALL, Metric.POINTS)
    try:
        with redis.boards().client() as client, client.pipeline(transaction=True) as pipe:
            pipe.exists(board.marker)
            pipe.zcount(board.key, f"({score}", "+inf")
            there, above = pipe.execute()
        if there:
            return int(above) + 1
    except RedisUnavailable:
        pass
    above = tx.scalar(
        text("""
            SELECT count(*) FROM user_stats
            WHERE tenant_id = :tenant AND metric = :metric AND value_all > :score
        """),
        {"tenant": tx.tenant, "metric": Metric.POINTS.value, "score": score},
    )
    return int(above or 0) + 1


def compute(tx: Tx, user_ids: Collection[str], *, now: datetime) -> list[Rolled]:
    """These users' standings as of now, beside what they were. Reads only."""
    if not user_ids:
        return []
    hour = hour_of(now)
    rows = tx.run(
        _COMPUTE,
        {
            "tenant": tx.tenant,
            "metric": Metric.POINTS.value,
            "users": array(sorted(user_ids)),
            "end": hour + timedelta(hours=1),
            "oldest": hour - LONGEST + timedelta(hours=1),
            **{f"start_{window}": window.start(hour) for window in SLIDING},
        },
    )
    return [_rolled(row) for row in rows]


def _rolled(row: Any) -> Rolled:
    before = now = None
    if row.had_row:
        before = Standing(
            row.old_segment,
            (row.old_1d, row.old_7d, row.old_30d, row.old_all),
            (row.was_1d, row.was_7d, row.was_30d, row.was_all),
        )
    values = (row.in_1d, row.in_7d, row.in_30d, row.score)
    if row.is_shown and any(value > 0 for value in values):
        reached = (row.at_1d, row.at_7d, row.at_30d, row.score_reached_at)
        now = Standing(row.segment, values, tuple(member_of(row.user_id, at) for at in reached))
    return Rolled(str(row.user_id), before, now)


def save(tx: Tx, rolled: Iterable[Rolled], *, now: datetime) -> None:
    """Keep these standings."""
    entries = list(rolled)
    gone = [entry.user_id for entry in entries if entry.now is None and entry.before is not None]
    if gone:
        tx.run(_FORGET, {"tenant": tx.tenant, "users": array(gone)})
    kept = [(entry.user_id, entry.now) for entry in entries if entry.now is not None and entry.now != entry.before]
    if kept:
        tx.run(
            _SAVE,
            {
                "tenant": tx.tenant,
                "metric": Metric.POINTS.value,
                "now": now,
                "users": array(user_id for user_id, _ in kept),
                "segments": [standing.segment for _, standing in kept],
                **{f"value_{w}": array(s.values[place] for _, s in kept) for place, w in enumerate(Window)},
                **{f"member_{w}": [s.members[place] for _, s in kept] for place, w in enumerate(Window)},
            },
        )


def names(tx: Tx, user_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What a row of a board shows of these users."""
    rows = tx.execute(
        text("""
            SELECT id, username, external_id FROM users
            WHERE tenant_id = :tenant AND id = ANY(CAST(:users AS uuid[])) AND erased_at IS NULL
        """),
        {"tenant": tx.tenant, "users": array(user_ids)},
    )
    return {str(row.id): {"id": str(row.id), "username": row.username, "external_id": row.external_id} for row in rows}


_COMPUTE = text("""
    SELECT w.user_id, u.segment, COALESCE(u.current_score, 0) AS score, u.score_reached_at,
           u.id IS NOT NULL AND u.suspended_at IS NULL AND u.erased_at IS NULL AS is_shown,
           h.*, s.user_id IS NOT NULL AS had_row, s.segment AS old_segment,
           s.value_1d AS old_1d, s.value_7d AS old_7d, s.value_30d AS old_30d, s.value_all AS old_all,
           s.member_1d AS was_1d, s.member_7d AS was_7d, s.member_30d AS was_30d, s.member_all AS was_all
    FROM unnest(CAST(:users AS uuid[])) AS w(user_id)
    LEFT JOIN users u ON u.tenant_id = :tenant AND u.id = w.user_id
    LEFT JOIN user_stats s ON s.tenant_id = :tenant AND s.user_id = w.user_id AND s.metric = :metric
    CROSS JOIN LATERAL (
        SELECT COALESCE(sum(points) FILTER (WHERE bucket_hour >= :start_1d), 0)::bigint AS in_1d,
               COALESCE(sum(points) FILTER (WHERE bucket_hour >= :start_7d), 0)::bigint AS in_7d,
               COALESCE(sum(points), 0)::bigint AS in_30d,
               max(last_at) FILTER (WHERE bucket_hour >= :start_1d) AS at_1d,
               max(last_at) FILTER (WHERE bucket_hour >= :start_7d) AS at_7d, max(last_at) AS at_30d
        FROM user_points_hour
        WHERE tenant_id = :tenant AND user_id = w.user_id AND metric = :metric
          AND bucket_hour >= :oldest AND bucket_hour < :end
    ) h
""")

_FORGET = text("DELETE FROM user_stats WHERE tenant_id = :tenant AND user_id = ANY(CAST(:users AS uuid[]))")

_VALUES = ", ".join(f"value_{window}" for window in Window)
_MEMBERS = ", ".join(f"member_{window}" for window in Window)
_SAVE = text(f"""
    INSERT INTO user_stats (tenant_id, user_id, metric, segment, computed_at, {_VALUES}, {_MEMBERS})
    SELECT :tenant, user_id, :metric, segment, :now, {_VALUES}, {_MEMBERS}
    FROM unnest(CAST(:users AS uuid[]), CAST(:segments AS text[]),
                {", ".join(f"CAST(:value_{window} AS bigint[])" for window in Window)},
                {", ".join(f"CAST(:member_{window} AS text[])" for window in Window)})
         AS w(user_id, segment, {_VALUES}, {_MEMBERS})
    ON CONFLICT (tenant_id, user_id, metric) DO UPDATE SET segment = EXCLUDED.segment,
        computed_at = EXCLUDED.computed_at,
        {", ".join(f"{name} = EXCLUDED.{name}" for name in f"{_VALUES}, {_MEMBERS}".split(", "))}
""")  # noqa: S608  names of ours
