"""Writing views and likes: what a request wants written, and the transaction that writes it.

`analytics.ingest.group_commit` gathers the requests that are in flight together; `commit_together` writes them.
Everything is written in one order (tenant, then counters, event ids, buckets, users, likes; each by key), so commits
of different processes cannot deadlock.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from enum import Enum
from typing import Any, NamedTuple, assert_never
from uuid import UUID

from sqlalchemy import BigInteger, Date, Index, Uuid, text
from sqlalchemy.orm import Mapped, mapped_column

from analytics import outbox
from analytics.ingest import likes
from analytics.ingest.likes import LikeChange
from analytics.outbox import Kind
from tenants import users
from tenants.credentials import ClientToken
from tenants.db import Base, DeletedWithTenant, TenantOwned, Tx, array, run_in_one_trip, shared_tx
from tenants.signing import BadToken


class EventKind(Enum):
    VIEW = "view"
    LIKE = "like"
    UNLIKE = "unlike"

    @property
    def gives_like(self) -> bool | None:
        """Whether the user likes the page from then on; None: it is about no like."""
        match self:
            case EventKind.VIEW:
                return None
            case EventKind.LIKE:
                return True
            case EventKind.UNLIKE:
                return False
            case _:
                assert_never(self)


class Result(Enum):
    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    UNKNOWN_PAGE = "unknown_page"
    UNKNOWN_USER = "unknown_user"
    LIMITED = "limited"  # the user would be one more than the tenant may have


@dataclass(frozen=True, slots=True)
class Item:
    """One checked view, like or unlike."""

    kind: EventKind
    page: str
    at: datetime
    event_key: UUID | None = None
    user: str | UUID | None = None  # the tenant's own id of the user, or ours


@dataclass(slots=True)
class Outcome:
    result: Result
    likes: int | None = None


@dataclass(slots=True, eq=False)
class WriteRequest:
    """What one request wants written, and after the commit the outcome of each item."""

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
    """An event id that was counted; kept until long after it was last received."""

    __tablename__ = "seen_events"
    __table_args__ = (Index("ix_seen_events_seen_on", "seen_on"),)

    event_key: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    seen_on: Mapped[date] = mapped_column(Date)


class RejectionsHour(DeletedWithTenant, Base):
    """How many events were refused, by hour and reason."""

    __tablename__ = "ingest_rejections_hour"

    bucket_hour: Mapped[datetime] = mapped_column(primary_key=True)
    reason: Mapped[str] = mapped_column(primary_key=True)
    rejected: Mapped[int] = mapped_column(BigInteger)


def apply(tx: Tx, request: WriteRequest) -> None:
    """Write one request inside a transaction that the caller commits."""
    _TenantWrite(tx.tenant, [request]).write(tx)
    outbox.wake_after_commit(tx)


def commit_together(requests: Sequence[WriteRequest], shared: bool) -> list[WriteRequest]:
    """Write these requests in one transaction; `shared` by tenants, it waits for locks only briefly.

    Returns the requests that are still to be written: where one of a tenant's tokens is no longer valid, nothing of
    that tenant was written, and its other requests belong in the next transaction. All others have their outcomes.
    """
    by_tenant: dict[str, list[WriteRequest]] = {}
    for request in requests:
        request.outcomes, request.error = [], None
        by_tenant.setdefault(request.tenant_id, []).append(request)
    writes = [_TenantWrite(tenant_id, by_tenant[tenant_id]) for tenant_id in sorted(by_tenant)]
    if any(write.has_likes for write in writes):
        with shared_tx(writes[0].tenant_id, shared=shared) as enter:
            for write in writes:
                write.write(enter(write.tenant_id))
        return []
    rows = run_in_one_trip([(write.tenant_id, _RECORD, write.parameters()) for write in writes], shared=shared)
    left: list[WriteRequest] = []
    for write, row in zip(writes, rows, strict=True):
        write.assign_outcomes(_Recorded(*row))
        left += write.refuse_invalid_tokens()
    return left


class _Recorded(NamedTuple):
    """What the SQL function record_events returns (migrations/versions/0006_one_trip.py)."""

    invalid_tokens: list[str] | None
    ids: list[int | None] | None
    accepted: list[int] | None


class _TenantWrite:
    """What one tenant's requests write in a commit."""

    def __init__(self, tenant_id: str, requests: Sequence[WriteRequest]) -> None:
        self.tenant_id = tenant_id
        self.requests = requests
        self.items = [item for request in requests for item in request.items]
        self.has_likes = any(item.kind.gives_like is not None for item in self.items)
        # External id of each page → its position among them.
        self._pages = {page: place for place, page in enumerate(dict.fromkeys(item.page for item in self.items), 1)}
        self._invalid_tokens: Sequence[str] = ()

    def write(self, tx: Tx) -> None:
        """Step by step, in an open transaction."""
        row = _Recorded(*tx.raw.exec_driver_sql(_RECORD, self.parameters()).one())
        likes_to_apply = self.assign_outcomes(row)
        if likes_to_apply:
            changed = self._apply_likes(tx, likes_to_apply, dict(zip(self._pages, row.ids or (), strict=True)))
            outbox.mark_stale(tx, Kind.PAGE, changed)
        left = self.refuse_invalid_tokens()
        if left:
            _TenantWrite(self.tenant_id, left).write(tx)

    def parameters(self) -> tuple[Any, ...]:
        """For record_events: tokens, pages, event ids, views and rejections; everything but the likes."""
        tokens = {request.token for request in self.requests if request.token is not None}
        rejected: Counter[str] = Counter()
        for request in self.requests:
            rejected.update(request.rejected or {})
        return (
            self.tenant_id,
            list(self._pages),
            array(self._pages[item.page] for item in self.items),
            array(int(item.at.timestamp()) // 3600 for item in self.items),
            array(item.event_key.hex if item.event_key else "NULL" for item in self.items),
            array("t" if item.kind is EventKind.VIEW else "f" for item in self.items),
            [token.client_id for token in tokens],
            [token.jti for token in tokens],
            self.requests[0].now,
            list(rejected),
            array(rejected.values()),
        )

    def assign_outcomes(self, row: _Recorded) -> list[tuple[Item, Outcome]]:
        """Give every item its outcome; returns the likes that are still to be applied."""
        if row.invalid_tokens is not None:
            self._invalid_tokens = row.invalid_tokens
            return []
        known = {page for page, page_id in zip(self._pages, row.ids or (), strict=True) if page_id is not None}
        accepted = frozenset(row.accepted or ())
        likes_to_apply: list[tuple[Item, Outcome]] = []
        place = 0
        for request in self.requests:
            for item in request.items:
                place += 1
                if place in accepted:
                    outcome = Outcome(Result.ACCEPTED)
                    if item.kind.gives_like is not None:
                        likes_to_apply.append((item, outcome))
                else:
                    outcome = Outcome(Result.DUPLICATE if item.page in known else Result.UNKNOWN_PAGE)
                request.outcomes.append(outcome)
        return likes_to_apply

    def refuse_invalid_tokens(self) -> list[WriteRequest]:
        """Where some tokens are no longer valid nothing was written: fail their requests, and return the others."""
        if not self._invalid_tokens:
            return []
        for request in self.requests:
            if request.token is not None and request.token.jti in self._invalid_tokens:
                request.error = BadToken()
        return [request for request in self.requests if request.error is None]

    def _apply_likes(self, tx: Tx, wanted: Sequence[tuple[Item, Outcome]], pages: Mapping[str, int | None]) -> set[int]:
        """Returns the pages whose likes changed."""
        user_ids: dict[str | UUID | None, UUID] = {}
        external = {item.user for item, _ in wanted if isinstance(item.user, str)}
        user_ids.update(users.ensure_all_external(tx, external, now=self.requests[0].now))
        no_room = external - user_ids.keys()
        user_ids |= {item.user: item.user for item, _ in wanted if isinstance(item.user, UUID)}
        locked = users.lock_users(tx, set(user_ids.values()))
        user_ids = {name: user_id for name, user_id in user_ids.items() if user_id in locked}
        changes: list[LikeChange] = []
        applied: list[Outcome] = []
        refused: list[tuple[Item, Outcome]] = []
        for item, outcome in wanted:
            page_id = pages[item.page]
            if item.user not in user_ids or page_id is None:
                outcome.result = Result.LIMITED if item.user in no_room else Result.UNKNOWN_USER
                refused.append((item, outcome))
                continue
            changes.append(LikeChange(page_id, user_ids[item.user], bool(item.kind.gives_like), item.at))
            applied.append(outcome)
        self._record_refused(tx, refused)
        after, changed_pages = likes.apply_likes(tx, changes)
        for outcome, count in zip(applied, after, strict=True):
            outcome.likes = count
        return changed_pages

    def _record_refused(self, tx: Tx, refused: Sequence[tuple[Item, Outcome]]) -> None:
        """Likes refused this late are counted as rejected, and their event ids forgotten: they can be sent again."""
        if not refused:
            return
        keys = [item.event_key for item, _ in refused if item.event_key is not None]
        tx.execute(_FORGET_EVENTS, {"tenant": tx.tenant, "keys": keys})
        for result, number in Counter(outcome.result for _, outcome in refused).items():
            reason = "limited" if result is Result.LIMITED else "invalid"
            counted = {"reason": reason, "rejected": number, "now": self.requests[0].now}
            tx.execute(_COUNT_REFUSED, {"tenant": tx.tenant, **counted})


_FORGET_EVENTS = text("DELETE FROM seen_events WHERE tenant_id = :tenant AND event_key = ANY(CAST(:keys AS uuid[]))")
_COUNT_REFUSED = text("""
    INSERT INTO ingest_rejections_hour AS r (tenant_id, bucket_hour, reason, rejected)
    VALUES (:tenant, date_trunc('hour', CAST(:now AS timestamptz), 'UTC'), :reason, :rejected)
    ON CONFLICT (tenant_id, bucket_hour, reason) DO UPDATE SET rejected = r.rejected + EXCLUDED.rejected
""")

# A function, because its plans are cached: planning was half of a commit's cost.
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
