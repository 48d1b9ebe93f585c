"""The one door for views and likes: group commit.

Requests that are in flight together share a transaction, so that a hot page's rows move once per commit and not once
per request. A caller is answered after the commit that holds its part, and nothing is kept in memory after an answer.

There is no thread of its own. The first caller to come leads: it takes what waits, commits it, hands out the results,
and passes the lead to one of those who came meanwhile. So it works under threads and under gevent, and whoever stops
the server by letting requests end has drained it.

Everything is written in one order (tenant, then pages, counters, event ids, buckets, users, likes; each by key), so
commits of different processes cannot deadlock. If a shared transaction fails all the same, its parts are tried one by
one: a part that fails fails its own callers and nobody else.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from enum import Enum
from uuid import UUID

from sqlalchemy import BigInteger, Date, ForeignKey, Index, Uuid, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Mapped, mapped_column

from analytics import likes, outbox
from analytics.likes import Wish
from analytics.outbox import Kind
from analytics.windows import hour_of
from tenants import users
from tenants.credentials import ClientToken
from tenants.db import Base, TenantOwned, Tx, array, shared_tx
from tenants.errors import Unavailable
from tenants.signing import BadToken

MOST_WAITING_ITEMS = 50_000
MOST_ITEMS_A_COMMIT = 10_000
WAIT_S = 10.0


class Does(Enum):
    VIEW = "view"
    LIKE = "like"
    UNLIKE = "unlike"


class Result(Enum):
    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    UNKNOWN_PAGE = "unknown_page"
    UNKNOWN_USER = "unknown_user"


@dataclass(frozen=True, slots=True)
class Item:
    """One checked view, like or unlike."""

    does: Does
    page: str
    at: datetime
    event_key: UUID | None = None
    user: str | UUID | None = None  # a tenant's own id for the user, or ours


@dataclass(slots=True)
class Outcome:
    result: Result
    likes: int | None = None


@dataclass(slots=True, eq=False)
class Part:
    """What one request wants written, and after the commit how each item fared."""

    tenant_id: str
    items: Sequence[Item]
    now: datetime
    # Checked in the transaction of the effect: a token revoked a moment ago writes nothing.
    token: ClientToken | None = None
    rejected: Counter[str] = field(default_factory=Counter)
    outcomes: list[Outcome] = field(default_factory=list)
    error: BaseException | None = None
    # Held until the part is done, or its caller is to lead: a bare lock, the cheapest thing to wait for.
    gate: threading.Lock = field(default_factory=threading.Lock)
    leads: bool = False

    @property
    def weight(self) -> int:
        return len(self.items) or 1


class SeenEvent(TenantOwned, Base):
    """An event id that was counted; remembered until long after it was last received."""

    __tablename__ = "seen_events"
    __table_args__ = (Index("ix_seen_events_seen_on", "seen_on"),)

    event_key: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    seen_on: Mapped[date] = mapped_column(Date)


class RejectionsHour(TenantOwned, Base):
    """How many events were refused, by hour and reason."""

    __tablename__ = "ingest_rejections_hour"

    tenant_id: Mapped[str] = mapped_column(
        ForeignKey("tenants.id", ondelete="CASCADE"), primary_key=True, sort_order=-1
    )
    bucket_hour: Mapped[datetime] = mapped_column(primary_key=True)
    reason: Mapped[str] = mapped_column(primary_key=True)
    rejected: Mapped[int] = mapped_column(BigInteger)


class Overloaded(Unavailable):
    code = "overloaded"
    title = "Too many writes are waiting"


class GroupCommit:
    """The parts that wait in this process, and whoever leads."""

    def __init__(
        self, *, after: Callable[[Iterable[str]], None] | None = None, most_waiting_items: int = MOST_WAITING_ITEMS
    ) -> None:
        """`after` is told the tenants of each commit, once its callers are answered."""
        self._after = after
        self._lock = threading.Lock()
        self._waiting: deque[Part] = deque()
        self._waiting_items = 0
        self._led = False
        self._most_waiting_items = most_waiting_items

    def write(self, part: Part) -> list[Outcome]:
        """Have this part committed; how its items fared. Returns after PostgreSQL's commit, or raises."""
        with self._lock:
            if self._waiting_items + part.weight > self._most_waiting_items:
                raise Overloaded
            part.gate.acquire()
            self._waiting.append(part)
            self._waiting_items += part.weight
            lead = not self._led
            self._led = True
        if not lead:
            lead = self._wait(part)
        if lead:
            self._lead(part)
        if part.error is not None:
            raise part.error
        return part.outcomes

    def _wait(self, part: Part) -> bool:
        """Until the part is done, or it is this caller's turn to lead."""
        if part.gate.acquire(timeout=WAIT_S):
            return part.leads
        with self._lock:
            if part.leads:
                return True
            if part in self._waiting:
                self._waiting.remove(part)
                self._waiting_items -= part.weight
                raise Overloaded
        part.gate.acquire()  # it is being committed: only the database can say how it went
        return part.leads

    def _lead(self, own: Part) -> None:
        """Commit what waits (our own part first among it), then let another lead."""
        batch = self._take()
        try:
            commit(batch)
        except BaseException as error:
            for part in batch:
                part.error = part.error or error
            raise
        finally:
            self._pass_on()
            for part in batch:
                if part is not own:
                    part.gate.release()
        if self._after is not None:
            self._after({part.tenant_id for part in batch if part.error is None and part.items})

    def _take(self) -> list[Part]:
        with self._lock:
            batch = [self._waiting.popleft()]
            items = batch[0].weight
            while self._waiting and items + self._waiting[0].weight <= MOST_ITEMS_A_COMMIT:
                items += self._waiting[0].weight
                batch.append(self._waiting.popleft())
            self._waiting_items -= items
            return batch

    def _pass_on(self) -> None:
        with self._lock:
            if not self._waiting:
                self._led = False
                return
            heir = self._waiting[0]
            heir.leads = True
        heir.gate.release()


