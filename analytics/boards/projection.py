"""The projection: from the truth in PostgreSQL to the boards in Redis.

`project_step(tenant)` writes a tenant's boards, under the tenant's board lock like every writer. It reads the outbox,
computes the stale pages and users, writes their absolute values to Redis, and deletes the rows it read, in one
transaction. So a crash anywhere leaves the rows, and the next step does it all again.

Before Redis is touched a second, short transaction commits the new versions of the boards and an *intent* for each
member (`analytics.boards.intents`). So a version is never published twice with different contents, and a step that
finds intents of a dead one writes all values of those members, and removes them wherever they may have been. If Redis
cannot be reached the numbers are committed all the same, and the intents stay until it can.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self, TypeVar

from prometheus_client import Counter
from sqlalchemy import text

from analytics import outbox
from analytics.boards import (
    board_writes,
    intents,
    page_numbers,
    progress,
    rebuilding,
    redis_store,
    user_numbers,
    versions,
    weights,
)
from analytics.boards.board_writes import BoardWrites, Unsure
from analytics.boards.names import ALL_TENANTS, GLOBAL, Board, Version, boards_in
from analytics.boards.page_numbers import PageChange
from analytics.boards.redis_store import RedisState
from analytics.boards.summaries import summary_key
from analytics.boards.user_numbers import UserChange
from analytics.locks import lock_boards, try_lock_boards
from analytics.outbox import Kind
from analytics.windows import hour_of
from tenants import redis, registry
from tenants import settings as tenant_settings
from tenants.db import Tx, platform_tx, tenant_tx
from tenants.redis import RedisUnavailable

MAX_ROWS_PER_STEP = 5_000
MAX_MEMBERS_PER_CHUNK = 250
MAX_STEPS = 1_000

PROJECTED = Counter("plaudit_projected_members_total", "Pages and users computed by projections.", ["tenant"])


@dataclass
class Projected:
    """What a projection did."""

    pages: int = 0
    users: int = 0
    # The rows of the outbox that it read.
    rows: int = 0
    rebuilt: list[Board] = field(default_factory=list)
    in_redis: bool = True
    more: bool = False


def _nothing() -> None: ...


def project_step(
    tenant_id: str, *, now: datetime, limit: int = MAX_ROWS_PER_STEP, locked: Callable[[], None] = _nothing
) -> Projected:
    """Project a bounded number of outbox rows. Safe to run twice; Busy if another process holds the lock.

    `locked` is called when it has the lock, before it reads.
    """
    with tenant_tx(tenant_id) as tx:
        try_lock_boards(tx, tenant_id)
        locked()
        done = _project(tx, now=now, limit=limit) if registry.is_live(tx, tenant_id) else Projected()
    PROJECTED.labels(tenant_id).inc(done.pages + done.users)
    return done


def project_all(tenant_id: str, *, now: Callable[[], datetime], locked: Callable[[], None] = _nothing) -> Projected:
    """Step by step, until nothing is left to do."""
    total = Projected()
    for _ in range(MAX_STEPS):
        done = project_step(tenant_id, now=now(), locked=locked)
        total.pages += done.pages
        total.users += done.users
        total.rows += done.rows
        total.rebuilt += done.rebuilt
        total.in_redis, total.more = done.in_redis, done.more
        if not done.more:
            break
    return total


def bring_up_to_date(
    tenant_id: str, *, now: Callable[[], datetime], locked: Callable[[], None] = _nothing
) -> Projected:
    """What a wake-up asks for: a tenant's boards, or the global ones."""
    if tenant_id != ALL_TENANTS:
        return project_all(tenant_id, now=now, locked=locked)
    locked()
    return Projected(rebuilt=rebuilding.rebuild_global())


def stale_tenants(*, now: datetime) -> list[str]:
    """The tenants whose boards are behind: found by the sweep, whatever wake-up was lost."""
    with platform_tx() as tx:
        behind = list(tx.scalars(_BEHIND, {"hour": hour_of(now), "now": now}))
        everyone = [*(tenant.id for tenant in registry.live(tx)), ALL_TENANTS]
    try:
        with redis.boards().client() as client:
            this_run = redis_store.run_id(client).encode()
            with client.pipeline(transaction=False) as pipe:
                for tenant_id in everyone:
                    pipe.get(redis_store.ready_key(tenant_id))
                ready_runs = pipe.execute()
    except RedisUnavailable:
        return behind
    not_ready = [tenant_id for tenant_id, run in zip(everyone, ready_runs, strict=True) if run != this_run]
    return list(dict.fromkeys([*behind, *not_ready]))


