"""Snapshots: the top of each board, kept in PostgreSQL.

The *live* one of a board is refreshed within a minute of a change, and answers when Redis cannot. As a day ends it is
sealed under that day, and is then what the board was: for `as_of`, and for who moved since. A board that did not
change is not sealed again; the last one before a day counts for it.
"""

import math
import random
import time
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog
from sqlalchemy import ARRAY, BigInteger, Date, Double, Index, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from analytics.boards.names import ALL_TENANTS, Board, Version
from analytics.locks import try_hold
from analytics.metrics import Metric
from analytics.windows import Window
from tenants import registry
from tenants import settings as tenant_settings
from tenants.db import Base, TenantOwned, Tx, platform_tx, tenant_tx

if TYPE_CHECKING:
    from analytics.boards.reading import Row

log = structlog.get_logger()

KEPT_ROWS = 1_000
BOARDS_A_STEP = 100
# How long one run may take, of the minute until the next.
MOST_S = 30.0
MOST_S_OF_A_TENANT = 10.0
GLOBAL_KEPT_DAYS = 400
# Not sealed yet.
LIVE = date.max


class LeaderboardSnapshot(TenantOwned, Base):
    __tablename__ = "leaderboard_snapshots"
    __table_args__ = (Index("ix_leaderboard_snapshots_sealed_on", "tenant_id", "sealed_on"),)

    scope: Mapped[str] = mapped_column(primary_key=True)
    time_window: Mapped[str] = mapped_column(primary_key=True)
    metric: Mapped[str] = mapped_column(primary_key=True)
    sealed_on: Mapped[date] = mapped_column(Date, primary_key=True)
    version: Mapped[int] = mapped_column(BigInteger)
    taken_at: Mapped[datetime]
    total: Mapped[int] = mapped_column(BigInteger)
    # Of the live one: that a sealed copy of it was made.
    is_sealed: Mapped[bool] = mapped_column(server_default="false")
    members: Mapped[list[str]] = mapped_column(ARRAY(Text))
    values: Mapped[list[float]] = mapped_column(ARRAY(Double))


@dataclass(frozen=True)
class Kept:
    """The top of a board as it was at a moment."""

    rows: "list[Row]"
    total: int
    version: Version
    taken_at: datetime

    @property
    def is_whole(self) -> bool:
        """Whether it holds everybody who was on the board."""
        return self.total <= len(self.rows)


def live(tx: Tx, board: Board) -> Kept | None:
    """The newest one."""
    return _find(tx, board, "sealed_on = :day", LIVE)


def sealed(tx: Tx, board: Board, day: date) -> Kept | None:
    """The board as it was at the end of this day."""
    return _find(tx, board, "sealed_on <= :day", day)


def first_day(tx: Tx, board: Board) -> date | None:
    """The first day that was sealed."""
    first: date | None = tx.scalar(
        text("""
            SELECT min(sealed_on) FROM leaderboard_snapshots WHERE tenant_id = :tenant AND scope = :scope
            AND time_window = :window AND metric = :metric AND sealed_on < :live
        """),
        {**_names(board), "live": LIVE},
    )
    return first


def refresh_all(*, now: datetime) -> int:
    """Every tenant's boards that changed, and the global ones; how many were taken. Busy where another does it.

    A tenant with very many boards gets no more than its time, and the others theirs: the rest has its turn next time.
    """
    taken = 0
    with platform_tx(separate=True) as lock:
        try_hold(lock, "_snapshots")
        tenant_ids = [tenant.id for tenant in registry.live(lock)]
        random.shuffle(tenant_ids)
        end = time.monotonic() + MOST_S
        for tenant_id in [ALL_TENANTS, *tenant_ids]:
            lock.execute(text("SELECT 1"))  # it is not idle
            try:
                taken += refresh(tenant_id, now=now, until=min(end, time.monotonic() + MOST_S_OF_A_TENANT))
            except Exception:  # one tenant's trouble is not the others'
                log.exception("a tenant's snapshots failed", action="snapshots.failed", tenantId=tenant_id)
    return taken


def refresh(tenant_id: str, *, now: datetime, until: float = math.inf) -> int:
    """Seal what is of an earlier day, then take the boards that changed since their snapshots, the longest ago first.

    Stops `until` then (by the monotonic clock); how many were taken.
    """
    from analytics.boards import reading

    taken = 0
    open_tx = partial(tenant_tx, tenant_id) if tenant_id != ALL_TENANTS else platform_tx
    with open_tx() as tx:
        _seal(tx, tenant_id, now=now)
        _purge(tx, tenant_id, now=now)
        changed = _changed(tx, tenant_id)
    for start in range(0, len(changed), BOARDS_A_STEP):
        if time.monotonic() > until:
            break
        rows = [
            {
                **_names(board),
                "live": LIVE,
                "version": listing.version.number,
                "now": now,
                "total": listing.total,
                "members": [row.member for row in listing.rows],
                "values": [float(row.value) for row in listing.rows],
            }
            for board, listing in reading.true_pages(changed[start : start + BOARDS_A_STEP], limit=KEPT_ROWS, now=now)
        ]
        with open_tx() as tx:
            tx.raw.execute(_TAKE, rows)
        taken += len(rows)
    return taken


