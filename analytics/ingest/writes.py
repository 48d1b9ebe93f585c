"""Writing events: what a request wants written (views, likes, claims of actions), and the transaction that writes it.

`analytics.ingest.group_commit` gathers the requests that are in flight together; `commit_together` writes them: views
and likes of all requests of a tenant in one call of a SQL function, and their claims in two more. Everything is written
in one order (tenants by id; then counters, event ids, visitors, networks, hourly counts, users, likes, ledger,
rejections, unknown addresses; each by key), so commits of different processes cannot deadlock.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, assert_never
from uuid import UUID

import structlog
from sqlalchemy.exc import DBAPIError

from analytics import outbox
from analytics.ingest import profiles, rejections, unknown_addresses
from analytics.ingest.profiles import Profile
from analytics.ingest.reasons import Result
from analytics.ingest.unknown_addresses import Unknown
from analytics.ingest.visitors import Visit
from analytics.scores import limits as score_limits
from analytics.scores import payments, update_log
from analytics.scores.actions import ActionClaim, Payment, Verification
from analytics.scores.payments import Cashier
from analytics.scores.update_log import LoggedPayment
from tenants import ceilings, users
from tenants.allowances import Taken
from tenants.ceilings import Ceiling
from tenants.credentials import ClientToken
from tenants.db import Tx, array
from tenants.errors import DomainError
from tenants.group_tx import Calls, run_in_one_trip, shared_tx
from tenants.settings import Limits, TenantSettings
from tenants.signing import BadToken

log = structlog.get_logger()

# How many times as long as a view a claim of an action takes to write.
CLAIM_WEIGHT = 15


class Unwritable(Exception):
    """Nothing of a commit was written, because one of its requests cannot be: see its cause."""


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


@dataclass(frozen=True, slots=True)
class Item:
    """One checked view, like or unlike."""

    kind: EventKind
    page: str
    at: datetime
    event_key: UUID | None = None
    user: str | UUID | None = None  # the tenant's own id of the user, or ours
    # Whether the sender said when it happened. If not, a like happens now, after everything that is known of it.
    is_dated: bool = True
    # Of a view: its visitor, if somebody is known.
    visit: Visit | None = None
    profile: Profile | None = None


@dataclass(slots=True)
class Outcome:
    result: Result
    likes: int | None = None


@dataclass(slots=True, eq=False)
class WriteRequest:
    """What one request wants written, and after the commit the outcome of each item and claim."""

    tenant_id: str
    items: Sequence[Item]
    now: datetime
    # Checked in the transaction of the effect: a token revoked a moment ago writes nothing.
    token: ClientToken | None = None
    rejected: Mapping[str, int] | None = None
    # An address that no page has, and the title of the document there: listed for the tenant's admins.
    unknown: Unknown | None = None
    claims: Sequence[ActionClaim] = ()
    # The tenant's, by which claims and page loads are decided.
    settings: TenantSettings | None = None
    # How many users may be created on first sight; None: the request names no users of the tenant's own.
    room: int | None = None
    # How many claims of the tenant's app may be paid; None: it has none.
    app_actions: Taken | None = None
    # Whether its payments are in the log, and with which id; not those of the demo's traffic.
    is_logged: bool = True
    request_id: str | None = None
    # What is said of users, by the places of the items and claims that say it.
    profiles_of_items: Mapping[int, Profile] = field(default_factory=dict)
    profiles_of_claims: Mapping[int, Profile] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)
    payments: list[Payment | DomainError] = field(default_factory=list)
    error: BaseException | None = None
    # What follows the commit before the caller is answered: announcements of what a payment has changed.
    after_commit: list[Callable[[], None]] = field(default_factory=list)

    @property
    def weight(self) -> int:
        return len(self.items) + CLAIM_WEIGHT * len(self.claims) or 1

    def prepare(self) -> None:
        """Find out how many users may be created, and how many of an app's claims may be paid.

        For the request's own thread: it may have to count the users, and to wait for Redis.
        """
        if any(isinstance(item.user, str) and item.kind is not EventKind.VIEW for item in self.items) or any(
            isinstance(claim.user, str) for claim in self.claims
        ):
            self.room = ceilings.room(self.tenant_id, Ceiling.USERS, users.count)
        by_app = sum(claim.verification is Verification.CLIENT for claim in self.claims)
        if by_app and self.settings is not None:
            per_minute = self.settings.limits.app_actions_per_minute
            self.app_actions = score_limits.take_app_actions(self.tenant_id, per_minute, by_app)

    def give_back(self, *, is_written: bool = True) -> None:
        """Afterwards: what was not written, replays and refused claims use up nothing of the tenant's limit."""
        taken, self.app_actions = self.app_actions, None
        if taken is not None:
            paid = sum(isinstance(payment, Payment) and not payment.is_replay for payment in self.payments)
            score_limits.give_back_app_actions(self.tenant_id, taken.amount - (paid if is_written else 0))

    def run_after_commit(self) -> None:
        for call in self.after_commit:
            try:
                call()
            except Exception:  # the commit is done, and must be answered
                log.exception("a call after a commit failed", action="commit.after", tenantId=self.tenant_id)


