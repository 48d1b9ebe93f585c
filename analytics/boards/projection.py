"""The projection: from what is true in PostgreSQL to the boards in Redis.

`run(tenant)` is the only writer of a tenant's boards, one at a time (an advisory lock). It reads the outbox, computes
the stale pages and users anew, writes their absolute values to Redis, and deletes the rows it read, in one
transaction. So a crash anywhere leaves the rows, and the next run does it all again.

Before Redis is touched a second, short transaction commits the new versions of the boards and an *intent* for each
member (`projecting`: which scopes may hold it). So a version is never published twice with different contents, and a
run that finds intents of a dead one knows that Redis may hold anything of those: it writes all their values, and
removes them wherever they may have been. If Redis cannot be reached the numbers are committed all the same, and the
intents stay until it can.
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Self, TypeVar

from prometheus_client import Counter
from sqlalchemy import ARRAY, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from analytics import outbox
from analytics.boards import changes, names, page_numbers, rebuilding, redis_store, user_numbers, versions, weights
from analytics.boards.changes import Changes
from analytics.boards.names import ALL_TENANTS, GLOBAL, Board, Version, boards_in
from analytics.boards.page_numbers import Rolled
from analytics.boards.redis_store import Standing
from analytics.ingest import likes
from analytics.locks import hold, try_hold
from analytics.outbox import Kind
from analytics.windows import hour_of
from tenants import redis, registry
from tenants import settings as tenant_settings
from tenants.db import Base, TenantOwned, Tx, array, platform_tx, tenant_tx
from tenants.redis import RedisUnavailable

ROWS_A_RUN = 5_000
MEMBERS_A_CHUNK = 250
MOST_RUNS = 1_000

PROJECTED = Counter("plaudit_projected_members_total", "Members computed anew.", ["tenant"])

# Members of which Redis may hold anything → the scopes in which it may.
Unsure = Mapping[str, Sequence[str]]


class Projecting(TenantOwned, Base):
    """A member that Redis is being told of, and the scopes in which it may hold anything of it."""

    __tablename__ = "projecting"

    kind: Mapped[str] = mapped_column(primary_key=True)
    member: Mapped[str] = mapped_column(primary_key=True)
    scopes: Mapped[list[str]] = mapped_column(ARRAY(Text))


@dataclass
class Done:
    pages: int = 0
    users: int = 0
    rebuilt: list[Board] = field(default_factory=list)
    in_redis: bool = True
    more: bool = False


def run(tenant_id: str, *, now: datetime, limit: int = ROWS_A_RUN) -> Done:
    """Bring a tenant's boards up to date, a batch at a time. Safe to run twice; Busy where another does it."""
    with tenant_tx(tenant_id) as tx:
        try_hold(tx, tenant_id)
        done = _project(tx, now=now, limit=limit) if registry.is_live(tx, tenant_id) else Done()
    PROJECTED.labels(tenant_id).inc(done.pages + done.users)
    return done


def run_all(tenant_id: str, *, now: Callable[[], datetime]) -> Done:
    """Until nothing is left to do."""
    total = Done()
    for _ in range(MOST_RUNS):
        done = run(tenant_id, now=now())
        total.pages += done.pages
        total.users += done.users
        total.rebuilt += done.rebuilt
        total.in_redis, total.more = done.in_redis, done.more
        if not done.more:
            break
    return total


def bring_up_to_date(tenant_id: str, *, now: Callable[[], datetime]) -> Done:
    """What a wake-up asks for: a tenant's boards, or the global ones."""
    if tenant_id != ALL_TENANTS:
        return run_all(tenant_id, now=now)
    return Done(rebuilt=rebuilding.rebuild_global())


