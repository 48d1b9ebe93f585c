"""Events as tenants send them: the wire format, and the check of one event."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from ipaddress import ip_address
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Date, Index, Uuid
from sqlalchemy.orm import Mapped, mapped_column

from analytics.claimed_times import MAX_AGE, MAX_AHEAD
from analytics.ingest import profiles
from analytics.ingest.pages import EXTERNAL_ID
from analytics.ingest.profiles import Profile
from analytics.ingest.reasons import Reason, Refused
from analytics.ingest.visitors import visit_of
from analytics.ingest.writes import EventKind, Item
from analytics.scores.actions import OBJECT, error_in_metadata
from analytics.scores.audit import MAX_AGENT_CHARS
from tenants.db import Base, TenantOwned
from tenants.metrics import Counter

MAX_ITEMS = 1000
MAX_EVENT_ID_CHARS = 128
_OF_ACTIONS = ("object", "metadata", "ip", "user_agent")
_KINDS = {kind.value: kind for kind in EventKind}

EVENTS = Counter("plaudit_events_total", "Events accepted.", ["tenant", "type"])
DUPLICATES = Counter("plaudit_events_duplicate_total", "Events that were counted before.", ["tenant"])
REJECTED = Counter("plaudit_events_rejected_total", "Events rejected, by reason.", ["tenant", "reason"])


class UserIn(msgspec.Struct, forbid_unknown_fields=True):
    """A user with what others see of them. What is missing or null stays as it is."""

    id: str
    name: str | None = None
    avatar_url: str | None = None


class EventIn(msgspec.Struct, forbid_unknown_fields=True):
    """One event of `POST /api/v1/events`."""

    type: str
    page: str | None = None
    user: str | UserIn | None = None
    id: str | None = None
    occurred_at: datetime | None = None
    action_type: str | None = None
    # Of actions: what it was done to (otherwise `page` says so), and the end user's address and browser.
    object: str | None = None
    metadata: dict[str, Any] | None = None
    ip: str | None = None
    user_agent: str | None = None


class SeenEvent(TenantOwned, Base):
    """An event id that was counted; kept until long after it was last received."""

    __tablename__ = "seen_events"
    __table_args__ = (Index("ix_seen_events_seen_on", "seen_on"),)

    event_key: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    seen_on: Mapped[date] = mapped_column(Date)


@dataclass(frozen=True)
class Unreadable:
    """In the place of an event that could not be read."""

    why: str


@dataclass(frozen=True, slots=True)
class Action:
    """An action that a tenant's app claims one of its users did."""

    type: str
    user: str
    object: str | None
    at: datetime
    event_key: UUID | None
    metadata: Mapping[str, Any] | None = None
    # Of the user, not of the tenant's app.
    ip: str | None = None
    agent: str | None = None
    profile: Profile | None = None


@dataclass(frozen=True)
class Ages:
    """The times that a caller's events may claim."""

    oldest: datetime
    newest: datetime

    @classmethod
    def for_caller(cls, now: datetime, *, backfill_days: int | None) -> "Ages":
        """The last week; with the right to backfill, as far back as buckets are kept."""
        return cls(now - (timedelta(days=backfill_days) if backfill_days else MAX_AGE), now + MAX_AHEAD)

    def check(self, at: datetime) -> datetime:
        if at < self.oldest:
            raise Refused(Reason.TOO_OLD, f"occurred_at is before {self.oldest.isoformat(timespec='seconds')}")
        if at > self.newest:
            raise Refused(Reason.IN_THE_FUTURE, "occurred_at is more than 5 minutes ahead")
        return at