def retire(tenant_id: str, *, now: datetime) -> None:
    """Take a deleted tenant off the global boards, and its own boards out of Redis."""
    with tenant_tx(tenant_id) as tx:
        lock_boards(tx, tenant_id)
        lock_boards(tx, ALL_TENANTS)
        writes = BoardWrites()
        for member in tx.scalars(_ON_GLOBAL, {"tenant": tenant_id}).all():
            for board in boards_in(tenant_id, GLOBAL):
                writes.set_page(board, member, 0)
            writes.summaries[summary_key(ALL_TENANTS, member)] = None
        reserved = versions.reserve(tenant_id, writes.boards(), now=now)
        versions.confirm(tx, reserved)
        tx.execute(text("DELETE FROM page_stats WHERE tenant_id = :tenant"), {"tenant": tenant_id})
        with redis.boards().client() as client:
            redis_store.write(client, writes, reserved)
            redis_store.delete_tenant(client, tenant_id)
            redis_store.publish(client, reserved)


def _project(tx: Tx, *, now: datetime, limit: int) -> Projected:
    position, is_new = progress.get_or_create(tx, now=now)
    if is_new:
        _delete_boards_of_former_tenant(tx.tenant)
    now = max(now, position.slid_to)  # windows never slide back, whatever another machine's clock says
    has_more_hours = progress.slide(tx, position, now=now)
    current = weights.current(tx, now=now)
    reweigh, has_more_to_reweigh = progress.to_reweigh(tx, position, current)
    pages, users, sharing = _read_stale(tx, limit=limit)
    # After the outbox: whatever committed together with a row that was read is then visible.
    shared = tenant_settings.read(tx)[0].share_public_pages
    reshare, has_more_to_reshare = progress.to_reshare(tx, shared=shared) if sharing else ([], False)
    pages.members |= {str(page_id) for page_id in (*reweigh, *reshare)}
    if not has_more_to_reshare:
        pages.rows += [row.id for row in sharing]
    done = Projected(pages=len(pages.members), users=len(users.members), rows=len(pages.rows) + len(users.rows))
    done.more = has_more_hours or has_more_to_reweigh or has_more_to_reshare or pages.more or users.more
    # While much is stale, each statement would read all of that.
    add = not (has_more_hours or pages.more)
    with _RedisWriter(tx, done, now=now) as writer:
        for chunk in _chunks(sorted(map(int, pages.members))):
            changed_pages = page_numbers.compute(tx, chunk, now=now, weights=current, shared=shared, add=add)
            unsure = intents.of_members(tx, Kind.PAGE, map(str, chunk))
            writer.write(Kind.PAGE, changed_pages, board_writes.for_pages(tx.tenant, changed_pages, unsure), unsure)
            page_numbers.save(tx, changed_pages, now=now)
        for user_ids in _chunks(sorted(users.members)):
            changed_users = user_numbers.compute(tx, user_ids, now=now)
            unsure = intents.of_members(tx, Kind.USER, user_ids)
            writer.write(Kind.USER, changed_users, board_writes.for_users(tx.tenant, changed_users, unsure), unsure)
            user_numbers.save(tx, changed_users, now=now)
        outbox.delete(tx, [*pages.rows, *users.rows])
        writer.finish()
    if done.in_redis:
        intents.delete(tx, Kind.PAGE, pages.members)
        intents.delete(tx, Kind.USER, users.members)
    return done


@dataclass
class _Stale:
    """The members of a kind that must be computed, and the outbox rows that say so."""

    rows: list[int]
    members: set[str]
    more: bool

    @classmethod
    def of(cls, rows: Sequence[Any], left_over: Sequence[Any], *, limit: int) -> "_Stale":
        more = len(rows) == limit or len(left_over) == limit
        return cls([row.id for row in rows], {row.member for row in (*rows, *left_over)}, more)


def _read_stale(tx: Tx, *, limit: int) -> tuple[_Stale, _Stale, Sequence[Any]]:
    """The stale pages, the stale users, and the rows that stand for all public pages."""
    marked = [outbox.oldest(tx.tenant, kind, limit=limit) for kind in (Kind.PAGE, Kind.USER, Kind.SHARING)]
    # Without Redis they stay as they are.
    unfinished = [intents.left_over(tx.tenant, kind, limit=limit) for kind in (Kind.PAGE, Kind.USER)]
    has_redis = redis.boards().is_up()
    pages, users, sharing, *left_over = tx.run_in_one_trip(*marked, *(unfinished if has_redis else ()))
    of_pages, of_users = left_over or ([], [])
    return _Stale.of(pages, of_pages, limit=limit), _Stale.of(users, of_users, limit=limit), sharing


