"""The projection: from the truth in PostgreSQL to the boards in Redis.

A step (`project_step`) is two transactions, one after the other, each under the tenant's board lock like every writer.
The first plans: it reads the outbox, computes the stale pages and users, and commits an *intent* for each member that
Redis will differ in (`analytics.boards.planning`). The second carries the plan out: it raises the boards' versions,
writes absolute values to Redis, saves the numbers, and deletes the outbox rows and the intents. It does so only if
nobody else has planned meanwhile. Whoever did found the same rows, and our intents: nothing is lost.

So a crash anywhere leaves the rows and the intents, and the next step does it all again. If Redis cannot be reached the
numbers are committed all the same, and the intents stay until it can. A process uses one connection at a time.
"""

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Self

import structlog
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from analytics import counters, outbox
from analytics.boards import intents, planning, progress, rebuilding, redis_store, timeline, versions
from analytics.boards.board_writes import BoardWrites
from analytics.boards.drained import Drained
from analytics.boards.names import ALL_TENANTS, Board, Version, boards_in
from analytics.boards.planning import Chunk, Plan
from analytics.boards.rebuilding import Rebuilt
from analytics.locks import is_timeout, lock_boards, try_lock_boards
from analytics.outbox import Kind
from analytics.windows import hour_of
from tenants import across, redis, registry
from tenants.across import OF_ONE, of_one
from tenants.db import Tx, tenant_tx
from tenants.metrics import Counter
from tenants.redis import RedisUnavailable

log = structlog.get_logger()

_drained = Drained()

MAX_ROWS_PER_STEP = 5_000
# How long a projection begins to wait for counters that are locked, one after the other.
MAX_LOCKED_S = 0.5
# Longer than a cluster usually takes to promote a replica.
MAX_BEHIND_S = 20.0

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
    # Whether it found views that are not counted yet.
    has_waiting_views: bool = False

    def add(self, step: "Projected") -> None:
        """Add what a step did; whether Redis was there, and whether something is left, is as it says."""
        self.pages += step.pages
        self.users += step.users
        self.rows += step.rows
        self.rebuilt += step.rebuilt
        self.in_redis, self.more = step.in_redis, step.more


def _nothing() -> None: ...


def _never() -> bool:
    return False


def project_step(
    tenant_id: str,
    *,
    now: datetime,
    limit: int = MAX_ROWS_PER_STEP,
    locked: Callable[[], None] = _nothing,
    is_over: Callable[[], bool] = _never,
) -> Projected:
    """Project a bounded number of outbox rows. Safe to run twice; Busy if another process holds the lock.

    `locked` is called when it has the lock, before it reads. Boards that Redis has lost are filled until `is_over`.
    """
    with tenant_tx(tenant_id) as tx:
        (on,), live = try_lock_boards(tx, tenant_id, timeline.CURRENT, registry.finding_live(tenant_id))
        locked()
        if not live:
            return Projected()
        position, is_new = progress.get_or_create(tx, now=now)
        if is_new:
            _delete_boards_of_former_tenant(tenant_id)
        fronts = _drained.fronts(tenant_id)
        plan = planning.make(tx, position, server=on.server, now=now, limit=limit, fronts=fronts)
        # Otherwise whatever Redis will differ in is recorded already.
        commits_first = bool(plan.new_intents) and plan.has_redis
        done = Projected(more=True) if commits_first else _carry_out(tx, plan, is_over)
    if commits_first:
        with tenant_tx(tenant_id) as tx:
            find = progress.finding_planned(tenant_id, plan.step)
            (on,), planned = try_lock_boards(tx, tenant_id, timeline.CURRENT, find)
            if planned and on.server == plan.server:
                done = _carry_out(tx, plan, is_over)
    _drained.note(tenant_id, plan.fronts if done.rows else {}, from_start=plan.from_start)
    PROJECTED.labels(tenant_id).inc(done.pages + done.users)
    done.has_waiting_views = plan.has_waiting_views
    return done


def project_all(
    tenant_id: str,
    *,
    now: Callable[[], datetime],
    limit: int = MAX_ROWS_PER_STEP,
    locked: Callable[[], None] = _nothing,
    is_over: Callable[[], bool] = _never,
) -> Projected:
    """Project step by step, until nothing is left or `is_over` says so, which is asked when something is left.

    `locked` is called once: the steps after the first find whatever is committed until then too, and a wake-up in the
    meantime is for another job.

    Views that wait are counted once, and then projected: more may arrive for as long as nodes share a busy page, each
    with a wake-up of its own.
    """
    total, before_lock = Projected(more=True), locked
    has_counted = False
    while total.more:
        done = project_step(tenant_id, now=now(), limit=limit, locked=before_lock, is_over=is_over)
        before_lock = _nothing
        total.add(done)
        if done.has_waiting_views and not has_counted:
            _count_waiting_views(tenant_id, limit=limit, is_over=is_over)
            has_counted = total.more = True
        if total.more and is_over():
            break
    return total


