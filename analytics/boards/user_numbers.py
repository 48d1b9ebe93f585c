"""User numbers: each user's value of each metric over each window, and who reached it first.

A member of a user board is `<inverted reach time><inverted start of the id>:<user id>`, of fixed width. A sorted set
orders equal values by member, so of two users with the same points the one who reached them first is above, and of two
in the same millisecond the one with the smaller id; the value stays the plain number, exact up to 2^53. The reach time
is that of the newest entry in the window. Since a member changes with its time, Redis also keeps user id → member.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ARRAY, BigInteger, ForeignKeyConstraint, Index, Text, TextClause, Uuid, text
from sqlalchemy.orm import Mapped, mapped_column

from analytics.boards.names import user_scopes
from analytics.comparing import Chunk, Found
from analytics.metrics import Ledger, Metric, Value, user_metrics
from analytics.windows import SLIDING, Window, bounds
from tenants import segments
from tenants.db import Base, TenantOwned, Tx, array

_LAST_MS = 9_999_999_999_999
_LAST_ID = 2**64 - 1


class UserStats(TenantOwned, Base):
    """A user's values of one metric, and the members that carry them on the boards: two columns for each window."""

    __tablename__ = "user_stats"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id", "user_id"], ["users.tenant_id", "users.id"], ondelete="CASCADE"),
        Index("ix_user_stats_segment", "tenant_id", "segment"),
        *segments.indexes("user_stats"),
        Index("ix_user_stats_all", "tenant_id", "metric", "value_all"),
    )

    user_id: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    metric: Mapped[str] = mapped_column(primary_key=True)
    # The first segment; and all of them. Of a row that the release before has written since, the first is in `segment`.
    segment: Mapped[str | None]
    segments: Mapped[list[str]] = mapped_column(ARRAY(Text), server_default=text("'{}'::text[]"))
    # The user's own, as boards last showed it.
    profile_changed_at: Mapped[datetime | None]
    computed_at: Mapped[datetime]
    value_all: Mapped[int] = mapped_column(BigInteger)
    member_all: Mapped[str]


for _window in SLIDING:
    setattr(UserStats, f"value_{_window}", mapped_column(BigInteger, nullable=False))
    setattr(UserStats, f"member_{_window}", mapped_column(Text, nullable=False))


@dataclass(frozen=True)
class UserNumbers:
    """A user on the boards of one metric: in which scopes, and for each window with which value and member."""

    segments: tuple[str, ...]
    values: tuple[Value, ...]
    members: tuple[str, ...]
    profile_changed_at: datetime | None = None

    @property
    def scopes(self) -> list[str]:
        return user_scopes(self.segments)

    @property
    def entries(self) -> tuple[tuple[str, Value] | None, ...]:
        """For each window the member and its value; None: not on the board."""
        return tuple(
            (member, value) if value > 0 else None for member, value in zip(self.members, self.values, strict=True)
        )


@dataclass(frozen=True)
class UserChange:
    """A user's numbers of one metric as they are saved, and as they are now; None: on no board."""

    user_id: str
    metric: Metric
    before: UserNumbers | None
    now: UserNumbers | None

    @property
    def member(self) -> str:
        return self.user_id


def member_of(user_id: UUID, reached_at: datetime | None) -> str:
    ms = int(reached_at.timestamp() * 1000 + 0.5) if reached_at is not None else 0
    return f"{_LAST_MS - ms:013d}{_LAST_ID - (user_id.int >> 64):016x}:{user_id}"


def user_of(member: str) -> str:
    return member.rpartition(":")[2]


def compute(tx: Tx, user_ids: Collection[str], *, now: datetime) -> list[UserChange]:
    """These users' numbers as of now, beside the saved ones. Only reads."""
    if not user_ids:
        return []
    parameters = {"tenant": tx.tenant, "users": array(sorted(user_ids)), **bounds(now)}
    queries = [
        (_COMPUTE[metric], {**parameters, "metric": metric.name, "account": source.account})
        for metric, source in user_metrics().items()
    ]
    rows_of_metrics = zip(user_metrics(), tx.run_in_one_trip(*queries), strict=True)
    return [_change(metric, row) for metric, rows in rows_of_metrics for row in rows]


def _change(metric: Metric, row: Any) -> UserChange:
    before = now = None
    if row.is_saved:
        values, members = _by_window(row, "saved_value"), _by_window(row, "saved_member")
        before = UserNumbers(_saved_segments(row), values, members, row.saved_profile_changed_at)
    values = _by_window(row, "value")
    if row.is_shown and any(value > 0 for value in values):
        members = tuple(member_of(row.user_id, reached_at) for reached_at in _by_window(row, "reached_at"))
        now = UserNumbers(tuple(segments.of_user(row.segment, row.segments)), values, members, row.profile_changed_at)
    return UserChange(str(row.user_id), metric, before, now)


def _saved_segments(row: Any) -> tuple[str, ...]:
    """On whose boards the user is: the first by whoever saved last, the others by this release or a later one."""
    return tuple(dict.fromkeys(one for one in (row.saved_segment, *row.saved_segments[1:]) if one is not None))


def _by_window(row: Any, name: str) -> tuple[Any, ...]:
    return tuple(getattr(row, f"{name}_{window}") for window in Window)