def check(raw: Any, *, now: datetime, ages: Ages) -> "Item | Action":
    """The event as an item to write or an action to pay; or Refused."""
    if isinstance(raw, Unreadable):
        raise Refused(Reason.INVALID, raw.why)
    try:
        event = msgspec.convert(raw, EventIn)
    except msgspec.ValidationError as error:
        raise Refused(Reason.INVALID, str(error)) from None
    named, profile = event.user, None
    if isinstance(named, UserIn):
        profile = profiles.check(named.id, named.name, named.avatar_url)
        user: str | None = named.id
    else:
        user = named
    if event.type == "action":
        return _action(event, user, profile, now=now, ages=ages)
    kind = _KINDS.get(event.type)
    if kind is None:
        raise Refused(Reason.UNKNOWN_TYPE, f"there is no event type {event.type[:40]!r}")
    _refuse_fields_of_actions(event)
    if event.page is None:
        raise Refused(Reason.INVALID, "page: missing")
    if EXTERNAL_ID.fullmatch(event.page) is None:
        raise Refused(Reason.INVALID, "page: 1 to 128 of A-Z, a-z, 0-9 and . _ ~ : @ -")
    if user is not None and EXTERNAL_ID.fullmatch(user) is None:
        raise Refused(Reason.INVALID, "user: 1 to 128 of A-Z, a-z, 0-9 and . _ ~ : @ -")
    if user is None and kind is not EventKind.VIEW:
        raise Refused(Reason.INVALID, "user: missing, and a like needs one")
    at = ages.check(_moment(event.occurred_at)) if event.occurred_at is not None else now
    return Item(
        kind=kind,
        page=event.page,
        at=at,
        event_key=event_key(event.id) if event.id is not None else None,
        user=user,
        is_dated=event.occurred_at is not None,
        visit=visit_of(user, at, now=now) if kind is EventKind.VIEW else None,
        profile=profile,
    )


def _refuse_fields_of_actions(event: EventIn) -> None:
    for name in _OF_ACTIONS:
        if getattr(event, name) is not None:
            raise Refused(Reason.INVALID, f"{name}: for actions only")


def _action(event: EventIn, user: str | None, profile: Profile | None, *, now: datetime, ages: Ages) -> Action:
    if event.action_type is None:
        raise Refused(Reason.INVALID, "action_type: missing")
    if user is None or EXTERNAL_ID.fullmatch(user) is None:
        raise Refused(Reason.INVALID, "user: an action needs one, 1 to 128 of A-Z, a-z, 0-9 and . _ ~ : @ -")
    if event.page is not None and EXTERNAL_ID.fullmatch(event.page) is None:
        raise Refused(Reason.INVALID, "page: 1 to 128 of A-Z, a-z, 0-9 and . _ ~ : @ -")
    return Action(
        type=event.action_type,
        user=user,
        object=_object(event),
        at=ages.check(_moment(event.occurred_at)) if event.occurred_at is not None else now,
        event_key=event_key(event.id) if event.id is not None else None,
        metadata=_metadata(event.metadata) if event.metadata is not None else None,
        ip=_address(event.ip) if event.ip is not None else None,
        agent=_agent(event.user_agent) if event.user_agent is not None else None,
        profile=profile,
    )


def _object(event: EventIn) -> str | None:
    """`object`, also where `page` names another: an object is more exact, and need not be a page."""
    if event.object is not None and OBJECT.fullmatch(event.object) is None:
        raise Refused(Reason.INVALID, "object: 1 to 128 of A-Z, a-z, 0-9 and . _ ~ : @ / -")
    return event.object if event.object is not None else event.page


def _metadata(sent: dict[str, Any]) -> dict[str, Any]:
    error = error_in_metadata(sent)
    if error is not None:
        raise Refused(Reason.INVALID, f"metadata: {error}")
    return sent


def _address(sent: str) -> str:
    try:
        address = ip_address(sent)
    except ValueError:
        address = None
    if address is None or "%" in sent:  # a zone is of one machine only
        raise Refused(Reason.INVALID, "ip: the address of the user's machine, IPv4 or IPv6")
    return str(address)


def _agent(sent: str) -> str:
    if not 1 <= len(sent) <= MAX_AGENT_CHARS or not sent.isprintable():
        raise Refused(Reason.INVALID, f"user_agent: 1 to {MAX_AGENT_CHARS} printable characters")
    return sent


def event_key(event_id: str) -> UUID:
    """Event ids are kept as 128 bits of their hash: short, and of one length."""
    if not 1 <= len(event_id) <= MAX_EVENT_ID_CHARS or not event_id.isprintable():
        raise Refused(Reason.INVALID, f"id: 1 to {MAX_EVENT_ID_CHARS} printable characters")
    return UUID(bytes=hashlib.blake2b(event_id.encode(), digest_size=16).digest())


def reject(tenant_id: str, reason: Reason) -> None:
    """Count one refusal of an event that was in no batch."""
    REJECTED.labels(tenant_id, reason.value).inc()


def _moment(at: datetime) -> datetime:
    if at.tzinfo is None:
        raise Refused(Reason.INVALID, "occurred_at: a time with its offset, such as 2026-01-31T12:00:00Z")
    try:
        return at.astimezone(UTC)
    except (OverflowError, ValueError):
        raise Refused(Reason.TOO_OLD, "occurred_at is out of range") from None
