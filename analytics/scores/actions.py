"""What users do, paid once: the one function behind `scores/update`, action tokens, and actions in batches.

In one transaction: replay?, the user held, catalog, limits, the audit (`action_events`), the ledger, the user's score
and hour, the outbox. A replay is answered before any limit, as it was answered the first time.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cached_property, partial
from typing import Any
from uuid import UUID, uuid4

import orjson
from prometheus_client import Counter
from sqlalchemy import BigInteger, Index, LargeBinary, Uuid, select, text, tuple_
from sqlalchemy.dialects.postgresql import INET, JSONB
from sqlalchemy.orm import Mapped, mapped_column

from analytics.boards import user_numbers
from analytics.ingest.events import NEWEST, OLDEST
from analytics.scores import integrity, ledger, limits, tokens
from analytics.scores.catalog import UnknownAction
from analytics.scores.integrity import Rule
from analytics.scores.tokens import ActionTokenExpired, Claims
from tenants import sessions, users
from tenants.db import Base, TenantOwned, Tx
from tenants.errors import Conflict, DomainError, Forbidden, Invalid
from tenants.settings import TenantSettings
from tenants.throttle import State, TooMany

AGENT_MAX = 512
# In a transaction's `info`: how many payments it holds so far.
PENDING = "payments"
METADATA_MAX_BYTES = 4096
# What an action was done to.
OBJECT = re.compile(r"[A-Za-z0-9._~:@/-]{1,128}\Z")

PAID = Counter("plaudit_points_paid_total", "Points paid for actions.", ["tenant"])


class Verification(StrEnum):
    """Who says that it was done."""

    SESSION = "session"  # the user
    TOKEN = "token"  # noqa: S105  the user, with a token of the tenant's app
    CLIENT = "client"  # the tenant's app


class ActionEvent(TenantOwned, Base):
    """The audit: how an action came in. Kept for a while; the ledger is kept for ever."""

    __tablename__ = "action_events"
    __table_args__ = (
        Index("ix_action_events_user", "tenant_id", "user_id", "received_at"),
        {"postgresql_partition_by": "RANGE (received_at)"},
    )

    received_at: Mapped[datetime] = mapped_column(primary_key=True)
    id: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    user_id: Mapped[UUID] = mapped_column(Uuid)
    action_type: Mapped[str]
    source: Mapped[str]
    payload_hash: Mapped[bytes] = mapped_column(LargeBinary)
    verification: Mapped[str]
    client_time: Mapped[datetime | None]
    points: Mapped[int] = mapped_column(BigInteger)
    object: Mapped[str | None]
    ip: Mapped[str | None] = mapped_column(INET)
    agent: Mapped[str | None]
    client_info: Mapped[dict[str, Any] | None] = mapped_column(JSONB)
    metadata_: Mapped[dict[str, Any] | None] = mapped_column("metadata", JSONB)


class UserSuspended(Forbidden):
    code = "user_suspended"
    title = "This user is suspended, or not there any more"


class TokenRequired(Forbidden):
    code = "action_token_required"
    title = "This action needs an action token"


class AboveCatalog(Invalid):
    code = "score_above_catalog"
    title = "That is more than this action is worth"


class PayloadDiffers(Invalid):
    code = "payload_differs"
    title = "This was done before, with another payload"


class DailyCapReached(Conflict):
    code = "daily_cap_reached"
    title = "This was done as often as it counts in a day"


class Cooldown(Conflict):
    code = "cooldown"
    title = "It is too soon to do this again"


class AlreadyDone(Conflict):
    code = "already_done"
    title = "This counts once for each object, and was done"


class ImpossibleTime(Invalid):
    code = "impossible_time"
    title = "The time cannot be right"


@dataclass(frozen=True)
class Deed:
    """An action that somebody says was done."""

    user_id: UUID
    action_type: str
    source: str  # unique for ever
    verification: Verification
    object: str | None = None
    # The most it may bring (an action token says so), and what the caller asks for.
    most: int | None = None
    wanted: int | None = None
    client_time: datetime | None = None
    ip: str | None = None
    agent: str | None = None
    metadata: Mapping[str, Any] | None = None
    client_info: Mapping[str, Any] | None = None
    # Whether whoever sends it may vouch for actions that need a token.
    is_vouched: bool = False
    # What must be the same when the same source comes again.
    payload: Mapping[str, Any] = field(default_factory=dict)
    token: Claims | None = None

    @cached_property
    def payload_hash(self) -> bytes:
        said = {"user": str(self.user_id), "action": self.action_type, **self.payload}
        return hashlib.sha256(orjson.dumps(said, option=orjson.OPT_SORT_KEYS, default=str)).digest()


@dataclass(frozen=True)
class Paid:
    """What came of it: the same however often it is asked."""

    score: int
    delta: int
    rank: int | None
    event_id: UUID | None
    replay: bool
    # Where the user stands with the limit; None for a replay.
    limit: State | None = None


def perform(tx: Tx, deed: Deed, settings: TenantSettings, *, now: datetime) -> Paid:
    """Pay for an action once; or say why not. Changes nothing when it raises."""
    earlier = _replay(tx, deed)
    if earlier is not None:
        return earlier
    user = ledger.hold(tx, deed.user_id)
    earlier = _replay(tx, deed)  # whoever held the user before us may have been quicker
    if earlier is not None:
        return earlier
    if user is None or user.is_suspended:
        raise UserSuspended
    look = _look(tx, deed, now=now)
    _check(deed, look, now=now)
    points = _points(deed, look)
    if user.score + points > ledger.MOST_SCORE:
        raise ledger.TooHigh
    state = limits.require_user(
        per_minute=settings.limits.score_updates_per_minute,
        updates=look.updates,
        oldest_at=look.oldest_update_at,
        now=now,
    )
    pending = int(tx.info.get(PENDING, 0))
    limits.breakers.require(tx.tenant, most_per_minute=settings.limits.score_spike_per_minute, pending=pending)
    event_id = uuid4()
    told_rank = deed.verification is not Verification.CLIENT  # nobody is told of a batch's
    rank = user_numbers.rank_for(tx, user.score + points) if told_rank else None
    score = ledger.enter(
        tx,
        user,
        source=deed.source,
        delta=points,
        at=now,
        payload_hash=deed.payload_hash,
        action_type=deed.action_type,
        event_id=event_id,
        rank=rank,
        once_key=_once_key(deed, normal_object(deed.object)) if look.once_per_object else None,
    )
    if score is None:  # the same source came for another user at the same moment
        raise PayloadDiffers
    if deed.token is not None:
        tokens.consume(tx, deed.token)
    _write_audit(tx, deed, event_id, points, now=now)
    tx.info[PENDING] = pending + 1
    tx.after_commit(partial(_count_payment, tx.tenant, points))
    got, rule = look.in_last_hour + points, settings.integrity
    is_flagged = got > rule.points_per_hour and integrity.raise_flag(
        tx,
        user.id,
        Rule.POINTS_PER_HOUR,
        {"points": got, "most": rule.points_per_hour},
        state=integrity.State.SUSPENDED if rule.suspend_automatically else integrity.State.OPEN,
        now=now,
    )
    if is_flagged and rule.suspend_automatically:
        tx.after_commit(_suspend(tx, user.id, now=now))
    return Paid(score, points, rank, event_id, replay=False, limit=state)


def _count_payment(tenant_id: str, points: int) -> None:
    PAID.labels(tenant_id).inc(points)
    limits.breakers.passed(tenant_id)


def perform_all(tx: Tx, deeds: Sequence[Deed], settings: TenantSettings, *, now: datetime) -> list[Paid | DomainError]:
    """Many at once, each paid or refused by itself; in the order of their users, so that two batches never deadlock."""
    outcomes: dict[int, Paid | DomainError] = {}
    done_before = ledger.known(tx, [deed.source for deed in deeds])
    over: dict[UUID, DomainError] = {}  # users who get nothing more, whatever it is
    for place, deed in sorted(enumerate(deeds), key=lambda pair: str(pair[1].user_id)):
        if deed.user_id in over and deed.source not in done_before:
            outcomes[place] = over[deed.user_id]
            continue
        try:
            outcomes[place] = perform(tx, deed, settings, now=now)
        except DomainError as refused:
            outcomes[place] = refused
            if isinstance(refused, TooMany | UserSuspended | limits.TooBusy):
                over[deed.user_id] = refused
    return [outcomes[place] for place in range(len(deeds))]


def note_impossible_time(tx: Tx, deed: Deed, *, now: datetime) -> None:
    """A clock that is ahead is worth a look: such claims are made up more often than sent by a broken clock."""
    if deed.client_time is not None and deed.client_time > now + NEWEST:
        ahead = min(int((deed.client_time - now).total_seconds()), 2**53)
        integrity.raise_flag(tx, deed.user_id, Rule.IMPOSSIBLE_CLOCK, {"seconds_ahead": ahead}, now=now)


def of_user(tx: Tx, user_id: UUID, *, before: tuple[datetime, UUID] | None, limit: int) -> list[ActionEvent]:
    """The audit of a user, newest first."""
    wanted = (
        select(ActionEvent)
        .where(ActionEvent.user_id == user_id)
        .order_by(ActionEvent.received_at.desc(), ActionEvent.id.desc())
        .limit(limit)
    )
    if before is not None:
        wanted = wanted.where(tuple_(ActionEvent.received_at, ActionEvent.id) < before)
    return list(tx.scalars(wanted))


def _replay(tx: Tx, deed: Deed) -> Paid | None:
    entry = ledger.entry_for(tx, deed.source)
    if entry is None:
        return None
    if entry.payload_hash != deed.payload_hash:
        raise PayloadDiffers
    return Paid(entry.score, entry.delta, entry.rank, entry.event_id, replay=True)


def _suspend(tx: Tx, user_id: UUID, *, now: datetime) -> Callable[[], None]:
    return sessions.change_user(tx, users.get(tx, user_id), {"suspended": True}, now=now)[1]


def _look(tx: Tx, deed: Deed, *, now: datetime) -> Any:
    """What there is to know before paying, at once: the catalog's terms, and what this user did of late."""
    return tx.run(
        _LOOK,
        {
            "tenant": tx.tenant,
            "user": deed.user_id,
            "action": deed.action_type,
            "once": _once_key(deed, normal_object(deed.object)),
            "once_as_written": _once_key(deed, deed.object),  # as older entries have it
            "today": _midnight(now),
            "hour_ago": now - integrity.WINDOW,
            "minute_ago": now - timedelta(seconds=limits.WINDOW_S),
            "rule": Rule.POINTS_PER_HOUR.value,
        },
    ).one()


