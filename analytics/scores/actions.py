"""Claims that a user did an action, and the rules by which a claim is paid. `analytics.scores.payments` pays them."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cached_property
from typing import Any
from uuid import UUID

import orjson

from analytics.claimed_times import MAX_AHEAD, is_plausible
from analytics.scores import integrity
from analytics.scores.catalog import Terms, UnknownAction
from analytics.scores.integrity import Rule
from analytics.scores.tokens import ActionTokenExpired, Claims
from tenants.db import Tx
from tenants.errors import Conflict, Forbidden, Invalid
from tenants.throttle import State

MAX_METADATA_BYTES = 4096
# What an action was done to.
OBJECT = re.compile(r"[A-Za-z0-9._~:@/-]{1,128}\Z")


class Verification(StrEnum):
    """Who claims that it was done."""

    SESSION = "session"  # the user
    TOKEN = "token"  # noqa: S105  the user, with a token of the tenant's app
    CLIENT = "client"  # the tenant's app
    ADMIN = "admin"  # an admin, who corrects a score


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
    title = "The time is not plausible"


@dataclass(frozen=True)
class ActionClaim:
    """Somebody's claim that a user did an action."""

    user: UUID | str  # our id of the user, or the tenant's own
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
        payload = {"user": str(self.user), "action": self.action_type, **self.payload}
        return hashlib.sha256(orjson.dumps(payload, option=orjson.OPT_SORT_KEYS, default=str)).digest()


@dataclass
class Done:
    """What a user was paid for an action so far; payments of the same commit are added."""

    times_today: int
    points_today: int
    last_at: datetime | None


@dataclass(frozen=True)
class Payment:
    """What was paid: the same answer however often the claim is sent."""

    score: int
    delta: int
    rank: int | None
    event_id: UUID | None
    is_replay: bool
    # The state of the user's rate limit; None for a replay, and where it does not apply.
    limit: State | None = None
    user_id: UUID | None = None


def is_from_future(claim: ActionClaim, *, now: datetime) -> bool:
    return claim.client_time is not None and claim.client_time > now + MAX_AHEAD


def flag_impossible_time(tx: Tx, claim: ActionClaim, *, now: datetime) -> None:
    """Flag a claim from the future: such claims are forged more often than sent by a broken clock."""
    if isinstance(claim.user, UUID) and claim.client_time is not None:
        ahead = min(int((claim.client_time - now).total_seconds()), 2**53)
        integrity.raise_flag(tx, claim.user, Rule.IMPOSSIBLE_CLOCK, {"seconds_ahead": ahead}, now=now)
        integrity.name_entries(tx, claim.user, Rule.IMPOSSIBLE_CLOCK, now=now)


def normal_object(spelling: str | None) -> str:
    """An object in the form that is compared: `Docs//Home/` is `docs/home`."""
    return "/".join(part for part in (spelling or "").casefold().split("/") if part)


def error_in_metadata(value: Mapping[str, Any]) -> str | None:
    """Why a JSON object cannot be kept beside an action; None: it can."""
    if len(orjson.dumps(value)) > MAX_METADATA_BYTES:
        return f"At most {MAX_METADATA_BYTES} bytes of JSON."
    if _has_huge_number(value):  # the database would return another number
        return "Numbers may be at most 2^53."
    return None


def _has_huge_number(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_huge_number, value.values()))
    if isinstance(value, list):
        return any(map(_has_huge_number, value))
    return isinstance(value, int | float) and abs(value) > 2**53


def midnight(now: datetime) -> datetime:
    return datetime.combine(now.astimezone(UTC).date(), datetime.min.time(), UTC)


def _until_tomorrow_s(now: datetime) -> float:
    return (midnight(now) + timedelta(days=1) - now).total_seconds()


def points_for(
    claim: ActionClaim, terms: Terms | None, done: Done, *, was_done: bool, now: datetime
) -> tuple[int, Terms]:
    """The points that the claim brings, and the terms; or why it brings none.

    `was_done`: the user was paid for this object before.
    """
    if claim.token is not None and claim.token.expires_at <= now:
        raise ActionTokenExpired
    if claim.client_time is not None and not is_plausible(claim.client_time, now=now):
        raise ImpossibleTime.field("timestamp", "within the last 7 days, and at most 5 minutes ahead")
    if terms is None or not terms.enabled:
        raise UnknownAction(claim.action_type, disabled=terms is not None)
    if terms.once_per_object and was_done:
        raise AlreadyDone
    _check_daily_limit_and_cooldown(claim, terms, done, now=now)
    points = _points(claim, terms)
    _check_daily_cap(claim, terms, done, points, now=now)
    return points, terms


def _points(claim: ActionClaim, terms: Terms) -> int:
    """The server decides: the catalog's points, or as many of them as a token of the tenant's app allows."""
    if terms.requires_token and claim.verification is not Verification.TOKEN and not claim.is_vouched:
        raise TokenRequired
    if claim.verification is Verification.TOKEN:
        allowed = min(claim.max_points or terms.points, terms.points)
        if claim.wanted_points is not None and not 1 <= claim.wanted_points <= allowed:
            raise AboveCatalog.field("score_delta", f"from 1 to {allowed}")
        return int(claim.wanted_points or allowed)
    if claim.wanted_points is not None and not 1 <= claim.wanted_points <= terms.points:
        raise AboveCatalog.field("scoreDelta", f"from 1 to {terms.points} for {claim.action_type}")
    return int(terms.points)


def _check_daily_cap(claim: ActionClaim, terms: Terms, done: Done, points: int, *, now: datetime) -> None:
    """What would pass the cap is refused whole, never paid in part."""
    if terms.daily_cap is not None and done.points_today + points > terms.daily_cap:
        raise DailyCapReached(
            f"{claim.action_type} pays at most {terms.daily_cap} points a day (UTC): "
            f"{done.points_today} were paid today, and this would add {points}",
            retry_after_s=_until_tomorrow_s(now),
        )


def _check_daily_limit_and_cooldown(claim: ActionClaim, terms: Terms, done: Done, *, now: datetime) -> None:
    if terms.daily_limit is not None and done.times_today >= terms.daily_limit:
        raise DailyLimitReached(
            f"{claim.action_type} is paid at most {terms.daily_limit} times a day (UTC): "
            f"it was paid {done.times_today} times today",
            retry_after_s=_until_tomorrow_s(now),
        )
    if terms.cooldown_s is not None and done.last_at is not None:
        wait = terms.cooldown_s - (now - done.last_at).total_seconds()
        if wait > 0:
            raise Cooldown(f"{claim.action_type} can be done again in {int(wait) + 1} s", retry_after_s=wait)