def apply(tx: Tx, request: WriteRequest) -> None:
    """Write one request inside a transaction that the caller commits; or, if it is rolled back, gives back."""
    request.prepare()
    write = TenantWrite(tx.tenant, [request])
    write.write(tx)
    tx.after_commit(write.measure)
    tx.after_commit(request.give_back)
    outbox.wake_after_commit(tx)


def commit_together(requests: Sequence[WriteRequest], shared: bool) -> list[WriteRequest]:
    """Write these requests in one transaction; `shared` by tenants, it waits for locks only briefly.

    Returns the requests that are still to be written: where one of a tenant's tokens is no longer valid, nothing of
    that tenant was written, and its other requests belong in the next transaction. All others have their outcomes.
    """
    writes = by_tenant(requests)
    if not any(write.has_steps for write in writes):
        return assign_outcomes(writes, run_in_one_trip(event_calls(writes), shared=shared))
    left: list[WriteRequest] = []
    with shared_tx(writes[0].tenant_id, shared=shared) as enter, rolled_back_on_error():
        for write in writes:
            tx = enter(write.tenant_id)
            left += write.write(tx)
            write.follow_commit(tx.take_after_commit())
    for write in writes:
        write.measure()
    return left


def by_tenant(requests: Sequence[WriteRequest]) -> list["TenantWrite"]:
    by_tenant: dict[str, list[WriteRequest]] = {}
    for request in requests:
        request.outcomes, request.payments, request.error, request.after_commit = [], [], None, []
        by_tenant.setdefault(request.tenant_id, []).append(request)
    return [TenantWrite(tenant_id, by_tenant[tenant_id]) for tenant_id in sorted(by_tenant)]


def event_calls(writes: Sequence["TenantWrite"]) -> Calls:
    with rolled_back_on_error():
        return [write.call() for write in writes]


def assign_outcomes(writes: Sequence["TenantWrite"], rows: Sequence[Any]) -> list[WriteRequest]:
    left: list[WriteRequest] = []
    for write, row in zip(writes, rows, strict=True):
        left += write.assign_outcomes(row)
        write.measure()
    return left


@contextmanager
def rolled_back_on_error() -> Iterator[None]:
    """Whatever fails in here is known not to be committed. (The database's own errors say so themselves.)"""
    try:
        yield
    except DBAPIError:
        raise
    except Exception as error:
        raise Unwritable from error


