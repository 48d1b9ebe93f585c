"""Views and likes on their way into the database: what a request wants written, and the transaction that writes it.

`analytics.group_commit` gathers the parts of requests that are in flight together; `commit_together` writes them.
Everything is written in one order (tenant, then counters, event ids, buckets, users, likes; each by key), so commits
of different processes cannot deadlock.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import BigInteger, Date, ForeignKey, Index, Uuid, text
from sqlalchemy.orm import Mapped, mapped_column

from analytics import outbox
from analytics.ingest import likes
from analytics.ingest.likes import Wish
from analytics.outbox import Kind
from tenants import users
from tenants.credentials import ClientToken
from tenants.db import Base, TenantOwned, Tx, array, in_one_trip, shared_tx
from tenants.signing import BadToken


class Does(Enum):
    VIEW = "view"
    LIKE = "like"
    UNLIKE = "unlike"


class Result(Enum):
    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    UNKNOWN_PAGE = "unknown_page"
    UNKNOWN_USER = "unknown_user"
    LIMITED = "limited"  # the user would be one more than the tenant may have


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
    rejected: Mapping[str, int] | None = None
    outcomes: list[Outcome] = field(default_factory=list)
    error: BaseException | None = None

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


def apply(tx: Tx, parts: Sequence[Part]) -> None:
    """Write one tenant's parts inside a transaction that somebody else commits."""
    _Share(tx.tenant, parts).write(tx)


def commit_together(parts: Sequence[Part], shared: bool) -> list[Part]:
    """Write these parts in one transaction; `shared` by tenants, it waits for locks only briefly.

    Gives back the parts that are still to be written: where a token of a tenant's is not valid any more, nothing of
    that tenant was, and what others of its requests want is written by the next transaction. All else is settled.
    """
    by_tenant: dict[str, list[Part]] = {}
    for part in parts:
        part.outcomes, part.error = [], None
        by_tenant.setdefault(part.tenant_id, []).append(part)
    shares = [_Share(tenant_id, by_tenant[tenant_id]) for tenant_id in sorted(by_tenant)]
    if any(share.has_likes for share in shares):
        with shared_tx(shares[0].tenant_id, shared=shared) as enter:
            for share in shares:
                share.write(enter(share.tenant_id))
        return []
    rows = in_one_trip([(share.tenant_id, _RECORD, share.parameters()) for share in shares], shared=shared)
    left: list[Part] = []
    for share, row in zip(shares, rows, strict=True):
        share.hear(_Recorded(*row))
        left += share.refuse()
    return left


class _Recorded(NamedTuple):
    """What record_events answers. See migrations/versions/0006_one_trip.py."""

    dead: list[str] | None
    ids: list[int | None] | None
    accepted: list[int] | None