def _seal(tx: Tx, tenant_id: str, *, now: datetime) -> None:
    today = {"tenant": tenant_id, "live": LIVE, "today": now.date()}
    tx.run(_SEAL, today)
    tx.run(_MARK_SEALED, today)


def _purge(tx: Tx, tenant_id: str, *, now: datetime) -> None:
    days = GLOBAL_KEPT_DAYS
    if tenant_id != ALL_TENANTS:
        days = tenant_settings.read(tx)[0].retention.snapshots_days
    tx.run(
        text("""
            DELETE FROM leaderboard_snapshots s WHERE tenant_id = :tenant AND sealed_on < :before AND EXISTS (
                SELECT FROM leaderboard_snapshots n
                WHERE n.tenant_id = :tenant AND n.scope = s.scope AND n.time_window = s.time_window
                  AND n.metric = s.metric AND n.sealed_on > s.sealed_on AND n.sealed_on <= :before)
        """),
        {"tenant": tenant_id, "before": now.date() - timedelta(days=days)},
    )


def _changed(tx: Tx, tenant_id: str) -> list[Board]:
    """The boards that changed since their snapshot, or have none."""
    versions = "SELECT scope, time_window, metric, version FROM boards WHERE tenant_id = :tenant"
    if tenant_id == ALL_TENANTS:
        versions = "SELECT 'global' AS scope, time_window, metric, version FROM global_boards WHERE version > 0"
    rows = tx.run(
        text(f"""
            SELECT b.scope, b.time_window, b.metric FROM ({versions}) b
            LEFT JOIN leaderboard_snapshots s
              ON s.tenant_id = :tenant AND s.scope = b.scope AND s.time_window = b.time_window
             AND s.metric = b.metric AND s.sealed_on = :live
            WHERE s.version IS NULL OR s.version < b.version ORDER BY s.taken_at NULLS FIRST
        """),  # noqa: S608  one of two constants
        {"tenant": tenant_id, "live": LIVE},
    )
    return [Board(tenant_id, row.scope, Window(row.time_window), Metric(row.metric)) for row in rows]


def _find(tx: Tx, board: Board, when: str, day: date) -> Kept | None:
    from analytics.boards.reading import Row

    row = tx.execute(
        text(f"""
            SELECT version, taken_at, total, members, values FROM leaderboard_snapshots
            WHERE tenant_id = :tenant AND scope = :scope AND time_window = :window AND metric = :metric AND {when}
            ORDER BY sealed_on DESC LIMIT 1
        """),  # noqa: S608  one of two constants
        {**_names(board), "day": day},
    ).one_or_none()
    if row is None:
        return None
    kind = float if board.metric is Metric.SCORE else int
    rows = [
        Row(rank, member, kind(value))
        for rank, (member, value) in enumerate(zip(row.members, row.values, strict=True), 1)
    ]
    return Kept(rows, row.total, Version(row.version, row.taken_at), row.taken_at)


def _names(board: Board) -> dict[str, Any]:
    return {
        "tenant": board.tenant_id,
        "scope": board.scope,
        "window": board.window.value,
        "metric": board.metric.value,
    }


_TAKE = text("""
    INSERT INTO leaderboard_snapshots AS s
        (tenant_id, scope, time_window, metric, sealed_on, version, taken_at, total, members, values)
    VALUES (:tenant, :scope, :window, :metric, :live, :version, :now, :total, CAST(:members AS text[]),
            CAST(:values AS double precision[]))
    ON CONFLICT (tenant_id, scope, time_window, metric, sealed_on) DO UPDATE SET
        version = EXCLUDED.version, taken_at = EXCLUDED.taken_at, total = EXCLUDED.total,
        members = EXCLUDED.members, values = EXCLUDED.values, is_sealed = false
    WHERE s.version <= EXCLUDED.version
""")

_MARK_SEALED = text("""
    UPDATE leaderboard_snapshots SET is_sealed = true
    WHERE tenant_id = :tenant AND sealed_on = :live AND (taken_at AT TIME ZONE 'UTC')::date < :today AND NOT is_sealed
""")

_SEAL = text("""
    INSERT INTO leaderboard_snapshots
        (tenant_id, scope, time_window, metric, sealed_on, version, taken_at, total, members, values)
    SELECT tenant_id, scope, time_window, metric, (taken_at AT TIME ZONE 'UTC')::date, version, taken_at, total,
           members, values
    FROM leaderboard_snapshots
    WHERE tenant_id = :tenant AND sealed_on = :live AND (taken_at AT TIME ZONE 'UTC')::date < :today
      AND NOT is_sealed
    ON CONFLICT DO NOTHING
""")