def rebuild_tenant(tenant_id: str, *, now: Callable[[], datetime], progress: Callable[[int], None]) -> Done:
    """Compute every page of a tenant anew, then fill every board anew, each scope in a transaction of its own."""
    done, after = Done(), 0
    while True:
        with tenant_tx(tenant_id) as tx:
            page_ids = list(tx.scalars(_EVERY_PAGE, {"tenant": tenant_id, "after": after, "limit": ROWS_A_RUN}))
            likes.recount(tx, page_ids)
            outbox.mark_stale(tx, Kind.PAGE, page_ids)
        run_all(tenant_id, now=now)
        progress(len(page_ids))
        done.pages += len(page_ids)
        if len(page_ids) < ROWS_A_RUN:
            break
        after = page_ids[-1]
    with tenant_tx(tenant_id) as tx:
        outbox.mark_stale(tx, Kind.USER, tx.scalars(_EVERY_USER, {"tenant": tenant_id}).all())
    run_all(tenant_id, now=now)
    with tenant_tx(tenant_id) as tx, redis.boards().client() as client:
        hold(tx, tenant_id)
        every = rebuilding.all_boards(tx)
        redis_store.drop_others(client, tenant_id, every)
    for scope in sorted({board.scope for board in every}):
        with tenant_tx(tenant_id) as tx, redis.boards().client() as client:
            hold(tx, tenant_id)
            done.rebuilt += rebuilding.rebuild(tx, client, boards_in(tenant_id, scope), progress=progress)
    return done


def stale_tenants(*, now: datetime) -> list[str]:
    """The tenants whose boards are behind: the sweep finds them, whatever wake-up was lost."""
    with platform_tx() as tx:
        behind = list(tx.scalars(_BEHIND, {"hour": hour_of(now), "now": now}))
        everyone = [*(tenant.id for tenant in registry.live(tx)), ALL_TENANTS]
    try:
        with redis.boards().client() as client:
            this_run = redis_store.run_of(client).encode()
            with client.pipeline(transaction=False) as pipe:
                for tenant_id in everyone:
                    pipe.get(redis_store.ready_key(tenant_id))
                ready = pipe.execute()
    except RedisUnavailable:
        return behind
    lost = [tenant_id for tenant_id, said in zip(everyone, ready, strict=True) if said != this_run]
    return list(dict.fromkeys([*behind, *lost]))


def retire(tenant_id: str, *, now: datetime) -> None:
    """Take a tenant that is deleted off the global boards, and its own boards out of Redis."""
    with tenant_tx(tenant_id) as tx:
        hold(tx, tenant_id)
        hold(tx, ALL_TENANTS)
        leaving = Changes()
        for member in tx.scalars(_ON_GLOBAL, {"tenant": tenant_id}).all():
            for board in boards_in(tenant_id, GLOBAL):
                leaving.place(board, member, 0)
            leaving.summaries[names.summary_key(ALL_TENANTS, member)] = None
        with tenant_tx(tenant_id, separate=True) as reserving:
            reserved = versions.reserve(reserving, leaving.boards(), now=now)
        versions.settle(tx, reserved)
        tx.execute(text("DELETE FROM page_stats WHERE tenant_id = :tenant"), {"tenant": tenant_id})
        with redis.boards().client() as client:
            redis_store.write(client, leaving, reserved)
            redis_store.forget(client, tenant_id)
            redis_store.publish(client, reserved)


