"""Batches: many events of one request, each accepted, a duplicate, or rejected with a reason.

A bad event never stops a good one. A batch without actions is written by the group commit; one with actions in a
transaction of its own, so that all of it can be sent again when it fails.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, assert_never
from uuid import UUID

from analytics import counters
from analytics.ingest import events, pages, writes
from analytics.ingest.events import Action, Ages, Reason, Refused
from analytics.ingest.writes import Item, Outcome, Result, WriteRequest
from analytics.scores import catalog, payments, sources
from analytics.scores.actions import ActionClaim, ImpossibleTime, PayloadDiffers, Payment, Verification
from analytics.scores.catalog import UnknownAction
from tenants import ceilings, credentials, users
from tenants.ceilings import Ceiling, CeilingReached
from tenants.credentials import ClientToken
from tenants.db import Tx
from tenants.errors import DomainError, Invalid
from tenants.settings import TenantSettings
from tenants.signing import BadToken


@dataclass(frozen=True, slots=True)
class Rejection:
    index: int
    code: Reason
    detail: str


@dataclass(frozen=True)
class Tally:
    """How many of a request's events were accepted, duplicates and rejected."""

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
        self, tenant_id: str, raw: Sequence[Any], *, now: datetime, ages: Ages, token: ClientToken | None = None
    ) -> None:
        self.tenant_id = tenant_id
        self.rejections: list[Rejection] = []
        self._indexes: list[int] = []
        self.actions: list[tuple[int, Action]] = []
        items: list[Item] = []
        for index, event in enumerate(raw):
            try:
                checked = events.check(event, now=now, ages=ages)
                if isinstance(checked, Action):
                    self.actions.append((index, checked))
                    continue
                items.append(checked)
                self._indexes.append(index)
            except Refused as refused:
                self.rejections.append(Rejection(index, refused.code, refused.detail))
        codes = Counter(rejection.code.value for rejection in self.rejections)
        self.request = WriteRequest(tenant_id, items, now, token=token, rejected=codes)

    def tally(self, outcomes: Sequence[Outcome], of_actions: Sequence[Result | Refused] = ()) -> Tally:
        """The answer to the caller, from the outcomes of the written items and of the actions."""
        rejected = list(self.rejections)
        counts: Counter[Result] = Counter()
        types: Counter[str] = Counter()
        for (index, _), done in zip(self.actions, of_actions, strict=True):
            if isinstance(done, Refused):
                rejected.append(Rejection(index, done.code, done.detail))
            else:
                counts[done] += 1
                types["action"] += done is Result.ACCEPTED
        for index, item, outcome in zip(self._indexes, self.request.items, outcomes, strict=True):
            counts[outcome.result] += 1
            match outcome.result:
                case Result.ACCEPTED:
                    types[item.kind.value] += 1
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


def create_users(tx: Tx, batch: Batch, *, now: datetime) -> dict[str, UUID | None]:
    """The users whom the batch's actions name, created on first sight; None: there is no room for another.

    In a short transaction of its own, so that nobody else waits for a user who is being created.
    """
    _require_valid_token(tx, batch.request)
    known = {action.type for action in catalog.list_(tx)}  # an unknown action creates no user
    named = {action.user for _, action in batch.actions if action.type in known}
    return {**dict.fromkeys(named), **users.ensure_all_external(tx, named, now=now)}


def write_with_actions(
    tx: Tx,
    batch: Batch,
    user_ids: Mapping[str, UUID | None],
    settings: TenantSettings,
    *,
    is_vouched: bool,
    now: datetime,
) -> Tally:
    """Pay the actions and write the other events, in one transaction that the caller commits.

    `is_vouched`: the caller may vouch for actions that need a token. A client's token is checked before anything is
    done, and once more with the written events.
    """
    _require_valid_token(tx, batch.request)
    # Counters before users, as in every other transaction: paying locks users, and writing locks counters.
    external_ids = list({item.page for item in batch.request.items})
    counters.lock(tx, map(int, pages.ids_of(tx, external_ids, public_only=False).values()))
    results = [_result(one) for one in _pay(tx, batch, user_ids, settings, is_vouched=is_vouched, now=now)]
    refused = Counter(one.code.value for one in results if isinstance(one, Refused))
    batch.request.rejected = refused + Counter(batch.request.rejected or {})
    writes.apply(tx, batch.request)
    if batch.request.error is not None:
        raise batch.request.error
    return batch.tally(batch.request.outcomes, results)


def _require_valid_token(tx: Tx, request: WriteRequest) -> None:
    if request.token is not None and not credentials.token_is_valid(tx, request.token):
        raise BadToken


def _pay(
    tx: Tx,
    batch: Batch,
    user_ids: Mapping[str, UUID | None],
    settings: TenantSettings,
    *,
    is_vouched: bool,
    now: datetime,
) -> list[Payment | DomainError]:
    """The outcome of each action, in their order."""
    outcomes: dict[int, Payment | DomainError] = {}
    first_with_key: dict[UUID, int] = {}
    no_room = CeilingReached(Ceiling.USERS, ceilings.read(tx)[Ceiling.USERS]) if None in user_ids.values() else None
    for index, action in batch.actions:
        if action.user not in user_ids:
            outcomes[index] = UnknownAction(action.type)
        elif user_ids[action.user] is None and no_room is not None:
            outcomes[index] = no_room
        elif action.event_key is not None and first_with_key.setdefault(action.event_key, index) != index:
            outcomes[index] = PayloadDiffers()  # of several with one id, the first is paid
    wanted = [(index, action) for index, action in batch.actions if index not in outcomes]
    claims = [
        _claim(action, user_id, is_vouched=is_vouched)
        for _, action in wanted
        if (user_id := user_ids[action.user]) is not None
    ]
    for (index, _), payment in zip(wanted, payments.pay_all(tx, claims, settings, now=now), strict=True):
        outcomes[index] = payment
    return [outcomes[index] for index, _ in batch.actions]


def _claim(action: Action, user_id: UUID, *, is_vouched: bool) -> ActionClaim:
    return ActionClaim(
        user_id,
        action.type,
        source=sources.of_event(action.event_key),
        verification=Verification.CLIENT,
        object=action.object,
        client_time=action.at,
        payload={"object": action.object},
        is_vouched=is_vouched,
    )


def _result(outcome: Payment | DomainError) -> Result | Refused:
    if isinstance(outcome, Payment):
        return Result.DUPLICATE if outcome.is_replay else Result.ACCEPTED
    if isinstance(outcome, PayloadDiffers):  # an id is paid once, whatever it comes with
        return Result.DUPLICATE
    if isinstance(outcome, ImpossibleTime):  # from a caller who may backfill views
        return Refused(Reason.TOO_OLD, outcome.detail)
    if isinstance(outcome, UnknownAction):
        return Refused(Reason.UNKNOWN_ACTION, outcome.detail)
    return Refused(Reason.INVALID if isinstance(outcome, Invalid) else Reason.LIMITED, outcome.detail)
