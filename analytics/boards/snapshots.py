"""Snapshots: the top of each board, kept in PostgreSQL.

The *live* snapshot of a board is refreshed within a minute of a change, and answers when Redis cannot; where it is
late, PostgreSQL answers. As a day ends it is sealed under that day, and is from then on what the board was: for
`as_of`, and for who moved since. A board that did not change is not sealed again; the last one before a day is valid
for it.
"""

import hashlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from functools import partial
from typing import Any

import structlog
from sqlalchemy import ARRAY, BigInteger, Date, Double, Index, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from analytics.boards import caught_up, postgres_reads, redis_reads, versions
from analytics.boards.board_sql import transaction_for
from analytics.boards.names import ALL_TENANTS, Board, Version
from analytics.boards.rows import Listing, Position, Row, Source, row_of
from analytics.locks import Busy, lock_boards, try_lock_boards
from analytics.metrics import METRICS
from analytics.windows import WINDOWS
from tenants import across, redis
from tenants import settings as tenant_settings
from tenants.db import Base, TenantOwned, Tx, platform_tx, tenant_tx
from tenants.errors import NotFound

log = structlog.get_logger()

MAX_ROWS = 1_000
# With 1,000 rows each a step takes some 0.2 s.
MAX_BOARDS_PER_STEP = 25
# How long one run may take, of the time until the next (`workers.schedule`).
MAX_RUN_S = 30.0
# A run remembers at most so many tenants whose boards it has not finished. The next run refreshes the others.
MAX_UNFINISHED = 100
MAX_TENANT_S = 10.0
# How old the live snapshot of a board that has changed may be: less than a minute, since answers are kept for a moment.
MAX_AGE = timedelta(seconds=55)
GLOBAL_KEPT_DAYS = 400
# Not sealed yet.
LIVE = date.max


class NoSnapshot(NotFound):
    code = "no_snapshot"
    title = "There is no record of this board from then"


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
class Snapshot:
    """The top of a board as it was at a moment."""

    rows: list[Row]
    total: int
    version: Version
    taken_at: datetime

    @property
    def is_whole(self) -> bool:
        """Whether it has every row of the board."""
        return self.total <= len(self.rows)

    def part(self, *, limit: int, after: Position | None) -> Listing | None:
        """The first rows, or those after a position; None: they continue below what the snapshot has."""
        start = 0
        if after is not None:
            start = sum((row.value, row.member) >= (after.value, after.member) for row in self.rows)
        if start + limit > len(self.rows) < self.total:
            return None
        return Listing(self.rows[start : start + limit], self.total, self.version, Source.SNAPSHOT, self.taken_at)

    def all_of(self, *, limit: int, after: Position | None) -> Listing:
        """The first rows, or those after a position, of a board that ends where the snapshot ends."""
        listing = replace(self, total=len(self.rows)).part(limit=limit, after=after)
        assert listing is not None  # noqa: S101  its total is the number of its rows
        return listing


@dataclass(frozen=True)
class RanksOfADay:
    """The ranks at the end of a day by page or user id, and whether the whole board is among them."""

    ranks: Mapping[str, int]
    is_whole: bool


def live(tx: Tx, board: Board, *, now: datetime) -> Snapshot | None:
    """The newest snapshot; None if it is older than a minute, and the board has changed since."""
    snapshot = _find(tx, board, "sealed_on = :day", LIVE)
    if snapshot is None or now - snapshot.taken_at <= MAX_AGE:
        return snapshot
    current = versions.read(tx, [board], now=now)[board]
    return snapshot if snapshot.version.number >= current.number else None


def sealed(tx: Tx, board: Board, day: date) -> Snapshot | None:
    """The board as it was at the end of this day."""
    return _find(tx, board, "sealed_on <= :day", day)


def require_sealed(tx: Tx, board: Board, day: date) -> Snapshot:
    """The board as it was at the end of this day, or NoSnapshot, which names the first day there is."""
    snapshot = sealed(tx, board, day)
    if snapshot is not None:
        return snapshot
    first = tx.scalar(
        text("""
            SELECT min(sealed_on) FROM leaderboard_snapshots WHERE tenant_id = :tenant AND scope = :scope
            AND time_window = :window AND metric = :metric AND sealed_on < :live
        """),
        {**_names(board), "live": LIVE},
    )
    raise NoSnapshot(
        f"The first record of this board is of {first}" if first else "Its first record is made as today ends (UTC)"
    )


def ranks_on(tx: Tx, board: Board, day: date) -> RanksOfADay | None:
    """The ranks at the end of this day; None: there is no record."""
    snapshot = sealed(tx, board, day)
    if snapshot is None:
        return None
    return RanksOfADay({row.subject: row.rank for row in snapshot.rows}, snapshot.is_whole)


@dataclass(frozen=True)
class Run:
    """A run of `refresh_all` through all tenants, and how far it is."""

    began_at: datetime
    # The last tenant that had its turn.
    after: str = ""
    # Tenants whose turn ended before all of their boards were refreshed. Each gets another turn once all have had one.
    unfinished: tuple[str, ...] = ()

    def place_of(self, tenant_id: str) -> bytes:
        """Its place among the tenants. Each run has another order: of two at once each goes its own way."""
        return hashlib.blake2b(f"{self.began_at} {tenant_id}".encode(), digest_size=8).digest()


def _never() -> bool:
    return False


@dataclass(frozen=True)
class Taken:
    """How many snapshots were taken, and the run from where it is to be continued; None: it has come to its end."""

    boards: int
    rest: Run | None