def _project(tx: Tx, *, now: datetime, limit: int) -> Done:
    position, is_first = page_numbers.position(tx, now=now)
    if is_first:
        _forget_earlier(tx.tenant)
    now = max(now, position.slid_to)  # windows never slide back, whatever another machine's clock says
    behind = page_numbers.slide(tx, position, now=now)
    current = weights.current(tx, now=now)
    reweigh, unweighed = page_numbers.to_reweigh(tx, position, current)
    pages, users = _Due.of(tx, Kind.PAGE, limit=limit), _Due.of(tx, Kind.USER, limit=limit)
    sharing = outbox.read(tx, Kind.SHARING, limit=limit)
    # After the outbox: whatever committed together with a row that was read is then visible.
    shared = tenant_settings.read(tx)[0].share_public_pages
    reshare, unshared = page_numbers.to_reshare(tx, shared=shared) if sharing else ([], False)
    pages.members |= {str(page_id) for page_id in (*reweigh, *reshare)}
    if not unshared:
        pages.rows += [row.id for row in sharing]
    done = Done(pages=len(pages.members), users=len(users.members))
    done.more = behind or unweighed or unshared or pages.more or users.more
    with _Telling(tx, done, now=now) as telling:
        for chunk in _chunks(sorted(map(int, pages.members))):
            rolled = page_numbers.compute(tx, chunk, now=now, weights=current, shared=shared)
            unsure = _intents(tx, Kind.PAGE, map(str, chunk))
            telling.tell(Kind.PAGE, changes.of_pages(tx.tenant, rolled, unsure), _scopes_of(rolled), unsure)
            page_numbers.save(tx, rolled, now=now)
        for names in _chunks(sorted(users.members)):
            moved = user_numbers.compute(tx, names, now=now)
            unsure = _intents(tx, Kind.USER, names)
            telling.tell(Kind.USER, changes.of_users(tx.tenant, moved, unsure), _scopes_of(moved), unsure)
            user_numbers.save(tx, moved, now=now)
        outbox.delete(tx, [*pages.rows, *users.rows])
        telling.finish()
    if done.in_redis:
        _drop_intents(tx, Kind.PAGE, pages.members)
        _drop_intents(tx, Kind.USER, users.members)
    return done


@dataclass
class _Due:
    """The members of a kind that are to be computed anew."""

    rows: list[int]
    members: set[str]
    more: bool

    @classmethod
    def of(cls, tx: Tx, kind: Kind, *, limit: int) -> "_Due":
        rows = outbox.read(tx, kind, limit=limit)
        left_over = _left_over(tx, kind, limit=limit) if redis.boards().is_up() else []
        more = len(rows) == limit or len(left_over) == limit
        return cls([row.id for row in rows], {row.member for row in rows} | set(left_over), more)


class _Telling:
    """Tells Redis what changed, a chunk at a time, while PostgreSQL computes the next.

    First a short transaction of its own commits the intents and versions of a chunk; only then is Redis touched.
    """

    def __init__(self, tx: Tx, done: Done, *, now: datetime) -> None:
        self._tx = tx
        self._done = done
        self._now = now
        self._reserved: dict[Board, Version] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tell-redis")
        self._writing: list[Future[list[Board]]] = []
        self._holds_all = False
        self._failed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._thread.shutdown()

    def tell(self, kind: Kind, wanted: Changes, scopes: Mapping[str, Collection[str]], unsure: Unsure) -> None:
        if not wanted:
            return
        if not self._holds_all and any(board.tenant_id == ALL_TENANTS for board in wanted.boards()):
            hold(self._tx, ALL_TENANTS)
            self._holds_all = True
        intents = {member: " ".join(sorted({*where, *unsure.get(member, ())})) for member, where in scopes.items()}
        with tenant_tx(self._tx.tenant, separate=True) as tx:
            if intents:
                parameters = {"members": list(intents), "scopes": list(intents.values())}
                tx.run(_INTEND, {"tenant": tx.tenant, "kind": kind.value, **parameters})
            reserved = versions.reserve(tx, wanted.boards(), now=self._now)
        self._reserved |= reserved
        self._writing.append(self._thread.submit(self._write, wanted, reserved))

    def _write(self, wanted: Changes, reserved: Mapping[Board, Version]) -> list[Board]:
        """After a chunk that failed nothing more is written: a later version would be without it."""
        if self._failed:
            raise RedisUnavailable
        try:
            with redis.boards().client() as client:
                return redis_store.write(client, wanted, reserved)
        except BaseException:
            self._failed = True
            raise

    def finish(self) -> None:
        """Wait for Redis; then fill the boards that it has lost, and let everybody know."""
        missing: list[Board] = []
        versions.settle(self._tx, self._reserved)
        try:
            for writing in self._writing:
                missing += writing.result()
            with redis.boards().client() as client, rebuilding.looking(client, self._tx.tenant) as standing:
                if standing is Standing.ANOTHER:
                    missing = rebuilding.all_boards(self._tx)
                elif standing is Standing.LOOK_AGAIN:
                    missing = redis_store.without_marker(client, rebuilding.all_boards(self._tx))
                own = dict.fromkeys(board for board in missing if board.tenant_id == self._tx.tenant)
                self._done.rebuilt = rebuilding.rebuild(self._tx, client, own)
                redis_store.publish(client, self._reserved)
        except RedisUnavailable:
            self._done.in_redis = False