def bring_up_to_date(
    tenant_id: str,
    *,
    now: Callable[[], datetime],
    locked: Callable[[], None] = _nothing,
    is_over: Callable[[], bool] = _never,
) -> Projected:
    """Project a tenant's boards, or rebuild the global ones, as a wake-up asks for."""
    if tenant_id != ALL_TENANTS:
        return project_all(tenant_id, now=now, locked=locked, is_over=is_over)
    locked()
    total, more = Projected(), True
    while more:
        done = rebuilding.complete_global(now=now(), is_over=is_over)
        total.rebuilt += done.boards
        more = total.more = done.more
        if more and is_over():
            break
    return total


def stale_tenants(*, now: datetime) -> list[str]:
    """The tenants whose boards are behind: found by the sweep, whatever wake-up was lost."""
    run: str | None = None
    with contextlib.suppress(RedisUnavailable), redis.boards().client() as client:
        run = redis_store.run_id(client)
    behind = [row.id for row in across.read(_BEHIND, {"hour": hour_of(now), "now": now, "run": run})]
    if run is None:
        return behind
    elsewhere = timeline.owners_elsewhere()
    everyone = [*across.live_tenants(), ALL_TENANTS]
    try:
        with redis.boards().client() as client, client.pipeline(transaction=False) as pipe:
            for tenant_id in everyone:
                pipe.get(redis_store.ready_key(tenant_id))
            ready_runs = pipe.execute()
    except RedisUnavailable:
        return behind
    not_ready = [tenant_id for tenant_id, ready in zip(everyone, ready_runs, strict=True) if ready != run.encode()]
    return list(dict.fromkeys([*elsewhere, *behind, *not_ready]))


def _count_waiting_views(tenant_id: str, *, limit: int, is_over: Callable[[], bool]) -> None:
    """Count views that wait, in transactions of their own, since likes of the same pages wait for these."""
    while True:
        with tenant_tx(tenant_id) as tx:
            try_lock_boards(tx, tenant_id)
            counted = counters.count_waiting_views(tx, limit=limit)
        if counted.rows < limit:
            break
        if is_over():
            return
    deadline = time.monotonic() + MAX_LOCKED_S
    for page_id in random.sample(counted.locked_pages, len(counted.locked_pages)):
        if time.monotonic() > deadline:  # other tenants wait for this worker; the rest is found by the next job
            break
        try:
            with tenant_tx(tenant_id) as tx:
                try_lock_boards(tx, tenant_id)
                counters.count_waiting_views_of(tx, page_id, limit=limit)
        except DBAPIError as error:
            if not is_timeout(error):
                raise
            log.warning(
                "somebody keeps the counter of a page locked, whose views are counted later",
                action="views.waiting",
                tenantId=tenant_id,
                data={"page_id": page_id},
            )


def _carry_out(tx: Tx, plan: Plan, is_over: Callable[[], bool]) -> Projected:
    """Write what was planned. Under the tenant's board lock, and with the intents committed."""
    done = Projected(pages=len(plan.pages.members), users=len(plan.users.members), rows=plan.row_count, more=plan.more)
    with _RedisWriter(tx, plan) as writer:
        for chunk, of_chunk in writer.versions_by_chunk():
            writer.write(chunk, of_chunk)
            chunk.save(tx)
        if plan.reweighing is not None:
            plan.reweighing.save(tx)
        for kind, rows in plan.rows.items():
            outbox.delete(tx, kind, rows)
        try:
            rebuilt = writer.finish(is_over)
            done.rebuilt = rebuilt.boards
            done.more |= rebuilt.more
        except RedisUnavailable:
            done.in_redis = False
            _invalidate_if_behind(tx)
    if done.in_redis:
        if plan.is_other_server:
            progress.set_server(tx, plan.server)
        intents.delete(tx, Kind.PAGE, plan.pages.members)
        intents.delete(tx, Kind.USER, plan.users.members)
    return done


