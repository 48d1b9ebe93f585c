"""Whether the boards follow: what is stale, what a projection left behind, what Redis lacks, how old snapshots are.

What is stale at one moment is normal under load. So what is found is looked at again: only what has not moved after
the time of a sweep is behind.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

from sqlalchemy import text

from analytics.boards import redis_store
from analytics.boards.names import Board
from analytics.boards.snapshots import LIVE
from analytics.metrics import METRICS
from analytics.windows import WINDOWS, hour_of
from app.doctor.findings import Finding, duration, ok, problem, some, warn
from app.doctor.installation import Installation

ABOUT = "Boards"
# The sweep, which finds every tenant that is behind, runs every five seconds.
MOVES_WITHIN_S = 7.0
CHECK_EVERY_S = 0.25
MAX_STALE_MEMBERS = 100_000
MAX_INTENTS = 1_000
MAX_BOARDS = 50_000
BOARDS_PER_PIPELINE = 1_000
# They are refreshed every minute.
MAX_SNAPSHOT_AGE = timedelta(minutes=5)


def outbox(installation: Installation) -> Iterable[Finding]:
    """Whether the oldest row of each tenant goes away."""
    first = _oldest(installation)
    stuck = _still_there(first, lambda: _oldest(installation))
    counts = _stale_members(installation)
    if stuck:
        names = [f"{tenant_id} ({counts[tenant_id]:,} rows)" for tenant_id, _ in sorted(stuck) if counts[tenant_id]]
        yield problem(
            ABOUT,
            f"What changed is not projected for {MOVES_WITHIN_S:.0f} s and more: {some(names)}",
            why="boards do not show what was counted since",
            advice="start a worker; if there are some, see their log",
        )
    most = counts.most_common(1)
    if most and most[0][1] > MAX_STALE_MEMBERS:
        yield warn(
            ABOUT,
            f"{most[0][1]:,} changes of {most[0][0]} wait to be projected",
            why="boards are late until they are done",
            advice="start more workers if several tenants are behind; one tenant is projected by one worker",
        )
    elif not stuck:
        yield ok(ABOUT, f"Changes that wait to be projected: {counts.total():,}")


def intents(installation: Installation) -> Iterable[Finding]:
    """What a projection that died has left; the next one writes it again."""
    left = _still_there(_intents(installation), lambda: _intents(installation))
    if left:
        tenant_ids = sorted({str(tenant_id) for tenant_id, *_ in left})
        yield warn(
            ABOUT,
            f"A projection has left {len(left):,} members of boards behind: of {some(tenant_ids)}",
            why="Redis may have an old value of them until they are projected again",
            advice="start a worker; plaudit check compares everything",
        )
    else:
        yield ok(ABOUT, "No projection has left anything behind")


def slid_windows(installation: Installation) -> Iterable[Finding]:
    """Every tenant's windows move with the hour."""
    with installation.reading() as connection:
        rows = connection.execute(
            text("""
                SELECT p.tenant_id, p.slid_to FROM projections p JOIN tenants t ON t.id = p.tenant_id
                WHERE t.deleted_at IS NULL AND p.slid_to < :since ORDER BY p.slid_to
            """),
            {"since": hour_of(installation.now) - timedelta(hours=1)},
        ).all()
    if rows:
        behind_s = (installation.now - rows[0].slid_to).total_seconds()
        yield problem(
            ABOUT,
            f"The windows of {some(row.tenant_id for row in rows)} have not moved for up to {duration(behind_s)}",
            why="their boards still count what is older than the window",
            advice="start cron and a worker; if they run, see their log",
        )
    else:
        yield ok(ABOUT, "The windows of all tenants are at this hour")