def commit(parts: Sequence[Part]) -> None:
    """Write these parts in one transaction; should it fail, each in one of its own."""
    try:
        _commit_together(parts)
    except DBAPIError as error:
        gone = error.connection_invalidated or getattr(error.orig, "sqlstate", None) is None
        if len(parts) == 1 or gone:
            for part in parts:
                part.error = error
            return
        for part in parts:
            commit([part])


def apply(tx: Tx, parts: Sequence[Part]) -> None:
    """Write one tenant's parts inside a transaction that somebody else commits."""
    _Writer(tx).write(parts)


def _commit_together(parts: Sequence[Part]) -> None:
    by_tenant: dict[str, list[Part]] = {}
    for part in parts:
        part.outcomes, part.error = [], None
        by_tenant.setdefault(part.tenant_id, []).append(part)
    tenant_ids = sorted(by_tenant)
    with shared_tx(tenant_ids[0]) as enter:
        for tenant_id in tenant_ids:
            apply(enter(tenant_id), by_tenant[tenant_id])


@dataclass(frozen=True, slots=True)
class _Recorded:
    """What became of the items of one call of record_events."""

    pages: dict[str, int]
    accepted: AbstractSet[int]
    dead: AbstractSet[str] | None = None

    def result(self, item: Item, place: int) -> Result:
        if place in self.accepted:
            return Result.ACCEPTED
        return Result.DUPLICATE if item.page in self.pages else Result.UNKNOWN_PAGE