class _RedisWriter:
    """Writes changes to Redis, a chunk at a time, while PostgreSQL computes the next.

    First a short transaction of its own commits the intents and versions of a chunk; only then is Redis touched.
    """

    def __init__(self, tx: Tx, done: Projected, *, now: datetime) -> None:
        self._tx = tx
        self._done = done
        self._now = now
        self._reserved: dict[Board, Version] = {}
        self._summaries: set[str] = set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="redis-writer")
        self._writing: list[Future[list[Board]]] = []
        self._has_global_lock = False
        self._failed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._thread.shutdown()

    def write(
        self, kind: Kind, changes: Sequence[PageChange | UserChange], writes: BoardWrites, unsure: Unsure
    ) -> None:
        if not writes:
            return
        boards = writes.boards()
        if not self._has_global_lock and any(board.is_global for board in boards):
            lock_boards(self._tx, ALL_TENANTS)
            self._has_global_lock = True
        scopes = _scopes_of(changes, unsure)
        intent = intents.recording(self._tx.tenant, kind, scopes) if scopes else None
        reserved = versions.reserve(self._tx.tenant, boards, now=self._now, first=intent)
        self._reserved |= reserved
        self._summaries |= writes.summaries.keys()
        self._writing.append(self._thread.submit(self._write, writes, reserved))

    def _write(self, writes: BoardWrites, reserved: Mapping[Board, Version]) -> list[Board]:
        """After a chunk that failed nothing more is written: a later version would be without it."""
        if self._failed:
            raise RedisUnavailable
        try:
            with redis.boards().client() as client:
                return redis_store.write(client, writes, reserved)
        except BaseException:
            self._failed = True
            raise

    def finish(self) -> None:
        """Wait for Redis; then rebuild the boards that it has lost, and publish the new versions."""
        missing: list[Board] = []
        versions.confirm(self._tx, self._reserved)
        try:
            for writing in self._writing:
                missing += writing.result()
            with redis.boards().client() as client, redis_store.completing(client, self._tx.tenant) as state:
                if state is RedisState.RESTARTED:
                    missing = rebuilding.all_boards(self._tx)
                elif state is RedisState.INCOMPLETE:
                    missing = redis_store.without_marker(client, rebuilding.all_boards(self._tx))
                own = dict.fromkeys(board for board in missing if board.tenant_id == self._tx.tenant)
                self._done.rebuilt = rebuilding.rebuild(self._tx, client, own)
                redis_store.publish(client, self._reserved, self._summaries)
        except RedisUnavailable:
            self._done.in_redis = False


def _scopes_of(changes: Iterable[PageChange | UserChange], unsure: Unsure) -> dict[str, set[str]]:
    """Of the members that changed, the scopes in which Redis may have them."""
    scopes: dict[str, set[str]] = {}
    for change in changes:
        if change.before != change.now:
            where = scopes.setdefault(change.member, set(unsure.get(change.member, ())))
            where.update(scope for numbers in (change.before, change.now) if numbers for scope in numbers.scopes)
    return scopes


Member = TypeVar("Member")


def _chunks(members: Sequence[Member]) -> Iterator[Sequence[Member]]:
    for start in range(0, len(members), MAX_MEMBERS_PER_CHUNK):
        yield members[start : start + MAX_MEMBERS_PER_CHUNK]


def _delete_boards_of_former_tenant(tenant_id: str) -> None:
    """Redis may have boards of an earlier tenant of this id."""
    with contextlib.suppress(RedisUnavailable), redis.boards().client() as client:
        if client.exists(redis_store.ready_key(tenant_id)):
            redis_store.delete_tenant(client, tenant_id)


_ON_GLOBAL = text("""
    SELECT page_id::text FROM page_stats WHERE tenant_id = :tenant AND is_shared
    UNION SELECT member FROM projecting WHERE tenant_id = :tenant AND kind = 'page' AND 'global' = ANY(scopes)
""")

_BEHIND = text("""
    SELECT t.id FROM tenants t LEFT JOIN projections p ON p.tenant_id = t.id
    WHERE t.deleted_at IS NULL AND (
        EXISTS (SELECT FROM outbox o WHERE o.tenant_id = t.id)
        OR EXISTS (SELECT FROM projecting i WHERE i.tenant_id = t.id)
        OR p.slid_to < :hour OR p.reweighed_to IS NOT NULL
        OR EXISTS (SELECT FROM score_weights w WHERE w.tenant_id = t.id AND w.effective_from <= :now
                                                 AND w.version > COALESCE(p.weights_version, 0))
    ) ORDER BY t.id
""")
