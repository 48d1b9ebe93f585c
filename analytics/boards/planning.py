"""The plan of a projection's step: which members are stale, their numbers as of now, and what follows for Redis.

It ends with an intent for each member that Redis will differ in, and with a new number of the step. Both are committed
before Redis is touched, so a step that finds intents of a dead one writes all values of those members, and removes them
wherever they may have been.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from analytics import counters, outbox
from analytics.boards import board_writes, intents, page_numbers, progress, timeline, user_numbers, weights
from analytics.boards.board_writes import BoardWrites, Unsure
from analytics.boards.page_numbers import PageChange
from analytics.boards.progress import Projection, Reweighing
from analytics.boards.user_numbers import UserChange
from analytics.outbox import Kind
from tenants import redis
from tenants import settings as tenant_settings
from tenants.db import Query, Tx

MAX_MEMBERS_PER_CHUNK = 250
# Of each kind. A step takes some 0.15 s then: other tenants, and a signal to stop, wait for it.
MAX_MEMBERS_PER_STEP = 500


@dataclass(frozen=True)
class Chunk:
    """Members whose numbers are saved, and written to Redis, together."""

    writes: BoardWrites
    save: Callable[[Tx], None]


@dataclass(frozen=True)
class Stale:
    """The members of a kind that a step computes, and the outbox rows that it is then done with."""

    rows: list[int]
    members: set[str]
    # Whether members are left for the next step.
    more: bool
    # Whether the outbox had no more rows of the kind than were read.
    all_read: bool
    # The last row before those that are left: see `analytics.boards.drained`.
    front: int

    @classmethod
    def of(cls, rows: Sequence[Any], left_over: Sequence[Any], *, limit: int, after: int = 0) -> "Stale":
        """The first members of a bounded number of rows, in the order of the rows, with all their rows."""
        members = {row.member for row in left_over}
        for row in rows:
            if len(members) >= MAX_MEMBERS_PER_STEP:
                break
            members.add(row.member)
        done = [row.id for row in rows if row.member in members]
        all_read = len(rows) < limit
        more = not all_read or len(done) < len(rows) or len(left_over) >= MAX_MEMBERS_PER_STEP
        left = next((row.id - 1 for row in rows if row.member not in members), None)
        front = left if left is not None else rows[-1].id if rows else after
        return cls(done, members, more, all_read, front)


@dataclass
class Plan:
    now: datetime
    # The server that it was made on, and whether boards in Redis were written on another one.
    server: str | None
    is_other_server: bool
    # The run id of the Redis in which boards were last written, as far as known.
    redis_run: str | None
    # Whether Redis answered. Without it numbers are saved all the same, and the intents stay.
    has_redis: bool
    pages: Stale
    users: Stale
    # The rows that stand for all public pages, once none of those is left.
    sharing_rows: list[int]
    # None: nothing changes.
    reweighing: Reweighing | None
    more: bool
    # Whether there are views that are not counted yet.
    has_waiting_views: bool
    # Whether rows of the outbox were read from the first on.
    from_start: bool
    step: int = 0
    chunks: list[Chunk] = field(default_factory=list)
    # Statements that record intents, which must be committed before Redis is touched.
    new_intents: list[Query] = field(default_factory=list)

    @property
    def rows(self) -> dict[Kind, list[int]]:
        """The outbox rows that are done with."""
        return {Kind.PAGE: self.pages.rows, Kind.USER: self.users.rows, Kind.SHARING: self.sharing_rows}

    @property
    def fronts(self) -> dict[Kind, int]:
        """After which rows the next step reads, if there is a backlog."""
        if self.pages.all_read and self.users.all_read:
            return {}
        return {Kind.PAGE: self.pages.front, Kind.USER: self.users.front}

    @property
    def row_count(self) -> int:
        return sum(map(len, self.rows.values()))


def make(
    tx: Tx,
    position: Projection,
    *,
    server: str | None,
    now: datetime,
    limit: int,
    fronts: Mapping[Kind, int] = MappingProxyType({}),
) -> Plan:
    """Plan a step that projects a bounded number of outbox rows. Under the tenant's board lock.

    `fronts`: after which rows to read, in a backlog.
    """
    now = max(now, position.slid_to)  # windows never slide back, whatever another machine's clock says
    has_more_hours = progress.slide(tx, position, now=now)
    is_other_server = timeline.is_other(position.server, server)
    position.server = position.server or server
    current = weights.current(tx, now=now)
    reweighing = progress.to_reweigh(tx, position, current)
    has_redis = redis.boards().is_up()
    pages, users, sharing, waiting = _read_stale(tx, limit=limit, with_left_over=has_redis, fronts=fronts)
    if fronts and pages.all_read and users.all_read:  # as far as it was read
        fronts = {}
        pages, users, sharing, waiting = _read_stale(tx, limit=limit, with_left_over=has_redis, fronts=fronts)
    # After the outbox: whatever committed together with a row that was read is then visible.
    shared = tenant_settings.read(tx)[0].share_public_pages
    reshare, has_more_to_reshare = progress.to_reshare(tx, shared=shared) if sharing else ([], False)
    pages.members.update(str(page_id) for page_id in (*reweighing.pages, *reshare))
    sharing_rows = [] if has_more_to_reshare else [row.id for row in sharing]
    more = has_more_hours or reweighing.has_more or has_more_to_reshare or pages.more or users.more
    changed = reweighing if reweighing.is_change_of(position) else None
    written = (server, is_other_server, position.redis_run)
    plan = Plan(now, *written, has_redis, pages, users, sharing_rows, changed, more, bool(waiting), not fronts)
    # Each statement of a chunk reads all rows of pages for this, so only while they are few.
    add = pages.all_read and not fronts and not has_more_hours
    of_pages = partial(page_numbers.compute, tx, now=now, weights=current, shared=shared, add=add)
    page_ids, user_ids = sorted(map(int, pages.members)), sorted(users.members)
    _Side(Kind.PAGE, page_ids, of_pages, board_writes.for_pages, page_numbers.save).add_chunks(tx, plan)
    of_users = partial(user_numbers.compute, tx, now=now)
    _Side(Kind.USER, user_ids, of_users, board_writes.for_users, user_numbers.save).add_chunks(tx, plan)
    if plan.row_count or plan.chunks:
        *_, (raised,) = tx.run_in_one_trip(*plan.new_intents, progress.raising_step(tx.tenant))
        plan.step = raised.step
    return plan


def _read_stale(
    tx: Tx, *, limit: int, with_left_over: bool, fronts: Mapping[Kind, int]
) -> tuple[Stale, Stale, Sequence[Any], Sequence[Any]]:
    """The stale pages, the stale users, the rows that stand for all public pages, and a row of waiting views."""
    after = {kind: fronts.get(kind, 0) for kind in (Kind.PAGE, Kind.USER, Kind.SHARING)}
    marked = [outbox.oldest(tx.tenant, kind, limit=limit, after=last) for kind, last in after.items()]
    # Without Redis they stay as they are. Reading past those that were deleted is as dear as in the outbox.
    unfinished = [intents.left_over(tx.tenant, kind, limit=MAX_MEMBERS_PER_STEP) for kind in (Kind.PAGE, Kind.USER)]
    waiting = counters.finding_waiting_views(tx.tenant)
    pages, users, sharing, waits, *left_over = tx.run_in_one_trip(
        *marked, waiting, *(unfinished if with_left_over and not fronts else ())
    )
    of_pages, of_users = left_over or ([], [])
    stale_pages = Stale.of(pages, of_pages, limit=limit, after=after[Kind.PAGE])
    return stale_pages, Stale.of(users, of_users, limit=limit, after=after[Kind.USER]), sharing, waits


Member = TypeVar("Member", int, str)
Change = TypeVar("Change", PageChange, UserChange)


@dataclass(frozen=True)
class _Side(Generic[Member, Change]):
    """What is done with the stale members of a kind."""

    kind: Kind
    members: Sequence[Member]
    compute: Callable[[Sequence[Member]], list[Change]]
    writes: Callable[[str, Sequence[Change], Unsure], BoardWrites]
    save: Callable[..., None]

    def add_chunks(self, tx: Tx, plan: Plan) -> None:
        """Add the chunks to the plan, and their intents."""
        unsure = intents.of_members(tx, self.kind, map(str, self.members)) if self.members else {}
        scopes: dict[str, set[str]] = {}
        for start in range(0, len(self.members), MAX_MEMBERS_PER_CHUNK):
            changes = self.compute(self.members[start : start + MAX_MEMBERS_PER_CHUNK])
            scopes |= _scopes_of(changes, unsure)
            save = partial(self.save, changes=changes, now=plan.now)
            plan.chunks.append(Chunk(self.writes(tx.tenant, changes, unsure), save))
        if scopes:
            plan.new_intents.append(intents.recording(tx.tenant, self.kind, scopes))


def _scopes_of(changes: Iterable[PageChange | UserChange], unsure: Unsure) -> dict[str, set[str]]:
    """Of the members that changed, the scopes in which Redis may have them."""
    scopes: dict[str, set[str]] = {}
    for change in changes:
        if change.before != change.now:
            where = scopes.setdefault(change.member, set(unsure.get(change.member, ())))
            where.update(scope for numbers in (change.before, change.now) if numbers for scope in numbers.scopes)
    return scopes
