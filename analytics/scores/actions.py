"""Paying for actions, each once: the one function behind `scores/update`, action tokens and actions in batches.

In one transaction: replay?, lock the user, catalog, limits, the ledger with the user's score and hour, the audit, the
outbox. A replay is answered before any limit, as it was answered the first time.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cached_property, partial
from typing import Any
from uuid import UUID, uuid4

import orjson
from prometheus_client import Counter
from sqlalchemy import text

from analytics import user_changes
from analytics.boards import user_numbers
from analytics.claimed_times import MAX_AHEAD, is_plausible
from analytics.scores import audit, integrity, ledger, limits, tokens
from analytics.scores.catalog import UnknownAction
from analytics.scores.integrity import Rule
from analytics.scores.tokens import ActionTokenExpired, Claims
from tenants import users
from tenants.db import Tx
from tenants.errors import Conflict, DomainError, Forbidden, Invalid
from tenants.settings import TenantSettings
from tenants.throttle import State, TooMany

# In a transaction's `info`: how many payments it has made so far.
PENDING = "payments"
MAX_METADATA_BYTES = 4096
# What an action was done to.
OBJECT = re.compile(r"[A-Za-z0-9._~:@/-]{1,128}\Z")

PAID = Counter("plaudit_points_paid_total", "Points paid for actions.", ["tenant"])


class Verification(StrEnum):
    """Who claims that it was done."""

    SESSION = "session"  # the user
    TOKEN = "token"  # noqa: S105  the user, with a token of the tenant's app
    CLIENT = "client"  # the tenant's app


class UserSuspended(Forbidden):
    code = "user_suspended"
    title = "This user is suspended or does not exist any more"


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
    title = "This would bring more points than the action pays in a day"


class DailyLimitReached(Conflict):
    code = "daily_limit_reached"
    title = "This was done as many times as the action allows in a day"


class Cooldown(Conflict):
    code = "cooldown"
    title = "It is too soon to do this again"


class AlreadyDone(Conflict):
    code = "already_done"
    title = "This is paid once for each object, and was paid before"


class ImpossibleTime(Invalid):
    code = "impossible_time"
    title = "The time cannot be right"


@dataclass(frozen=True)
class ActionClaim:
    """Somebody's claim that a user did an action."""

    user_id: UUID
    action_type: str
    source: str  # unique for ever
    verification: Verification
    object: str | None = None
    # The points that an action token allows at most, and those that the caller asks for.
    max_points: int | None = None
    wanted_points: int | None = None
    client_time: datetime | None = None
    ip: str | None = None
    agent: str | None = None
    metadata: Mapping[str, Any] | None = None
    client_info: Mapping[str, Any] | None = None
    # Whether the sender may vouch for actions that need a token.
    is_vouched: bool = False
    # What must be equal when the same source is sent again.
    payload: Mapping[str, Any] = field(default_factory=dict)
    token: Claims | None = None

    @cached_property
    def payload_hash(self) -> bytes:
        payload = {"user": str(self.user_id), "action": self.action_type, **self.payload}
        return hashlib.sha256(orjson.dumps(payload, option=orjson.OPT_SORT_KEYS, default=str)).digest()


@dataclass(frozen=True)
class Payment:
    """What was paid: the same answer however often the claim is sent."""

    score: int
    delta: int
    rank: int | None
    event_id: UUID | None
    is_replay: bool
    # The state of the user's rate limit; None for a replay.
    limit: State | None = None


def pay(tx: Tx, claim: ActionClaim, settings: TenantSettings, *, now: datetime) -> Payment:
    """Pay for an action, once. Changes nothing when it raises."""
    earlier = _replay(tx, claim)
    if earlier is not None:
        return earlier
    user = ledger.lock_user(tx, claim.user_id)
    earlier = _replay(tx, claim)  # whoever had the lock before us may have paid it
    if earlier is not None:
        return earlier
    if user is None or user.is_suspended:
        raise UserSuspended
    facts = _payment_facts(tx, claim, now=now)
    _check(claim, facts, now=now)
    points = _points(claim, facts)
    _check_daily_cap(claim, facts, points, now=now)
    if user.score + points > ledger.MAX_SCORE:
        raise ledger.TooHigh
    state = limits.require_user(
        per_minute=settings.limits.score_updates_per_minute,
        updates=facts.updates,
        oldest_at=facts.oldest_update_at,
        now=now,
    )
    pending = int(tx.info.get(PENDING, 0))
    limits.breakers.require(tx.tenant, max_per_minute=settings.limits.score_spike_per_minute, pending=pending)
    event_id = uuid4()
    answers_rank = claim.verification is not Verification.CLIENT  # a batch's answer has no ranks
    rank = user_numbers.rank_for(tx, user.score + points) if answers_rank else None
    score = ledger.add_entry(
        tx,
        user,
        source=claim.source,
        delta=points,
        at=now,
        payload_hash=claim.payload_hash,
        action_type=claim.action_type,
        event_id=event_id,
        rank=rank,
        once_key=_once_key(claim, normal_object(claim.object)) if facts.once_per_object else None,
    )
    if score is None:  # the same source came for another user at the same moment
        raise PayloadDiffers
    if claim.token is not None:
        tokens.consume(tx, claim.token)
    audit.write(tx, claim, event_id, points, now=now)
    tx.info[PENDING] = pending + 1
    tx.after_commit(partial(_count_payment, tx.tenant, points))
    in_last_hour, rule = facts.points_in_last_hour + points, settings.integrity
    is_flagged = in_last_hour > rule.points_per_hour and integrity.raise_flag(
        tx,
        user.id,
        Rule.POINTS_PER_HOUR,
        {"points": in_last_hour, "most": rule.points_per_hour},
        state=integrity.State.SUSPENDED if rule.suspend_automatically else integrity.State.OPEN,
        now=now,
    )
    if is_flagged and rule.suspend_automatically:
        user_changes.change_user(tx, users.get(tx, user.id), {"suspended": True}, now=now)
    return Payment(score, points, rank, event_id, is_replay=False, limit=state)


