"""Takes a deleted tenant off the boards, in steps: its pages off the global boards, then its own boards out of Redis.

Nobody waits for Redis here. A step deletes the numbers of some pages, commits their intents and raises the versions of
the global boards, under the locks; then it removes the members from Redis without any lock. It does so only from boards
of an older version: if another process has written a newer one meanwhile, the step raises the version once more. So a
crash anywhere leaves the intents, by which the next run finds the pages.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from analytics.boards import intents, progress, redis_store, versions
from analytics.boards.names import ALL_TENANTS, GLOBAL, Board, Version, boards_in
from analytics.boards.summaries import summary_key
from analytics.locks import Busy, is_timeout, lock_boards
from analytics.outbox import Kind
from tenants import redis
from tenants.db import array, tenant_tx

if TYPE_CHECKING:
    from redis import Redis

MAX_PAGES_PER_STEP = 500
# How often it raises the versions of boards that others write at the same time.
MAX_RAISES = 20
# Only a progress bar needs the number.
MAX_COUNT_MS = 3_000


@dataclass
class Retired:
    """Counts what was taken off: pages of the global boards, keys of Redis. `more`: something is left."""

    pages: int = 0
    keys: int = 0
    more: bool = False


def _never() -> bool:
    return False


def _unwatched(_pages: int, /) -> None: ...


def count(tenant_id: str) -> int | None:
    """How many pages a deleted tenant still has on the global boards. None: too many to be counted soon."""
    try:
        with tenant_tx(tenant_id) as tx:
            tx.set_statement_timeout(MAX_COUNT_MS)
            return int(tx.scalar(_COUNT, {"tenant": tenant_id}) or 0)
    except DBAPIError as error:
        if is_timeout(error):
            return None
        raise


def retire(
    tenant_id: str,
    *,
    now: datetime,
    is_over: Callable[[], bool] = _never,
    watch: Callable[[int], None] = _unwatched,
) -> Retired:
    """Take a deleted tenant off the boards, step by step, until nothing is left or `is_over` says so.

    Safe to run again. Busy if another process holds a lock for long.
    """
    done = Retired()
    if not _end_projections(tenant_id):
        return done
    while pages := _retire_some(tenant_id, now=now):
        done.pages += pages
        watch(done.pages)
        if is_over():
            done.more = True
            return done
    with redis.boards().client() as client:
        done.keys = redis_store.delete_tenant(client, tenant_id)
    with tenant_tx(tenant_id) as tx:
        tx.run(_FORGET, {"tenant": tenant_id})
    return done


def _end_projections(tenant_id: str) -> bool:
    """Nobody writes this tenant's boards from now on: no step begins for a deleted tenant, and none is carried out.

    Returns False if it has no boards: it was never projected, or is retired already.
    """
    with tenant_tx(tenant_id) as tx:
        lock_boards(tx, tenant_id)
        return bool(tx.run(*progress.raising_step(tenant_id)))


def _retire_some(tenant_id: str, *, now: datetime) -> int:
    boards = boards_in(tenant_id, GLOBAL)
    with tenant_tx(tenant_id) as tx:
        page_ids = [row.id for row in tx.run(_ON_GLOBAL, {"tenant": tenant_id, "limit": MAX_PAGES_PER_STEP})]
        if not page_ids:
            return 0
        members = [str(page_id) for page_id in page_ids]
        # A process that fills the global boards from saved numbers has this lock, and later finds no page of the step.
        lock_boards(tx, ALL_TENANTS)
        tx.run(*intents.recording(tenant_id, Kind.PAGE, {member: [GLOBAL] for member in members}))
        tx.run(_DELETE, {"tenant": tenant_id, "pages": array(page_ids)})
        raised = versions.advance(tx, boards, now=now)
    for _ in range(MAX_RAISES):
        with redis.boards().client() as client:
            newer = _remove(client, raised, members)
        if not newer:
            break
        with tenant_tx(tenant_id) as tx:
            lock_boards(tx, ALL_TENANTS)
            raised = versions.advance(tx, newer, now=now)
    else:
        raise Busy
    with tenant_tx(tenant_id) as tx:
        intents.delete(tx, Kind.PAGE, members)
    return len(members)


def _remove(client: "Redis", raised: dict[Board, Version], members: Collection[str]) -> Sequence[Board]:
    """Remove these members from the global boards; returns the boards that are newer, and were left alone."""
    newer = redis_store.remove(client, members, raised)
    summaries = [summary_key(ALL_TENANTS, member) for member in members]
    redis_store.unlink(client, summaries)
    written = {board: version for board, version in raised.items() if board not in newer}
    redis_store.publish(client, written, summaries)
    return newer


_SHARED = "SELECT page_id AS id FROM page_stats WHERE tenant_id = :tenant AND is_public AND is_shared"
_INTENDED = """
    SELECT CAST(member AS bigint) AS id FROM projecting
    WHERE tenant_id = :tenant AND kind = 'page' AND 'global' = ANY(scopes)
"""
_ON_GLOBAL = text(f"""
    ({_SHARED} ORDER BY page_id LIMIT :limit) UNION ({_INTENDED} LIMIT :limit) ORDER BY id LIMIT :limit
""")
_COUNT = text(f"SELECT count(*) FROM ({_SHARED} UNION {_INTENDED}) shown")  # noqa: S608  ours
_FORGET = text("DELETE FROM projections WHERE tenant_id = :tenant")
_DELETE = text("DELETE FROM page_stats WHERE tenant_id = :tenant AND page_id = ANY(CAST(:pages AS bigint[]))")
