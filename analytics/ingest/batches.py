"""Batches: many events of one request, each accepted, a duplicate, or rejected with a reason.

A bad event never stops a good one. A batch is one write request: all of it is committed together, or none of it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, assert_never

from analytics.ingest import events
from analytics.ingest.events import Action, Ages
from analytics.ingest.profiles import Profile
from analytics.ingest.reasons import Reason, Refused, Result, reason_of
from analytics.ingest.writes import Item, WriteRequest
from analytics.scores import sources
from analytics.scores.actions import ActionClaim, PayloadDiffers, Payment, Verification
from analytics.scores.limits import TooBusy
from tenants.credentials import ClientToken
from tenants.errors import DomainError
from tenants.settings import TenantSettings
from tenants.throttle import TooMany


@dataclass(frozen=True, slots=True)
class Rejection:
    index: int
    code: Reason
    detail: str
    retry_after_s: int | None = None

    def as_json(self) -> dict[str, Any]:
        wait = {} if self.retry_after_s is None else {"retry_after_s": self.retry_after_s}
        return {"index": self.index, "code": self.code.value, "detail": self.detail, **wait}


@dataclass(frozen=True)
class Tally:
    """How many of a request's events were accepted, duplicates and rejected."""

    accepted: int
    duplicates: int
    rejected: list[Rejection]
    tenant_id: str = ""
    # How many of each type were accepted.
    types: Mapping[str, int] = field(default_factory=dict)
    # How long to wait, if actions were refused because the tenant's app sends too many.
    retry_after_s: int | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "accepted": self.accepted,
            "duplicates": self.duplicates,
            "rejected": [rejection.as_json() for rejection in self.rejected],
        }

    def measure(self) -> None:
        """Count them in the service's metrics; to be called after the commit."""
        for name, count in self.types.items():
            events.EVENTS.labels(self.tenant_id, name).inc(count)
        if self.duplicates:
            events.DUPLICATES.labels(self.tenant_id).inc(self.duplicates)
        for reason, count in Counter(rejection.code.value for rejection in self.rejected).items():
            events.REJECTED.labels(self.tenant_id, reason).inc(count)


class Batch:
    """A request's events: checked, then written as one request, then tallied."""

    def __init__(
        self,
        tenant_id: str,
        raw: Sequence[Any],
        *,
        now: datetime,
        ages: Ages,
        token: ClientToken | None = None,
        settings: TenantSettings | None = None,
        is_vouched: bool = False,
    ) -> None:
        """`settings` are the tenant's, by which actions are paid: without them none is.

        `is_vouched`: the caller may vouch for actions that need a token.
        """
        self.tenant_id = tenant_id
        self.rejections: list[Rejection] = []
        items: dict[int, Item] = {}
        actions: dict[int, Action] = {}
        for index, event in enumerate(raw):
            try:
                checked = events.check(event, now=now, ages=ages)
            except Refused as refused:
                self.rejections.append(Rejection(index, refused.code, refused.detail))
                continue
            if isinstance(checked, Action):
                actions[index] = checked
            else:
                items[index] = checked
        # If several actions have one id, the first is claimed, and the others get its answer.
        self._first_of = _first_of_each_id(actions)
        claimed = {index: actions[index] for index in self._first_of.values()} if settings is not None else {}
        self._item_indexes, self._claim_indexes = list(items), list(claimed)
        codes = Counter(rejection.code.value for rejection in self.rejections)
        self.request = WriteRequest(
            tenant_id,
            list(items.values()),
            now,
            token=token,
            rejected=codes,
            claims=[_claim(action, is_vouched=is_vouched) for action in claimed.values()],
            settings=settings,
            profiles_of_items=_profiles(items),
            profiles_of_claims=_profiles(claimed),
        )

    def tally(self, *, unpaid: Refused | None = None) -> Tally:
        """The answer to the caller, once the request is written. `unpaid`: why actions are not paid here."""
        rejected = list(self.rejections)
        counts: Counter[Result] = Counter()
        types: Counter[str] = Counter()
        waits_s: list[int] = []
        refused: dict[int, Refused] = {}
        for index, item, outcome in zip(self._item_indexes, self.request.items, self.request.outcomes, strict=True):
            counts[outcome.result] += 1
            types[item.kind.value] += outcome.result is Result.ACCEPTED
            if outcome.result.reason is not None:
                rejected.append(Rejection(index, outcome.result.reason, _detail(outcome.result, item)))
        for index, paid in zip(self._claim_indexes, self.request.payments, strict=True):
            result = _result_of(paid)
            if isinstance(result, Result):
                counts[result] += 1
                types["action"] += result is Result.ACCEPTED
            else:
                refused[index] = result
                if isinstance(paid, TooMany | TooBusy):
                    waits_s.append(result.retry_after_s or 1)
        claimed = set(self._claim_indexes)
        for index, first in self._first_of.items():
            why = refused.get(first, unpaid)
            if why is not None:
                rejected.append(Rejection(index, why.code, why.detail, why.retry_after_s))
            elif index not in claimed:
                counts[Result.DUPLICATE] += 1
        rejected.sort(key=lambda rejection: rejection.index)
        return Tally(
            counts[Result.ACCEPTED],
            counts[Result.DUPLICATE],
            rejected,
            self.tenant_id,
            +types,
            retry_after_s=max(waits_s, default=None),
        )


def _first_of_each_id(actions: Mapping[int, Action]) -> dict[int, int]:
    """The index of each action, with the index of the first action of its id: its own, if it has no id."""
    first: dict[object, int] = {}
    return {
        index: index if action.event_key is None else first.setdefault(action.event_key, index)
        for index, action in actions.items()
    }


def _profiles(checked: Mapping[int, Item | Action]) -> dict[int, Profile]:
    """What events say of their users, by their places among the items or the claims."""
    return {place: one.profile for place, one in enumerate(checked.values()) if one.profile is not None}


def _claim(action: Action, *, is_vouched: bool) -> ActionClaim:
    return ActionClaim(
        action.user,
        action.type,
        source=sources.of_event(action.event_key),
        verification=Verification.CLIENT,
        object=action.object,
        client_time=action.at,
        ip=action.ip,
        agent=action.agent,
        metadata=action.metadata,
        payload={"object": action.object},
        is_vouched=is_vouched,
    )


def _detail(result: Result, item: Item) -> str:
    """Why the item is rejected, for people."""
    match result:
        case Result.UNKNOWN_PAGE:
            return f"there is no page {item.page!r}"
        case Result.UNKNOWN_USER:
            return "user: erased just now"
        case Result.LIMITED:
            return "the tenant has as many users as it may have"
        case Result.ACCEPTED | Result.DUPLICATE:
            return ""
        case _:
            assert_never(result)


def _result_of(outcome: Payment | DomainError) -> Result | Refused:
    if isinstance(outcome, Payment):
        return Result.DUPLICATE if outcome.is_replay else Result.ACCEPTED
    if isinstance(outcome, PayloadDiffers):  # an id is paid once, whatever it comes with
        return Result.DUPLICATE
    return Refused(reason_of(outcome), outcome.detail, retry_after_s=outcome.retry_after_s)
