"""Events as tenants send them: checked one by one, each accepted, a duplicate, or refused with a reason.

The closed list of reasons is `Reason`. A batch's bad items never stop its good ones.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, assert_never
from uuid import UUID

import msgspec
from prometheus_client import Counter as Metric

from analytics.ingest.pages import EXTERNAL_ID
from analytics.ingest.writes import Does, Item, Outcome, Part, Result
from tenants.credentials import ClientToken

MOST_ITEMS = 1000
EVENT_ID_MAX = 128
# Of the text that says why an event was refused: it may repeat what was sent.
MAX_DETAIL = 200
OLDEST = timedelta(days=7)
NEWEST = timedelta(minutes=5)
_DOES = {does.value: does for does in Does}

EVENTS = Metric("plaudit_events_total", "Events counted.", ["tenant", "type"])
DUPLICATES = Metric("plaudit_events_duplicate_total", "Events that were counted before.", ["tenant"])
REJECTED = Metric("plaudit_events_rejected_total", "Events refused, by reason.", ["tenant", "reason"])


class Reason(StrEnum):
    UNKNOWN_PAGE = "unknown_page"
    UNKNOWN_TYPE = "unknown_type"
    INVALID = "invalid"
    TOO_OLD = "too_old"
    IN_THE_FUTURE = "in_the_future"
    UNKNOWN_ACTION = "unknown_action"
    LIMITED = "limited"
    BOT = "bot"


class EventIn(msgspec.Struct, forbid_unknown_fields=True):
    """One event of `POST /api/v1/events`."""

    type: str
    page: str | None = None
    user: str | None = None
    id: str | None = None
    occurred_at: datetime | None = None
    action_type: str | None = None


@dataclass(frozen=True)
class Unreadable:
    """In the place of an event that could not be read."""

    why: str


@dataclass(frozen=True, slots=True)
class Rejection:
    index: int
    code: Reason
    detail: str


@dataclass(frozen=True)
class Tally:
    """What became of a request's events."""

    accepted: int
    duplicates: int
    rejected: list[Rejection]
    tenant_id: str = ""
    # How many of each type were accepted.
    types: Mapping[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {
            "accepted": self.accepted,
            "duplicates": self.duplicates,
            "rejected": [{"index": r.index, "code": r.code.value, "detail": r.detail} for r in self.rejected],
        }

    def measure(self) -> None:
        """Count them in the metrics: for the time after the commit."""
        for name, count in self.types.items():
            EVENTS.labels(self.tenant_id, name).inc(count)
        if self.duplicates:
            DUPLICATES.labels(self.tenant_id).inc(self.duplicates)
        for reason, count in Counter(rejection.code.value for rejection in self.rejected).items():
            REJECTED.labels(self.tenant_id, reason).inc(count)


@dataclass(frozen=True, slots=True)
class Action:
    """What a tenant's app says that one of its users did."""

    type: str
    user: str
    object: str | None
    at: datetime
    event_key: UUID | None


class Refused(Exception):
    def __init__(self, code: Reason, detail: str) -> None:
        self.code = code
        self.detail = detail[:MAX_DETAIL]


@dataclass(frozen=True)
class Ages:
    """Which times an event may have happened at."""

    oldest: datetime
    newest: datetime

    @classmethod
    def for_caller(cls, now: datetime, *, backfill_days: int | None) -> "Ages":
        """The last week; with the right to backfill, as far back as buckets are kept."""
        return cls(now - (timedelta(days=backfill_days) if backfill_days else OLDEST), now + NEWEST)

    def check(self, at: datetime) -> datetime:
        if at < self.oldest:
            raise Refused(Reason.TOO_OLD, f"occurred_at is before {self.oldest.isoformat(timespec='seconds')}")
        if at > self.newest:
            raise Refused(Reason.IN_THE_FUTURE, "occurred_at is more than 5 minutes ahead")
        return at


class Batch:
    """A request's events on their way: checked, written as one part, told."""

    def __init__(
        self, tenant_id: str, raw: Sequence[Any], *, now: datetime, ages: Ages, token: ClientToken | None = None
    ) -> None:
        self.tenant_id = tenant_id
        self.rejections: list[Rejection] = []
        self._indexes: list[int] = []
        self.actions: list[tuple[int, Action]] = []
        items: list[Item] = []
        for index, event in enumerate(raw):
            try:
                checked = check(event, now=now, ages=ages)
                if isinstance(checked, Action):
                    self.actions.append((index, checked))
                    continue
                items.append(checked)
                self._indexes.append(index)
            except Refused as refused:
                self.rejections.append(Rejection(index, refused.code, refused.detail))
        codes = Counter(rejection.code.value for rejection in self.rejections)
        self.part = Part(tenant_id, items, now, token=token, rejected=codes)

    def tally(self, outcomes: Sequence[Outcome], of_actions: Sequence[Result | Refused] = ()) -> Tally:
        """The answer to the caller."""
        rejected = list(self.rejections)
        counts: Counter[Result] = Counter()
        types: Counter[str] = Counter()
        for (index, _), done in zip(self.actions, of_actions, strict=True):
            if isinstance(done, Refused):
                rejected.append(Rejection(index, done.code, done.detail))
            else:
                counts[done] += 1
                types["action"] += done is Result.ACCEPTED
        for index, item, outcome in zip(self._indexes, self.part.items, outcomes, strict=True):
            counts[outcome.result] += 1
            match outcome.result:
                case Result.ACCEPTED:
                    types[item.does.value] += 1
                case Result.DUPLICATE:
                    pass
                case Result.UNKNOWN_PAGE:
                    rejected.append(Rejection(index, Reason.UNKNOWN_PAGE, f"there is no page {item.page!r}"))
                case Result.UNKNOWN_USER:
                    rejected.append(Rejection(index, Reason.INVALID, "user: erased just now"))
                case Result.LIMITED:
                    rejected.append(Rejection(index, Reason.LIMITED, "the tenant has as many users as it may have"))
                case _:
                    assert_never(outcome.result)
        rejected.sort(key=lambda rejection: rejection.index)
        return Tally(counts[Result.ACCEPTED], counts[Result.DUPLICATE], rejected, self.tenant_id, types)


def check(raw: Any, *, now: datetime, ages: Ages) -> "Item | Action":
    """The event as an item to write or an action to pay for, or Refused."""
    if isinstance(raw, Unreadable):
        raise Refused(Reason.INVALID, raw.why)
    try:
        event = msgspec.convert(raw, EventIn)
    except msgspec.ValidationError as error:
        raise Refused(Reason.INVALID, str(error)) from None
    if event.type == "action":
        return _action(event, now=now, ages=ages)
    does = _DOES.get(event.type)
    if does is None:
        raise Refused(Reason.UNKNOWN_TYPE, f"there is no event type {event.type[:40]!r}")
    if event.page is None:
        raise Refused(Reason.INVALID, "page: which one?")
    if EXTERNAL_ID.fullmatch(event.page) is None:
        raise Refused(Reason.INVALID, "page: 1 to 128 of A-Z, a-z, 0-9 and . _ ~ : @ -")
    if event.user is not None and EXTERNAL_ID.fullmatch(event.user) is None:
        raise Refused(Reason.INVALID, "user: 1 to 128 of A-Z, a-z, 0-9 and . _ ~ : @ -")
    if event.user is None and does is not Does.VIEW:
        raise Refused(Reason.INVALID, "user: a like needs one")
    return Item(
        does=does,
        page=event.page,
        at=ages.check(_moment(event.occurred_at)) if event.occurred_at is not None else now,
        event_key=event_key(event.id) if event.id is not None else None,
        user=event.user,
    )


def _action(event: EventIn, *, now: datetime, ages: Ages) -> Action:
    if event.action_type is None:
        raise Refused(Reason.INVALID, "action_type: which one?")
    if event.user is None or EXTERNAL_ID.fullmatch(event.user) is None:
        raise Refused(Reason.INVALID, "user: an action needs one: 1 to 128 of A-Z, a-z, 0-9 and . _ ~ : @ -")
    if event.page is not None and EXTERNAL_ID.fullmatch(event.page) is None:
        raise Refused(Reason.INVALID, "page: 1 to 128 of A-Z, a-z, 0-9 and . _ ~ : @ -")
    return Action(
        type=event.action_type,
        user=event.user,
        object=event.page,
        at=ages.check(_moment(event.occurred_at)) if event.occurred_at is not None else now,
        event_key=event_key(event.id) if event.id is not None else None,
    )


def event_key(event_id: str) -> UUID:
    """Event ids are remembered as 128 bits of their hash: short, and of one length."""
    if not 1 <= len(event_id) <= EVENT_ID_MAX or not event_id.isprintable():
        raise Refused(Reason.INVALID, f"id: 1 to {EVENT_ID_MAX} printable characters")
    return UUID(bytes=hashlib.blake2b(event_id.encode(), digest_size=16).digest())


def reject(tenant_id: str, reason: Reason) -> None:
    """Count one refusal that never came as far as a batch."""
    REJECTED.labels(tenant_id, reason.value).inc()


def _moment(at: datetime) -> datetime:
    if at.tzinfo is None:
        raise Refused(Reason.INVALID, "occurred_at: a time with its offset, such as 2026-01-31T12:00:00Z")
    try:
        return at.astimezone(UTC)
    except (OverflowError, ValueError):
        raise Refused(Reason.TOO_OLD, "occurred_at is out of all bounds") from None