def in_redis(installation: Installation) -> Iterable[Finding]:
    """Whether Redis has every board: by the tenants' ready keys, and by the boards' markers."""
    redis: Any = installation.boards
    with installation.reading() as connection:
        projected = text("""
            SELECT p.tenant_id FROM projections p JOIN tenants t ON t.id = p.tenant_id
            WHERE t.deleted_at IS NULL ORDER BY 1
        """)
        tenant_ids = list(connection.scalars(projected))
        rows = connection.execute(
            text("""
                SELECT b.tenant_id, b.scope, b.time_window, b.metric FROM boards b JOIN tenants t ON t.id = b.tenant_id
                WHERE t.deleted_at IS NULL AND b.version > 0 LIMIT :most
            """),
            {"most": MAX_BOARDS},
        ).all()
    if not tenant_ids:
        yield ok(ABOUT, "No tenant has boards yet")
        return
    run_id = redis_store.run_id(redis).encode()
    with redis.pipeline(transaction=False) as pipe:
        for tenant_id in tenant_ids:
            pipe.get(redis_store.ready_key(tenant_id))
        ready = pipe.execute()
    incomplete = [tenant_id for tenant_id, value in zip(tenant_ids, ready, strict=True) if value != run_id]
    boards = [
        Board(row.tenant_id, row.scope, WINDOWS[row.time_window], METRICS[row.metric])
        for row in rows
        if row.time_window in WINDOWS and row.metric in METRICS and row.tenant_id not in incomplete
    ]
    missing = [
        board.key
        for start in range(0, len(boards), BOARDS_PER_PIPELINE)
        for board in redis_store.without_marker(redis, boards[start : start + BOARDS_PER_PIPELINE])
    ]
    why = "they are answered from snapshots or PostgreSQL, which is slower, until they are filled again"
    if incomplete:
        yield warn(
            ABOUT,
            f"Redis does not have all boards of {some(incomplete)}",
            why=why,
            advice="workers fill them within seconds; if that does not happen, plaudit rebuild",
        )
    if missing:
        yield warn(
            ABOUT, f"{len(missing):,} boards are missing in Redis: {some(missing)}", why=why, advice="plaudit rebuild"
        )
    if not incomplete and not missing:
        yield ok(ABOUT, f"Tenants whose boards Redis has: all ({len(tenant_ids):,})")


def snapshots(installation: Installation) -> Iterable[Finding]:
    with installation.reading() as connection:
        late = connection.execute(
            text("""
                SELECT count(*) AS boards, min(b.changed_at) AS since FROM boards b
                JOIN tenants t ON t.id = b.tenant_id AND t.deleted_at IS NULL
                LEFT JOIN leaderboard_snapshots s
                  ON s.tenant_id = b.tenant_id AND s.scope = b.scope AND s.time_window = b.time_window
                 AND s.metric = b.metric AND s.sealed_on = :live
                WHERE b.version > coalesce(s.version, 0) AND b.changed_at < :before
                  AND coalesce(s.taken_at, b.changed_at) < :before
            """),
            {"live": LIVE, "before": installation.now - MAX_SNAPSHOT_AGE},
        ).one()
    if late.boards:
        behind_s = (installation.now - late.since).total_seconds()
        yield warn(
            ABOUT,
            f"{late.boards:,} boards changed up to {duration(behind_s)} ago and have no snapshot of it",
            why="without Redis they would be answered as they were, and a day may be sealed late",
            advice="start cron and a worker; if they run, look for snapshots.failed in their log",
        )
    else:
        yield ok(ABOUT, "The snapshots of all boards are fresh")


def _oldest(installation: Installation) -> set[tuple[Any, ...]]:
    with installation.reading() as connection:
        return {tuple(row) for row in connection.execute(text("SELECT tenant_id, min(id) FROM outbox GROUP BY 1"))}


def _stale_members(installation: Installation) -> Counter[str]:
    with installation.reading() as connection:
        rows = connection.execute(text("SELECT tenant_id, count(*) AS number FROM outbox GROUP BY 1"))
        return Counter({row.tenant_id: row.number for row in rows})


def _intents(installation: Installation) -> set[tuple[Any, ...]]:
    """With the transaction that wrote each: a member that is projected again and again is not left behind."""
    with installation.reading() as connection:
        query = text("SELECT tenant_id, kind, member, xmin::text FROM projecting ORDER BY 1, 2, 3 LIMIT :most")
        return {tuple(row) for row in connection.execute(query, {"most": MAX_INTENTS})}


def _still_there(first: set[tuple[Any, ...]], look: Callable[[], set[tuple[Any, ...]]]) -> set[tuple[Any, ...]]:
    """What of the first look is found by every later one."""
    deadline = time.monotonic() + MOVES_WITHIN_S
    while first and time.monotonic() < deadline:
        time.sleep(CHECK_EVERY_S)
        first = first & look()
    return first