def _count_payment(tenant_id: str, points: int) -> None:
    PAID.labels(tenant_id).inc(points)
    limits.breakers.passed(tenant_id)


def pay_all(
    tx: Tx, claims: Sequence[ActionClaim], settings: TenantSettings, *, now: datetime
) -> list[Payment | DomainError]:
    """Pay or refuse each by itself; in the order of their users, so that two batches never deadlock."""
    outcomes: dict[int, Payment | DomainError] = {}
    paid_before = ledger.known(tx, [claim.source for claim in claims])
    refused_users: dict[UUID, DomainError] = {}  # who get nothing more, whatever they claim
    for place, claim in sorted(enumerate(claims), key=lambda pair: str(pair[1].user_id)):
        if claim.user_id in refused_users and claim.source not in paid_before:
            outcomes[place] = refused_users[claim.user_id]
            continue
        try:
            outcomes[place] = pay(tx, claim, settings, now=now)
        except DomainError as refused:
            outcomes[place] = refused
            if isinstance(refused, TooMany | UserSuspended | limits.TooBusy):
                refused_users[claim.user_id] = refused
    return [outcomes[place] for place in range(len(claims))]


def flag_impossible_time(tx: Tx, claim: ActionClaim, *, now: datetime) -> None:
    """Flag a claim from the future: such claims are forged more often than sent by a broken clock."""
    if claim.client_time is not None and claim.client_time > now + MAX_AHEAD:
        ahead = min(int((claim.client_time - now).total_seconds()), 2**53)
        integrity.raise_flag(tx, claim.user_id, Rule.IMPOSSIBLE_CLOCK, {"seconds_ahead": ahead}, now=now)


def _replay(tx: Tx, claim: ActionClaim) -> Payment | None:
    entry = ledger.entry_for(tx, claim.source)
    if entry is None:
        return None
    if entry.payload_hash != claim.payload_hash:
        raise PayloadDiffers
    return Payment(entry.score, entry.delta, entry.rank, entry.event_id, is_replay=True)


def _payment_facts(tx: Tx, claim: ActionClaim, *, now: datetime) -> Any:
    """Everything a payment depends on, in one query: the catalog's terms, and what this user was paid lately."""
    return tx.run(
        _PAYMENT_FACTS,
        {
            "tenant": tx.tenant,
            "user": claim.user_id,
            "action": claim.action_type,
            "once": _once_key(claim, normal_object(claim.object)),
            "once_as_written": _once_key(claim, claim.object),  # as older entries have it
            "today": _midnight(now),
            "hour_ago": now - integrity.WINDOW,
            "minute_ago": now - timedelta(seconds=limits.WINDOW_S),
            "rule": Rule.POINTS_PER_HOUR.value,
        },
    ).one()


def normal_object(spelling: str | None) -> str:
    """An object in the form that is compared: `Docs//Home/` is `docs/home`."""
    return "/".join(part for part in (spelling or "").casefold().split("/") if part)


def _once_key(claim: ActionClaim, spelling: str | None) -> str:
    """Unique for what is paid once; a hash, since an object may identify a person, and the ledger is kept for ever."""
    key = f"{claim.user_id}:{claim.action_type}:{spelling or ''}"
    return hashlib.sha256(key.encode()).hexdigest()


def _midnight(now: datetime) -> datetime:
    return datetime.combine(now.astimezone(UTC).date(), datetime.min.time(), UTC)