def normal_object(spelling: str | None) -> str:
    """An object in the form that is compared: `Docs//Home/` is `docs/home`."""
    return "/".join(part for part in (spelling or "").casefold().split("/") if part)


def _once_key(deed: Deed, spelling: str | None) -> str:
    """Of what counts once; a hash, since an object may say who somebody is, and the ledger stays."""
    said = f"{deed.user_id}:{deed.action_type}:{spelling or ''}"
    return hashlib.sha256(said.encode()).hexdigest()


def _midnight(now: datetime) -> datetime:
    return datetime.combine(now.astimezone(UTC).date(), datetime.min.time(), UTC)


_LOOK = text("""
    SELECT c.points, c.daily_cap, c.cooldown_s, c.once_per_object, c.requires_token, c.enabled,
           (SELECT count(*) FROM score_ledger WHERE tenant_id = :tenant AND user_id = :user AND action_type = :action
            AND at >= :today AND reverses IS NULL) AS done_today,
           (SELECT max(at) FROM score_ledger WHERE tenant_id = :tenant AND user_id = :user AND action_type = :action
            AND reverses IS NULL) AS last_at,
           EXISTS (SELECT FROM score_ledger WHERE tenant_id = :tenant
            AND once_key IN (:once, :once_as_written)) AS was_done,
           (SELECT COALESCE(sum(CASE WHEN l.reverses IS NULL THEN l.delta ELSE (
                SELECT l.delta FROM score_ledger o  -- what was given before gives no room now by being taken back
                WHERE o.tenant_id = :tenant AND o.id = l.reverses AND o.at > f.since) END), 0)::bigint
            FROM score_ledger l WHERE l.tenant_id = :tenant AND l.user_id = :user AND l.at > f.since
           ) AS in_last_hour,
           u.updates, u.oldest_update_at
    FROM (SELECT GREATEST(CAST(:hour_ago AS timestamptz), max(resolved_at)) AS since FROM integrity_flags
          WHERE tenant_id = :tenant AND user_id = :user AND rule = :rule AND state = 'dismissed') f
    CROSS JOIN (SELECT count(*) AS updates, min(at) AS oldest_update_at FROM score_ledger
                WHERE tenant_id = :tenant AND user_id = :user AND at > :minute_ago AND reverses IS NULL) u
    LEFT JOIN action_catalog c ON c.tenant_id = :tenant AND c.type = :action
""")