class _Share:
    """One tenant's share of a commit."""

    def __init__(self, tenant_id: str, parts: Sequence[Part]) -> None:
        self.tenant_id = tenant_id
        self.parts = parts
        self.items = [item for part in parts for item in part.items]
        self.has_likes = any(item.does is not Does.VIEW for item in self.items)
        # Each page that is named, and its place among them.
        self._names = {name: place for place, name in enumerate(dict.fromkeys(item.page for item in self.items), 1)}
        self._dead: Sequence[str] = ()

    def write(self, tx: Tx) -> None:
        """Step by step, in an open transaction."""
        row = _Recorded(*tx.raw.exec_driver_sql(_RECORD, self.parameters()).one())
        liked = self.hear(row)
        if liked:
            moved = self._likes(tx, liked, dict(zip(self._names, row.ids or (), strict=True)))
            outbox.mark_stale(tx, Kind.PAGE, moved)
        live = self.refuse()
        if live:
            _Share(self.tenant_id, live).write(tx)

    def parameters(self) -> tuple[Any, ...]:
        """For record_events: everything but the likes. Tokens, pages, ids of events, views, what was refused."""
        tokens = {part.token for part in self.parts if part.token is not None}
        refused: Counter[str] = Counter()
        for part in self.parts:
            refused.update(part.rejected or {})
        names = self._names
        return (
            self.tenant_id,
            list(names),
            array(names[item.page] for item in self.items),
            array(int(item.at.timestamp()) // 3600 for item in self.items),
            array(item.event_key.hex if item.event_key else "NULL" for item in self.items),
            array("t" if item.does is Does.VIEW else "f" for item in self.items),
            [token.client_id for token in tokens],
            [token.jti for token in tokens],
            self.parts[0].now,
            list(refused),
            array(refused.values()),
        )

    def hear(self, row: _Recorded) -> list[tuple[Item, Outcome]]:
        """Give every part its outcomes; the likes that are still to be settled."""
        if row.dead is not None:
            self._dead = row.dead
            return []
        known = {name for name, page_id in zip(self._names, row.ids or (), strict=True) if page_id is not None}
        accepted = frozenset(row.accepted or ())
        liked: list[tuple[Item, Outcome]] = []
        place = 0
        for part in self.parts:
            for item in part.items:
                place += 1
                if place in accepted:
                    outcome = Outcome(Result.ACCEPTED)
                    if item.does is not Does.VIEW:
                        liked.append((item, outcome))
                else:
                    outcome = Outcome(Result.DUPLICATE if item.page in known else Result.UNKNOWN_PAGE)
                part.outcomes.append(outcome)
        return liked

    def refuse(self) -> list[Part]:
        """Where some tokens do not count any more nothing was written: tell their callers, and give back the others."""
        if not self._dead:
            return []
        for part in self.parts:
            if part.token is not None and part.token.jti in self._dead:
                part.error = BadToken()
        return [part for part in self.parts if part.error is None]

    def _likes(self, tx: Tx, wanted: Sequence[tuple[Item, Outcome]], pages: Mapping[str, int | None]) -> set[int]:
        user_ids: dict[str | UUID | None, UUID] = {}
        external = {item.user for item, _ in wanted if isinstance(item.user, str)}
        user_ids.update(users.ensure_all_external(tx, external, now=self.parts[0].now))
        no_room = external - user_ids.keys()
        user_ids |= {item.user: item.user for item, _ in wanted if isinstance(item.user, UUID)}
        held = users.hold(tx, set(user_ids.values()))
        user_ids = {name: user_id for name, user_id in user_ids.items() if user_id in held}
        wishes: list[Wish] = []
        granted: list[Outcome] = []
        refused: list[tuple[Item, Outcome]] = []
        for item, outcome in wanted:
            page_id = pages[item.page]
            if item.user not in user_ids or page_id is None:
                outcome.result = Result.LIMITED if item.user in no_room else Result.UNKNOWN_USER
                refused.append((item, outcome))
                continue
            wishes.append(Wish(page_id, user_ids[item.user], item.does is Does.LIKE, item.at))
            granted.append(outcome)
        self._record_refused(tx, refused)
        after, moved = likes.settle(tx, wishes)
        for outcome, count in zip(granted, after, strict=True):
            outcome.likes = count
        return moved

    def _record_refused(self, tx: Tx, refused: Sequence[tuple[Item, Outcome]]) -> None:
        """Likes that are refused this late are recorded as such, and their ids forgotten: they can be sent again."""
        if not refused:
            return
        keys = [item.event_key for item, _ in refused if item.event_key is not None]
        tx.execute(_FORGET_EVENTS, {"tenant": tx.tenant, "keys": keys})
        for result, number in Counter(outcome.result for _, outcome in refused).items():
            reason = "limited" if result is Result.LIMITED else "invalid"
            counted = {"reason": reason, "rejected": number, "now": self.parts[0].now}
            tx.execute(_COUNT_REFUSED, {"tenant": tx.tenant, **counted})


_FORGET_EVENTS = text("DELETE FROM seen_events WHERE tenant_id = :tenant AND event_key = ANY(CAST(:keys AS uuid[]))")
_COUNT_REFUSED = text("""
    INSERT INTO ingest_rejections_hour AS r (tenant_id, bucket_hour, reason, rejected)
    VALUES (:tenant, date_trunc('hour', CAST(:now AS timestamptz), 'UTC'), :reason, :rejected)
    ON CONFLICT (tenant_id, bucket_hour, reason) DO UPDATE SET rejected = r.rejected + EXCLUDED.rejected
""")

# A function, because its plans are kept: planning was half of a commit's cost.
_RECORD = """
    SELECT dead, ids, accepted FROM record_events(
        %s, %s::text[], %s::int[], %s::int[], %s::uuid[], %s::boolean[], %s::text[], %s::text[], %s::timestamptz,
        %s::text[], %s::bigint[])
"""


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