def _until_tomorrow_s(now: datetime) -> float:
    return (_midnight(now) + timedelta(days=1) - now).total_seconds()


_PAYMENT_FACTS = text("""
    SELECT c.points, c.daily_cap, c.daily_limit, c.cooldown_s, c.once_per_object, c.requires_token, c.enabled,
           d.times_today, d.points_today,
           (SELECT max(at) FROM score_ledger WHERE tenant_id = :tenant AND user_id = :user AND action_type = :action
            AND reverses IS NULL) AS last_at,
           EXISTS (SELECT FROM score_ledger WHERE tenant_id = :tenant
            AND once_key IN (:once, :once_as_written)) AS was_done,
           (SELECT COALESCE(sum(CASE WHEN l.reverses IS NULL THEN l.delta ELSE (
                SELECT l.delta FROM score_ledger o  -- reversing an older payment gives no room now
                WHERE o.tenant_id = :tenant AND o.id = l.reverses AND o.at > f.since) END), 0)::bigint
            FROM score_ledger l WHERE l.tenant_id = :tenant AND l.user_id = :user AND l.at > f.since
           ) AS points_in_last_hour,
           u.updates, u.oldest_update_at
    FROM (SELECT GREATEST(CAST(:hour_ago AS timestamptz), max(resolved_at)) AS since FROM integrity_flags
          WHERE tenant_id = :tenant AND user_id = :user AND rule = :rule AND state = 'dismissed') f
    CROSS JOIN (SELECT count(*) AS updates, min(at) AS oldest_update_at FROM score_ledger
                WHERE tenant_id = :tenant AND user_id = :user AND at > :minute_ago AND reverses IS NULL) u
    -- A payment of today that was taken back still counts for the day: a reversal gives no room to do it again.
    CROSS JOIN (SELECT count(*) AS times_today, COALESCE(sum(delta), 0) AS points_today FROM score_ledger
                WHERE tenant_id = :tenant AND user_id = :user AND action_type = :action AND at >= :today
                AND reverses IS NULL) d
    LEFT JOIN action_catalog c ON c.tenant_id = :tenant AND c.type = :action
""")


def _check(claim: ActionClaim, facts: Any, *, now: datetime) -> None:
    """Whether this can be paid at all."""
    if claim.token is not None and claim.token.expires_at <= now:
        raise ActionTokenExpired
    if claim.client_time is not None and not is_plausible(claim.client_time, now=now):
        raise ImpossibleTime.field("timestamp", "within the last 7 days, and at most 5 minutes ahead")
    if facts.points is None or not facts.enabled:
        raise UnknownAction(claim.action_type, disabled=facts.points is not None)
    if facts.once_per_object and facts.was_done:
        raise AlreadyDone
    _check_daily_limit_and_cooldown(claim, facts, now=now)


def _points(claim: ActionClaim, facts: Any) -> int:
    """The server decides: the catalog's points, or as many of them as a token of the tenant's app allows."""
    if facts.requires_token and claim.verification is not Verification.TOKEN and not claim.is_vouched:
        raise TokenRequired
    if claim.verification is Verification.TOKEN:
        allowed = min(claim.max_points or facts.points, facts.points)
        if claim.wanted_points is not None and not 1 <= claim.wanted_points <= allowed:
            raise AboveCatalog.field("score_delta", f"from 1 to {allowed}")
        return int(claim.wanted_points or allowed)
    if claim.wanted_points is not None and not 0 <= claim.wanted_points <= facts.points:
        raise AboveCatalog.field("scoreDelta", f"at most {facts.points} for {claim.action_type}")
    return int(facts.points)


def _check_daily_cap(claim: ActionClaim, facts: Any, points: int, *, now: datetime) -> None:
    """What would pass the cap is refused whole, never paid in part."""
    if facts.daily_cap is not None and facts.points_today + points > facts.daily_cap:
        raise DailyCapReached(
            f"{claim.action_type} pays at most {facts.daily_cap} points a day (UTC): "
            f"{facts.points_today} were paid today, and this would add {points}",
            retry_after_s=_until_tomorrow_s(now),
        )


def _check_daily_limit_and_cooldown(claim: ActionClaim, facts: Any, *, now: datetime) -> None:
    if facts.daily_limit is not None and facts.times_today >= facts.daily_limit:
        raise DailyLimitReached(
            f"{claim.action_type} is paid at most {facts.daily_limit} times a day (UTC): "
            f"it was paid {facts.times_today} times today",
            retry_after_s=_until_tomorrow_s(now),
        )
    if facts.cooldown_s is not None and facts.last_at is not None:
        wait = facts.cooldown_s - (now - facts.last_at).total_seconds()
        if wait > 0:
            raise Cooldown(f"{claim.action_type} can be done again in {int(wait) + 1} s", retry_after_s=wait)