def refresh_all(*, now: datetime, run: Run | None = None, is_over: Callable[[], bool] = _never) -> Taken:
    """Refresh every tenant's boards that changed, and the global ones, until `is_over` says so.

    A tenant with very many boards gets no more than its time before the others had theirs. What is left when the run's
    time is over is done by the next run.
    """
    redis.boards().outage.forget()  # workers do not listen: Redis may have hung unnoticed since the last run
    run = run or Run(now)
    taken, waiting, unfinished, after = 0, _waiting(run), deque(run.unfinished), run.after
    end = time.monotonic() + MAX_RUN_S - (now - run.began_at).total_seconds()
    while (waiting or unfinished) and time.monotonic() < end:
        if waiting:
            tenant_id = after = waiting.popleft()
        else:
            tenant_id = unfinished.popleft()
        done = _refresh_one(tenant_id, now=now, until=min(end, time.monotonic() + MAX_TENANT_S), is_over=is_over)
        taken += done.boards
        if done.more and len(unfinished) < MAX_UNFINISHED:
            unfinished.append(tenant_id)
        if (waiting or unfinished) and is_over():
            return Taken(taken, Run(run.began_at, after, tuple(unfinished)))
    return Taken(taken, None)


def _refresh_one(tenant_id: str, *, now: datetime, until: float, is_over: Callable[[], bool]) -> "Refreshed":
    try:
        return refresh(tenant_id, now=now, until=until, is_over=is_over)
    except Busy:
        log.info("another run takes them", action="snapshots.busy", tenantId=tenant_id)
    except Exception:  # one tenant's failure must not stop the others
        log.exception("a tenant's snapshots failed", action="snapshots.failed", tenantId=tenant_id)
    return Refreshed(0, more=False)


def _waiting(run: Run) -> deque[str]:
    """The tenants that have not had their turn, in the order of the run."""
    ids = sorted([ALL_TENANTS, *across.live_tenants()], key=run.place_of)
    return deque(one for one in ids if not run.after or run.place_of(one) > run.place_of(run.after))


@dataclass(frozen=True)
class Refreshed:
    """How many snapshots of a tenant were taken, and whether boards are left."""

    boards: int
    more: bool


def refresh(
    tenant_id: str, *, now: datetime, until: float = math.inf, is_over: Callable[[], bool] = _never
) -> Refreshed:
    """Seal what is of an earlier day, then take the boards that changed since their snapshots, the longest ago first.

    Stops `until` then (by the monotonic clock), or when `is_over` says so, which is asked after each step. Busy if
    another process writes them just now.
    """
    with _locked_tx(tenant_id) as tx:
        _seal(tx, tenant_id, now=now)
        _purge(tx, tenant_id, now=now)
        changed = _changed(tx, tenant_id)
    for start in range(0, len(changed), MAX_BOARDS_PER_STEP):
        if time.monotonic() > until or (start and is_over()):
            return Refreshed(start, more=True)
        _take(tenant_id, changed[start : start + MAX_BOARDS_PER_STEP], now=now)
    return Refreshed(len(changed), more=False)


def _take(tenant_id: str, boards: Sequence[Board], *, now: datetime) -> None:
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
        for board, listing in _current_tops(boards, now=now)
    ]
    with _locked_tx(tenant_id) as tx:
        tx.raw.execute(_TAKE, rows)


@contextmanager
def _locked_tx(tenant_id: str) -> Iterator[Tx]:
    """A transaction that nobody else writes this tenant's snapshots in: two would lock their rows in any order."""
    with tenant_tx(tenant_id) if tenant_id != ALL_TENANTS else platform_tx() as tx:
        try_lock_boards(tx, f"_snapshots:{tenant_id}")
        yield tx


def _current_tops(boards: Sequence[Board], *, now: datetime) -> Iterator[tuple[Board, Listing]]:
    """The first rows of boards of one tenant: from Redis if it has caught up, else from PostgreSQL."""
    read_tops = partial(redis_reads.read_tops, boards, limit=MAX_ROWS)
    listings = caught_up.read_if_trusted(boards[0], read_tops)
    for board, listing in zip(boards, listings or [None] * len(boards), strict=True):
        if listing is not None:
            yield board, listing
            continue
        with transaction_for(board) as tx:
            lock_boards(tx, board.tenant_id, shared=True)  # so that nothing is committed between version and rows
            yield board, postgres_reads.read_top(tx, board, limit=MAX_ROWS, after=None, now=now)


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
    current = "SELECT scope, time_window, metric, version FROM boards WHERE tenant_id = :tenant"
    if tenant_id == ALL_TENANTS:
        current = "SELECT 'global' AS scope, time_window, metric, version FROM global_boards WHERE version > 0"
    rows = tx.run(
        text(f"""
            SELECT b.scope, b.time_window, b.metric FROM ({current}) b
            LEFT JOIN leaderboard_snapshots s
              ON s.tenant_id = :tenant AND s.scope = b.scope AND s.time_window = b.time_window
             AND s.metric = b.metric AND s.sealed_on = :live
            WHERE s.version IS NULL OR s.version < b.version ORDER BY s.taken_at NULLS FIRST
        """),  # noqa: S608  one of two constants
        {"tenant": tenant_id, "live": LIVE},
    )
    return [Board(tenant_id, row.scope, WINDOWS[row.time_window], METRICS[row.metric]) for row in rows]


def _find(tx: Tx, board: Board, when: str, day: date) -> Snapshot | None:
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
    rows = [
        row_of(board, rank, member, value)
        for rank, (member, value) in enumerate(zip(row.members, row.values, strict=True), 1)
    ]
    return Snapshot(rows, row.total, Version(row.version, row.taken_at), row.taken_at)


def _names(board: Board) -> dict[str, Any]:
    return {
        "tenant": board.tenant_id,
        "scope": board.scope,
        "window": board.window.value,
        "metric": board.metric.name,
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
    ON CONFLICT DO NOTHING RETURNING scope
""")