class TenantWrite:
    """What one tenant's requests write in a commit."""

    def __init__(self, tenant_id: str, requests: Sequence[WriteRequest]) -> None:
        self.tenant_id = tenant_id
        self.requests = requests
        self.now = requests[0].now
        self.room = min((request.room for request in requests if request.room is not None), default=0)
        self.items = [item for request in requests for item in request.items]
        self.claims = [claim for request in requests for claim in request.claims]
        self.unknown = [request.unknown for request in requests if request.unknown is not None]
        # External id of each page → its position among them.
        self._pages = {page: place for place, page in enumerate(dict.fromkeys(item.page for item in self.items), 1)}
        self._created_users = 0
        self._paid: list[Payment] = []
        self._logged: list[LoggedPayment] = []

    def write(self, tx: Tx) -> list[WriteRequest]:
        """Step by step, in an open transaction. Returns the requests that are still to be written."""
        if self.items or any(request.token or request.rejected for request in self.requests):
            row = tx.call(_WRITE_EVENTS, self.parameters())[0]
            left = self.assign_outcomes(row)
            if row.invalid_tokens:
                return left
        if self.has_steps:
            self._pay(tx)
            profiles.apply(tx, self.requests, now=self.now)
            rejections.count(tx, rejections.of_requests(self.requests), now=self.now)
        if self.unknown:
            listed = unknown_addresses.values(self.tenant_id, self.unknown, now=self.now)
            tx.call(f"SELECT {unknown_addresses.COUNT}", listed)
        return []

    def call(self) -> tuple[str, str, tuple[Any, ...]]:
        """The tenant, the statement that writes everything but claims, and its values."""
        if not self.unknown:
            return self.tenant_id, _WRITE_EVENTS, self.parameters()
        listed = unknown_addresses.values(self.tenant_id, self.unknown, now=self.now)
        return self.tenant_id, _WRITE_EVENTS_AND_UNKNOWN, (*listed, *self.parameters())

    def parameters(self) -> tuple[Any, ...]:
        """For write_page_events: tokens, pages, event ids, views, visitors, likes and rejections."""
        tokens = {request.token for request in self.requests if request.token is not None}
        rejected: Counter[str] = Counter()
        for request in self.requests:
            rejected.update(request.rejected or {})
        likes = [(place, one) for place, one in enumerate(self.items, 1) if one.kind.gives_like is not None]
        visits = [(place, one.visit) for place, one in enumerate(self.items, 1) if one.visit is not None]
        limits = next((request.settings.limits for request in self.requests if request.settings), _DEFAULT_LIMITS)
        return (
            self.tenant_id,
            list(self._pages),
            array(self._pages[item.page] for item in self.items),
            array(int(item.at.timestamp()) // 3600 for item in self.items),
            array(item.event_key.hex if item.event_key else "NULL" for item in self.items),
            array("t" if item.kind is EventKind.VIEW else "f" for item in self.items),
            [token.client_id for token in tokens],
            [token.jti for token in tokens],
            self.now,
            array(place for place, _ in visits),
            [visit.visitor for _, visit in visits],
            [visit.network for _, visit in visits],
            array("t" if visit.is_load else "f" for _, visit in visits),
            limits.visitor_views_per_day,
            limits.visitors_per_address,
            array(place for place, _ in likes),
            array("t" if like.kind.gives_like else "f" for _, like in likes),
            [like.at if like.is_dated else None for _, like in likes],
            [like.user if isinstance(like.user, str) else None for _, like in likes],
            [like.user if isinstance(like.user, UUID) else None for _, like in likes],
            self.room,
            list(rejected),
            array(rejected.values()),
            not self.has_steps,
        )

    def assign_outcomes(self, row: Any) -> list[WriteRequest]:
        """Give every item its outcome. Where tokens are no longer valid nothing was written: returns the others."""
        if row.invalid_tokens:
            for request in self.requests:
                if request.token is not None and request.token.jti in row.invalid_tokens:
                    request.error = BadToken()
            return [request for request in self.requests if request.error is None]
        self.count_created(row.created_users)
        known = {page for page, page_id in zip(self._pages, row.page_ids or (), strict=True) if page_id is not None}
        accepted, likes = frozenset(row.accepted or ()), self._likes_after(row)
        limited, erased = frozenset(row.limited or ()), frozenset(row.erased or ())
        place = 0
        for request in self.requests:
            for item in request.items:
                place += 1
                if place in limited:
                    outcome = Outcome(Result.LIMITED)
                elif place in erased:
                    outcome = Outcome(Result.UNKNOWN_USER)
                elif place in accepted:
                    outcome = Outcome(Result.ACCEPTED, likes.get(place))
                else:
                    outcome = Outcome(Result.DUPLICATE if item.page in known else Result.UNKNOWN_PAGE)
                request.outcomes.append(outcome)
        return []

    def _likes_after(self, row: Any) -> dict[int, int]:
        """For each like that was applied, by its place: how many like the page then."""
        likes = dict(zip(self._pages, row.page_likes or (), strict=False))
        after: dict[int, int] = {}
        for place, delta in zip(row.like_places or (), row.like_deltas or (), strict=True):
            page = self.items[place - 1].page
            likes[page] += delta
            after[place] = likes[page]
        return after

    @property
    def has_steps(self) -> bool:
        """Whether more is written than `write_page_events` does: claims, or profiles of users."""
        return bool(self.claims) or any(request.profiles_of_items for request in self.requests)

    @property
    def _settings(self) -> TenantSettings:
        return next(request.settings for request in self.requests if request.settings is not None)

    def count_created(self, users: int) -> None:
        self._created_users += users
        self.room -= users

    def cashier(self) -> Cashier:
        """For the claims, on an event loop."""
        return Cashier(self.tenant_id, self.claims, self._settings, now=self.now)

    def assign_payments(self, outcomes: Iterable[Payment | DomainError | None]) -> list[WriteRequest]:
        """Give every claim its outcome. Returns the requests whose claim is left undecided."""
        remaining = iter(outcomes)
        left: list[WriteRequest] = []
        for request in self.requests:
            decided = [next(remaining) for _ in request.claims]
            request.payments = [outcome for outcome in decided if outcome is not None]
            paid = [one for one in request.payments if isinstance(one, Payment) and not one.is_replay]
            self._paid += paid
            self._logged += [(one, request.request_id) for one in paid if request.is_logged]
            if len(request.payments) < len(decided):
                left.append(request)
        return left

    def _pay(self, tx: Tx) -> None:
        """Pay or refuse the claims. Users whose profile may change are locked together with those who are paid."""
        if not self.claims:
            return
        self.count_created(profiles.lock_with_claims(tx, self.requests, room=self.room, now=self.now))
        app_actions = score_limits.together([one.app_actions for one in self.requests if one.app_actions is not None])
        outcomes = payments.pay_all(
            tx, self.claims, self._settings, room=self.room, now=self.now, app_actions=app_actions
        )
        self.assign_payments(outcomes.payments)
        self.count_created(outcomes.created_users)

    def follow_commit(self, calls: list[Callable[[], None]]) -> None:
        """Have every request with claims run these after the commit: none is answered before they are done."""
        for request in self.requests:
            if request.claims:
                request.after_commit = calls

    def measure(self) -> None:
        """After the commit: count what limits depend on."""
        if self._created_users:
            ceilings.add(self.tenant_id, Ceiling.USERS, self._created_users)
        payments.count_payments(self.tenant_id, self._paid)
        update_log.updates.record(self.tenant_id, self._logged)


# Functions, because their plans are cached: planning was half of a commit's cost.
_WRITE_EVENTS = """
    SELECT * FROM write_page_events(
        %s, %s::text[], %s::int[], %s::int[], %s::uuid[], %s::boolean[], %s::text[], %s::text[], %s::timestamptz,
        %s::int[], %s::uuid[], %s::uuid[], %s::boolean[], %s::int, %s::int,
        %s::int[], %s::boolean[], %s::timestamptz[], %s::text[], %s::uuid[], %s::bigint, %s::text[], %s::bigint[],
        %s)
"""
# Where a token is no longer valid, the others' addresses are counted with their next commit, as their events are.
_WRITE_EVENTS_AND_UNKNOWN = _WRITE_EVENTS.replace(
    "SELECT *", f"SELECT *, CASE WHEN invalid_tokens IS NULL THEN {unknown_addresses.COUNT} END AS new_addresses"
)
_DEFAULT_LIMITS = Limits()