class _Writer:
    """One tenant's share of a commit, step by step."""

    def __init__(self, tx: Tx) -> None:
        self.tx = tx

    def write(self, parts: Sequence[Part]) -> None:
        tokens = {part.token for part in parts if part.token is not None}
        flat = [(part, item) for part in parts for item in part.items]
        recorded = self._record([item for _, item in flat], tokens, today=parts[0].now.date())
        if recorded.dead is not None:
            self._refuse(parts, recorded.dead)
            return
        liked: list[tuple[Item, Outcome]] = []
        for place, (part, item) in enumerate(flat, 1):
            outcome = Outcome(recorded.result(item, place))
            part.outcomes.append(outcome)
            if item.does is not Does.VIEW and outcome.result is Result.ACCEPTED:
                liked.append((item, outcome))
        if liked:
            moved = self._likes(liked, recorded.pages, now=parts[0].now)
            outbox.mark_stale(self.tx, Kind.PAGE, moved)
        self._count_rejections(parts)

    def _record(self, items: Sequence[Item], tokens: AbstractSet[ClientToken], *, today: date) -> _Recorded:
        """Everything but the likes: tokens checked, pages found and held, ids remembered, views counted."""
        names = {name: place for place, name in enumerate(dict.fromkeys(item.page for item in items), 1)}
        row = self.tx.run(
            _RECORD,
            {
                "tenant": self.tx.tenant,
                "names": list(names),
                "items": array(names[item.page] for item in items),
                "hours": array(int(item.at.timestamp()) // 3600 for item in items),
                "keys": array(item.event_key.hex if item.event_key else "NULL" for item in items),
                "views": array("t" if item.does is Does.VIEW else "f" for item in items),
                "clients": [token.client_id for token in tokens],
                "jtis": [token.jti for token in tokens],
                "today": today,
            },
        ).one()
        if row.dead is not None:
            return _Recorded({}, frozenset(), dead=frozenset(row.dead))
        pages = {name: page_id for name, page_id in zip(names, row.ids or (), strict=True) if page_id is not None}
        return _Recorded(pages, frozenset(row.accepted or ()))

    def _refuse(self, parts: Sequence[Part], dead: AbstractSet[str]) -> None:
        """Nothing was written, since some tokens do not count any more: tell their callers, and write the others."""
        for part in parts:
            if part.token is not None and part.token.jti in dead:
                part.error = BadToken()
        live = [part for part in parts if part.error is None]
        if live:
            self.write(live)

    def _likes(self, wanted: Sequence[tuple[Item, Outcome]], pages: dict[str, int], now: datetime) -> set[int]:
        if not wanted:
            return set()
        user_ids: dict[str | UUID | None, UUID] = {}
        external = {item.user for item, _ in wanted if isinstance(item.user, str)}
        user_ids.update(users.ensure_all_external(self.tx, external, now=now))
        user_ids |= {
            user: user for user in users.hold(self.tx, {i.user for i, _ in wanted if isinstance(i.user, UUID)})
        }
        wishes: list[Wish] = []
        granted: list[Outcome] = []
        for item, outcome in wanted:
            if item.user not in user_ids:
                outcome.result = Result.UNKNOWN_USER
                continue
            wishes.append(Wish(pages[item.page], user_ids[item.user], item.does is Does.LIKE, item.at))
            granted.append(outcome)
        after, moved = likes.settle(self.tx, wishes)
        for outcome, count in zip(granted, after, strict=True):
            outcome.likes = count
        return moved

    def _count_rejections(self, parts: Sequence[Part]) -> None:
        counts: Counter[tuple[datetime, str]] = Counter()
        for part in parts:
            unknown = sum(outcome.result is Result.UNKNOWN_PAGE for outcome in part.outcomes)
            if unknown:
                counts[hour_of(part.now), Result.UNKNOWN_PAGE.value] += unknown
            for reason, count in part.rejected.items():
                counts[hour_of(part.now), reason] += count
        keys = sorted(counts)
        if keys:
            self.tx.execute(
                text("""
                    INSERT INTO ingest_rejections_hour AS r (tenant_id, bucket_hour, reason, rejected)
                    SELECT :tenant, bucket_hour, reason, rejected
                    FROM unnest(CAST(:hours AS timestamptz[]), CAST(:reasons AS text[]), CAST(:counts AS bigint[]))
                         AS w(bucket_hour, reason, rejected)
                    ON CONFLICT (tenant_id, bucket_hour, reason)
                    DO UPDATE SET rejected = r.rejected + EXCLUDED.rejected
                """),
                {
                    "tenant": self.tx.tenant,
                    "hours": [hour for hour, _ in keys],
                    "reasons": [reason for _, reason in keys],
                    "counts": [counts[key] for key in keys],
                },
            )


# See migrations/versions/0005_boards.py. A function, because its plans are kept: planning was half of a commit's cost.
_RECORD = text("""
    SELECT dead, ids, accepted FROM record_events(
        :tenant, CAST(:names AS text[]), CAST(:items AS int[]), CAST(:hours AS int[]), CAST(:keys AS uuid[]),
        CAST(:views AS boolean[]), CAST(:clients AS text[]), CAST(:jtis AS text[]), :today)
""")


def rejections(tx: Tx, *, since: datetime) -> dict[str, int]:
    """How many events of this tenant were refused since then, by reason."""
    rows = tx.execute(
        text("""
            SELECT reason, sum(rejected)::bigint AS rejected FROM ingest_rejections_hour
            WHERE tenant_id = :tenant AND bucket_hour > :since GROUP BY reason ORDER BY reason
        """),
        {"tenant": tx.tenant, "since": since - timedelta(hours=1)},
    )
    return {row.reason: row.rejected for row in rows}