def save(tx: Tx, changes: Sequence[UserChange], *, now: datetime) -> None:
    """Write the numbers that differ from the saved ones."""
    for metric in user_metrics():
        of_metric = [change for change in changes if change.metric is metric]
        named = {"tenant": tx.tenant, "metric": metric.name}
        gone = [change.user_id for change in of_metric if change.now is None and change.before is not None]
        if gone:
            tx.run(_DELETE, {**named, "users": array(gone)})
        kept = [(one.user_id, one.now) for one in of_metric if one.now is not None and one.now != one.before]
        if kept:
            tx.run(
                _SAVE,
                {
                    **named,
                    "now": now,
                    "users": array(user_id for user_id, _ in kept),
                    "segments": [" ".join(user.segments) for _, user in kept],
                    "profiles_changed_at": [user.profile_changed_at for _, user in kept],
                    **{f"value_{w}": array(user.values[place] for _, user in kept) for place, w in enumerate(Window)},
                    **{f"member_{w}": [user.members[place] for _, user in kept] for place, w in enumerate(Window)},
                },
            )


def differences(tx: Tx, chunk: Chunk) -> Iterator[Found]:
    """For `plaudit check`: users who are not late, whose saved profile or segments are not theirs."""
    for row in tx.execute(_DIFFERENCES, chunk.parameters):
        user, found, expected = f"user {row.user_id}", _saved_segments(row), segments.of_user(row.segment, row.segments)
        if {*found} != {*expected}:
            yield "user_stats.segments", user, " ".join(found) or "none", " ".join(expected) or "none"
        if row.saved_profile_changed_at != row.profile_changed_at:
            where = "user_stats.profile_changed_at"
            yield where, user, row.saved_profile_changed_at, row.profile_changed_at


def _compute_sql(source: Ledger) -> TextClause:
    in_windows = ", ".join(
        f"COALESCE(sum(points) FILTER (WHERE bucket_hour >= :start_{window}), 0)::bigint AS value_{window},"
        f" max(last_at) FILTER (WHERE bucket_hour >= :start_{window}) AS reached_at_{window}"
        for window in SLIDING
    )
    saved_columns = [f"{name}_{window}" for name in ("value", "member") for window in Window]
    saved = ", ".join(f"s.{name} AS saved_{name}" for name in saved_columns)
    return text(f"""
        SELECT w.user_id, u.segment, u.segments, u.profile_changed_at,
               COALESCE(u.{source.total}, 0) AS value_all, u.{source.reached_at} AS reached_at_all,
               u.id IS NOT NULL AND u.suspended_at IS NULL AND u.erased_at IS NULL AS is_shown,
               h.*, s.user_id IS NOT NULL AS is_saved, s.segment AS saved_segment, s.segments AS saved_segments,
               s.profile_changed_at AS saved_profile_changed_at, {saved}
        FROM unnest(CAST(:users AS uuid[])) AS w(user_id)
        LEFT JOIN users u ON u.tenant_id = :tenant AND u.id = w.user_id
        LEFT JOIN user_stats s ON s.tenant_id = :tenant AND s.user_id = w.user_id AND s.metric = :metric
        CROSS JOIN LATERAL (
            SELECT {in_windows} FROM user_points_hour
            WHERE tenant_id = :tenant AND user_id = w.user_id AND account = :account
              AND bucket_hour >= :oldest AND bucket_hour < :end
        ) h
    """)  # noqa: S608  names from the tables of metrics and windows


_COMPUTE = {metric: _compute_sql(source) for metric, source in user_metrics().items()}

_DIFFERENCES = text("""
    SELECT DISTINCT s.user_id, s.segment AS saved_segment, s.segments AS saved_segments, u.segment, u.segments,
           s.profile_changed_at AS saved_profile_changed_at, u.profile_changed_at
    FROM user_stats s JOIN users u ON u.tenant_id = s.tenant_id AND u.id = s.user_id
    WHERE s.tenant_id = :tenant AND s.user_id > :after AND s.user_id <= :last
      AND (s.segment, s.segments, s.profile_changed_at) IS DISTINCT FROM (u.segment, u.segments, u.profile_changed_at)
      AND NOT EXISTS (SELECT FROM outbox o WHERE o.tenant_id = :tenant AND o.kind = 'user' AND o.member = u.id::text)
      AND NOT EXISTS (SELECT FROM projecting i
                      WHERE i.tenant_id = :tenant AND i.kind = 'user' AND i.member = u.id::text)
    ORDER BY s.user_id
""")

_DELETE = text("""
    DELETE FROM user_stats WHERE tenant_id = :tenant AND metric = :metric AND user_id = ANY(CAST(:users AS uuid[]))
""")

_VALUES = ", ".join(f"value_{window}" for window in Window)
_MEMBERS = ", ".join(f"member_{window}" for window in Window)
_SAVE = text(f"""
    INSERT INTO user_stats
        (tenant_id, user_id, metric, segment, segments, profile_changed_at, computed_at, {_VALUES}, {_MEMBERS})
    SELECT t.id, w.user_id, CAST(:metric AS text), NULLIF(split_part(w.segments, ' ', 1), ''),
           string_to_array(w.segments, ' '), w.profile_changed_at, CAST(:now AS timestamptz), {_VALUES}, {_MEMBERS}
    FROM tenants t CROSS JOIN
         unnest(CAST(:users AS uuid[]), CAST(:segments AS text[]), CAST(:profiles_changed_at AS timestamptz[]),
                {", ".join(f"CAST(:value_{window} AS bigint[])" for window in Window)},
                {", ".join(f"CAST(:member_{window} AS text[])" for window in Window)})
         AS w(user_id, segments, profile_changed_at, {_VALUES}, {_MEMBERS})
    WHERE t.id = :tenant
    ON CONFLICT (tenant_id, user_id, metric) DO UPDATE SET segment = EXCLUDED.segment,
        segments = EXCLUDED.segments, profile_changed_at = EXCLUDED.profile_changed_at,
        computed_at = EXCLUDED.computed_at,
        {", ".join(f"{name} = EXCLUDED.{name}" for name in f"{_VALUES}, {_MEMBERS}".split(", "))}
""")  # noqa: S608  names from the table of windows