class _RedisWriter:
    """Writes what was planned to Redis, a chunk at a time, while PostgreSQL saves the numbers."""

    def __init__(self, tx: Tx, plan: Plan) -> None:
        self._tx = tx
        self._plan = plan
        boards = {board for chunk in plan.chunks for board in chunk.writes.boards()}
        if any(board.is_global for board in boards):
            lock_boards(tx, ALL_TENANTS)
        if plan.is_other_server and plan.has_redis:
            boards.update(rebuilding.all_boards(tx))
        self._versions = versions.advance(tx, boards, now=plan.now, by=max(len(plan.chunks), 1))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="redis-writer")
        self._writing: list[Future[list[Board]]] = []
        self._failed = not plan.has_redis

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._thread.shutdown()

    def versions_by_chunk(self) -> Iterator[tuple[Chunk, dict[Board, Version]]]:
        """The chunks, with the versions of their boards. A board gets another one from each, the last from its last."""
        numbers = {board: version.number for board, version in self._versions.items()}
        numbered: list[tuple[Chunk, dict[Board, Version]]] = []
        for chunk in reversed(self._plan.chunks):
            boards = chunk.writes.boards()
            numbered.append((chunk, {board: replace(self._versions[board], number=numbers[board]) for board in boards}))
            for board in boards:
                numbers[board] -= 1
        yield from reversed(numbered)

    def write(self, chunk: Chunk, of_chunk: Mapping[Board, Version]) -> None:
        if chunk.writes:
            self._writing.append(self._thread.submit(self._write, chunk.writes, of_chunk))

    def _write(self, writes: BoardWrites, of_chunk: Mapping[Board, Version]) -> list[Board]:
        """After a chunk that failed nothing more is written: a later version would be without it."""
        if self._failed:
            raise RedisUnavailable
        try:
            with redis.boards().client() as client:
                return redis_store.write(client, writes, of_chunk)
        except BaseException:
            self._failed = True
            raise

    def finish(self, is_over: Callable[[], bool]) -> Rebuilt:
        """Wait for Redis, fill boards that it has lost, and publish the new versions."""
        if not self._plan.has_redis:
            raise RedisUnavailable
        missing = [board for writing in self._writing for board in writing.result()]
        own = dict.fromkeys(board for board in missing if board.tenant_id == self._tx.tenant)
        summaries = {name for chunk in self._plan.chunks for name in chunk.writes.summaries}
        last_run, is_other_server = self._plan.redis_run, self._plan.is_other_server
        every = partial(rebuilding.all_boards, self._tx)
        with redis.boards().client() as client:
            run = redis_store.run_id(client)
            rebuilt = rebuilding.complete(
                self._tx,
                client,
                own,
                every,
                run=run,
                last_run=last_run,
                is_other_server=is_other_server,
                is_over=is_over,
            )
            if last_run != run:
                progress.set_redis(self._tx, run)
            redis_store.publish(client, self._versions, summaries)
            if is_other_server:
                redis_store.publish_resync(client, self._tx.tenant)
        return rebuilt


def _invalidate_if_behind(tx: Tx) -> None:
    """While a node of a cluster is away nothing is written, so boards on other nodes are behind.

    After a while those with unfinished members are not valid any more, until all nodes are there and they are rebuilt.
    """
    with contextlib.suppress(RedisUnavailable):
        if redis.boards().partly_away_s > MAX_BEHIND_S:
            behind = [board for scope in intents.scopes(tx) for board in boards_in(tx.tenant, scope)]
            with redis.boards().client() as client:
                redis_store.invalidate(client, behind)


def _delete_boards_of_former_tenant(tenant_id: str) -> None:
    """Redis may have boards of an earlier tenant of this id."""
    with contextlib.suppress(RedisUnavailable), redis.boards().client() as client:
        if client.exists(redis_store.ready_key(tenant_id)):
            redis_store.delete_tenant(client, tenant_id)


_BEHIND = text(f"""
    SELECT t.id FROM tenants t LEFT JOIN projections p ON p.tenant_id = t.id
    WHERE t.deleted_at IS NULL AND (
        EXISTS (SELECT FROM outbox o WHERE o.tenant_id = t.id AND {of_one("o.tenant_id")})
        OR EXISTS (SELECT FROM projecting i WHERE i.tenant_id = t.id AND {of_one("i.tenant_id")})
        OR p.slid_to < :hour OR p.reweighed_to IS NOT NULL OR p.redis_run <> CAST(:run AS text)
        OR EXISTS (SELECT FROM score_weights w WHERE w.tenant_id = t.id AND w.effective_from <= :now
                                                 AND w.version > COALESCE(p.weights_version, 0)
                                                 AND {of_one("w.tenant_id")})
    ) AND {OF_ONE} ORDER BY t.id
""")  # noqa: S608  our own names