def _check(deed: Deed, look: Any, *, now: datetime) -> None:
    """Whether this can be paid for at all, and now."""
    if deed.token is not None and deed.token.expires_at <= now:
        raise ActionTokenExpired
    if deed.client_time is not None and not now - OLDEST <= deed.client_time <= now + NEWEST:
        raise ImpossibleTime.field("timestamp", "within the last 7 days, and at most 5 minutes ahead")
    if look.points is None or not look.enabled:
        raise UnknownAction(deed.action_type, disabled=look.points is not None)
    if look.once_per_object and look.was_done:
        raise AlreadyDone
    _check_pace(deed, look, now=now)


def _points(deed: Deed, terms: Any) -> int:
    """The server decides: what the catalog says, or what a token of the tenant's app allows of it."""
    if terms.requires_token and deed.verification is not Verification.TOKEN and not deed.is_vouched:
        raise TokenRequired
    if deed.verification is Verification.TOKEN:
        most = min(deed.most or terms.points, terms.points)
        if deed.wanted is not None and not 1 <= deed.wanted <= most:
            raise AboveCatalog.field("score_delta", f"from 1 to {most}")
        return int(deed.wanted or most)
    if deed.wanted is not None and not 0 <= deed.wanted <= terms.points:
        raise AboveCatalog.field("scoreDelta", f"at most {terms.points} for {deed.action_type}")
    return int(terms.points)