def _scopes_of(rolled: Iterable[Rolled | user_numbers.Rolled]) -> dict[str, set[str]]:
    """Of the members that moved, where they are or were."""
    return {
        one.member: {scope for state in (one.before, one.now) if state is not None for scope in state.scopes}
        for one in rolled
        if one.before != one.now
    }


Member = TypeVar("Member")


def _chunks(members: Sequence[Member]) -> Iterator[Sequence[Member]]:
    for start in range(0, len(members), MEMBERS_A_CHUNK):
        yield members[start : start + MEMBERS_A_CHUNK]


def _left_over(tx: Tx, kind: Kind, *, limit: int) -> list[str]:
    """Members of which Redis was not told: it was away, or the projection died."""
    rows = tx.run(
        text("SELECT member FROM projecting WHERE tenant_id = :tenant AND kind = :kind ORDER BY member LIMIT :limit"),
        {"tenant": tx.tenant, "kind": kind.value, "limit": limit},
    )
    return [row.member for row in rows]


def _intents(tx: Tx, kind: Kind, members: Iterable[str]) -> dict[str, list[str]]:
    """Of these members, those of which Redis may hold anything, and where."""
    rows = tx.run(_INTENTS, {"tenant": tx.tenant, "kind": kind.value, "members": array(members)})
    return {row.member: row.scopes for row in rows}


def _drop_intents(tx: Tx, kind: Kind, members: Collection[str]) -> None:
    if members:
        tx.run(_DROP, {"tenant": tx.tenant, "kind": kind.value, "members": array(members)})


def _forget_earlier(tenant_id: str) -> None:
    """Redis may hold boards of a tenant that had this name before."""
    with contextlib.suppress(RedisUnavailable), redis.boards().client() as client:
        if client.exists(redis_store.ready_key(tenant_id)):
            redis_store.forget(client, tenant_id)


_EVERY_PAGE = text("""
    SELECT id FROM (SELECT id FROM pages WHERE tenant_id = :tenant AND id > :after
                    UNION SELECT page_id FROM page_stats WHERE tenant_id = :tenant AND page_id > :after) every
    ORDER BY id LIMIT :limit
""")

_EVERY_USER = text("""
    SELECT user_id::text FROM user_points_hour WHERE tenant_id = :tenant
    UNION SELECT user_id::text FROM user_stats WHERE tenant_id = :tenant
    UNION SELECT id::text FROM users WHERE tenant_id = :tenant AND current_score > 0
""")

_INTEND = text("""
    INSERT INTO projecting AS i (tenant_id, kind, member, scopes)
    SELECT :tenant, :kind, member, string_to_array(scopes, ' ')
    FROM unnest(CAST(:members AS text[]), CAST(:scopes AS text[])) AS w(member, scopes)
    ON CONFLICT (tenant_id, kind, member)
    DO UPDATE SET scopes = ARRAY(SELECT DISTINCT s FROM unnest(i.scopes || EXCLUDED.scopes) s)
""")

_INTENTS = text("""
    SELECT member, scopes FROM projecting
    WHERE tenant_id = :tenant AND kind = :kind AND member = ANY(CAST(:members AS text[]))
""")

_ON_GLOBAL = text("""
    SELECT page_id::text FROM page_stats WHERE tenant_id = :tenant AND is_shared
    UNION SELECT member FROM projecting WHERE tenant_id = :tenant AND kind = 'page' AND 'global' = ANY(scopes)
""")

_DROP = text(
    "DELETE FROM projecting WHERE tenant_id = :tenant AND kind = :kind AND member = ANY(CAST(:members AS text[]))"
)

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