def _check_pace(deed: Deed, look: Any, *, now: datetime) -> None:
    if look.daily_cap is not None and look.done_today >= look.daily_cap:
        raise DailyCapReached(
            f"{deed.action_type} counts {look.daily_cap} times a day (UTC)",
            retry_after_s=(_midnight(now) + timedelta(days=1) - now).total_seconds(),
        )
    if look.cooldown_s is not None and look.last_at is not None:
        wait = look.cooldown_s - (now - look.last_at).total_seconds()
        if wait > 0:
            raise Cooldown(f"{deed.action_type} counts again in {int(wait) + 1} s", retry_after_s=wait)


def _write_audit(tx: Tx, deed: Deed, event_id: UUID, points: int, *, now: datetime) -> None:
    tx.run(
        _AUDIT,
        {
            "tenant": tx.tenant,
            "now": now,
            "id": event_id,
            "user": deed.user_id,
            "action": deed.action_type,
            "source": deed.source,
            "hash": deed.payload_hash,
            "verification": deed.verification.value,
            "client_time": deed.client_time,
            "points": points,
            "object": deed.object,
            "ip": deed.ip,
            "agent": (deed.agent or "")[:AGENT_MAX] or None,
            "client_info": _json(deed.client_info),
            "metadata": _json(deed.metadata),
        },
    )


_AUDIT = text("""
    INSERT INTO action_events (tenant_id, received_at, id, user_id, action_type, source, payload_hash, verification,
                               client_time, points, object, ip, agent, client_info, metadata)
    VALUES (:tenant, :now, :id, :user, :action, :source, :hash, :verification, :client_time, :points, :object,
            CAST(:ip AS inet), :agent, CAST(:client_info AS jsonb), CAST(:metadata AS jsonb))
""")


def _json(value: Mapping[str, Any] | None) -> str | None:
    return orjson.dumps(value).decode() if value else None
