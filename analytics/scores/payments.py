"""Paying for actions, each once: all claims of a commit together, in two calls however many they are.

The SQL function `read_claim_facts` locks the users and reads what decides about their claims; each is decided in turn;
and `record_payments` writes what is paid: ledger, audit, scores, hours, used tokens, outbox. A replay is answered
before any limit, as the first time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from analytics import user_changes
from analytics.boards import ranks, reading
from analytics.boards.names import Board
from analytics.boards.ranks import Entry, RankQuestion
from analytics.metrics import POINTS
from analytics.scores import integrity, ledger, limits, new_payments
from analytics.scores.actions import (
    ActionClaim,
    Done,
    PayloadDiffers,
    Payment,
    UserSuspended,
    Verification,
    midnight,
    normal_object,
    points_for,
)
from analytics.scores.catalog import Terms, UnknownAction
from analytics.scores.integrity import Rule
from analytics.scores.new_payments import Call, NewPayment
from analytics.windows import Window
from tenants import ceilings, users
from tenants.allowances import Taken
from tenants.ceilings import Ceiling, CeilingReached
from tenants.db import Tx
from tenants.errors import DomainError, Unavailable
from tenants.metrics import Counter
from tenants.settings import TenantSettings
from tenants.throttle import State, TooMany

MAX_TRIES = 3

PAID = Counter("plaudit_points_paid_total", "Points paid for actions.", ["tenant"])


class Contended(Unavailable):
    code = "overloaded"
    title = "Another request claims the same action: try again"


@dataclass(frozen=True)
class Paid:
    """What became of the claims, in their order; and how many users were created for them."""

    payments: Sequence[Payment | DomainError]
    created_users: int


def pay_all(
    tx: Tx,
    claims: Sequence[ActionClaim],
    settings: TenantSettings,
    *,
    room: int,
    now: datetime,
    app_actions: Taken | None = None,
) -> Paid:
    """Pay or refuse each by itself. `room`: how many users may be created on first sight."""
    if not claims:
        return Paid([], 0)
    for _ in range(MAX_TRIES):
        cashier = Cashier(tx.tenant, claims, settings, now=now, tx=tx, app_actions=app_actions)
        cashier.decide(*tx.call_in_one_trip(*cashier.reads(room)))
        record = cashier.record(reading.ranks_for(tx, cashier.ranks_wanted()))
        if record is None or tx.call(*record)[0].record_payments:
            for user_id in cashier.flagged:
                integrity.name_entries(tx, user_id, Rule.POINTS_PER_HOUR, now=now)
            return Paid([outcome for outcome in cashier.outcomes() if outcome is not None], cashier.created_users)
        # Another transaction has just paid one of the sources to another user.
    raise Contended


def count_payments(tenant_id: str, paid: Sequence[Payment]) -> None:
    """Count committed payments, for the metrics and for the breakers."""
    if paid:
        PAID.labels(tenant_id).inc(sum(payment.delta for payment in paid))
        limits.breakers.passed(tenant_id, len(paid))


@dataclass
class _Account:
    """A locked user as the next claim finds it: payments of this commit are added."""

    user_id: UUID
    score: int
    is_suspended: bool
    updates: int
    oldest_update_at: datetime | None
    points_in_last_hour: int
    done: dict[str, Done] = field(default_factory=dict)
    # Users who get nothing more in this commit, whatever they claim.
    refused: DomainError | None = None


@dataclass(frozen=True)
class _Repeated:
    """A claim whose source another claim of the same commit has."""

    of: NewPayment


class _Left(Exception):
    """A claim that only a thread can decide: it would have to ask the database for more."""


_Decision = NewPayment | _Repeated | Payment | DomainError | _Left


def _outcome(decided: _Decision) -> Payment | DomainError | None:
    match decided:
        case _Left():
            return None
        case NewPayment():
            return decided.payment(is_replay=False)
        case _Repeated(first):
            return first.payment(is_replay=True)
        case Payment() | DomainError():
            return decided


class Cashier:
    """The claims of one tenant in one commit: what decides about them, and what was decided so far.

    Whoever has the transaction executes its `reads`, has the claims decided, and executes `record`, which writes what
    is paid, with the `ranks_wanted`. Without `tx` (on an event loop) a claim about which more would have to be asked is
    left undecided.
    """

    def __init__(
        self,
        tenant_id: str,
        claims: Sequence[ActionClaim],
        settings: TenantSettings,
        *,
        now: datetime,
        tx: Tx | None = None,
        app_actions: Taken | None = None,
    ) -> None:
        """`app_actions`: how many claims of the tenant's apps may be paid; None: any number."""
        self._tenant_id = tenant_id
        self._app_actions = app_actions
        self._app_payments = 0
        self._tx = tx
        self._settings = settings
        self._now = now
        # The ledger's times are in milliseconds, as everything that is shown.
        self._at = now.replace(microsecond=now.microsecond // 1000 * 1000)
        self._claims = claims
        self._new: list[NewPayment] = []
        self._accounts: dict[UUID, _Account] = {}
        self._paid_sources: dict[str, NewPayment] = {}
        self._once_keys: set[str] = set()
        self._decided: list[_Decision] = []
        self.created_users = 0
        # Who got too much in an hour: when all is written, their flags name the payments.
        self.flagged: set[UUID] = set()
        # Users of claims whose ranks are shown, and those whose rows on the board are out of date, as they were before.
        self._pending: Sequence[Any] = ()

    def reads(self, room: int) -> list[Call]:
        """What `decide` is given the rows of: the facts; and if ranks are to be shown, who is stale on the board."""
        ranked = {
            claim.user
            for claim in self._claims
            if isinstance(claim.user, UUID) and claim.verification is not Verification.CLIENT
        }
        # After the facts, whose locks it waits for; so before the board is read.
        return [self._facts(room), *([ranks.pending_call(self._tenant_id, ranked)] if ranked else ())]

    def _facts(self, room: int) -> Call:
        """For each claim everything it depends on: an earlier payment, the terms, and what the user was paid lately."""
        claims = self._claims
        return _FACTS, (
            self._tenant_id,
            POINTS.account,
            [claim.user if isinstance(claim.user, UUID) else None for claim in claims],
            [claim.user if isinstance(claim.user, str) else None for claim in claims],
            [claim.action_type for claim in claims],
            [claim.source for claim in claims],
            [normal_object(claim.object) for claim in claims],
            [claim.object or "" for claim in claims],
            room,
            self._now,
            midnight(self._now),
            self._now - integrity.WINDOW,
            self._now - timedelta(seconds=limits.WINDOW_S),
            Rule.POINTS_PER_HOUR.value,
        )

    def decide(self, facts: Sequence[Any], pending: Sequence[Any] = ()) -> None:
        """Each claim in turn."""
        self._pending = pending
        self.created_users = facts[0].created
        # With our id of their user, where there is one.
        claims = [
            claim if row.user_id is None or row.user_id == claim.user else replace(claim, user=row.user_id)
            for claim, row in zip(self._claims, facts, strict=True)
        ]
        for claim, row in zip(claims, facts, strict=True):
            self._open_account(claim, row)
        self._decided = [self._decide(claim, row) for claim, row in zip(claims, facts, strict=True)]

    def outcomes(self) -> list[Payment | DomainError | None]:
        """What became of the claims, in their order. None: it is left undecided, and nothing of it was written."""
        return [_outcome(one) for one in self._decided]

    def ranks_wanted(self) -> RankQuestion:
        """The ranks to be shown: of the new scores, among what all users have with the payments of this commit."""
        board = Board(self._tenant_id, "users", Window.ALL, POINTS)
        if not any(new.shows_rank for new in self._new):
            return RankQuestion(board)
        reached = {row.user_id: row.reached_at for row in self._pending}
        entries = [self._entry(new, reached.get(new.user_id)) for new in self._new]
        paid = {str(new.user_id): entry for new, entry in zip(self._new, entries, strict=True)}
        # Of two payments of a user both answers have the rank at the commit.
        asked = [paid[str(new.user_id)] for new in self._new if new.shows_rank]
        return RankQuestion(board, asked, {**ranks.current_entries(self._pending), **paid})

    def _entry(self, new: NewPayment, reached_before: datetime | None) -> Entry:
        reached_at = max(self._at, reached_before) if reached_before is not None else self._at
        return ranks.entry_of(new.user_id, new.score, reached_at)

    def record(self, answered: Sequence[int | None]) -> Call | None:
        """What writes the payments, with the `ranks_wanted`; None: there are none.

        It returns false, and writes nothing, if one of the sources was paid to another user meanwhile.
        """
        for new, rank in zip((new for new in self._new if new.shows_rank), answered, strict=True):
            new.rank = rank
        return new_payments.recording(self._tenant_id, self._new, now=self._now, at=self._at) if self._new else None

    def _open_account(self, claim: ActionClaim, row: Any) -> None:
        if row.user_id is None:
            return
        account = self._accounts.get(row.user_id)
        if account is None:
            account = self._accounts[row.user_id] = _Account(
                row.user_id, row.balance, row.is_suspended, row.updates, row.oldest_update_at, row.points_in_last_hour
            )
        account.done.setdefault(claim.action_type, Done(row.times_today, row.points_today, row.last_at))

    def _decide(self, claim: ActionClaim, row: Any) -> _Decision:
        try:
            return self._replay(claim, row) or self._pay(claim, row)
        except _Left as left:
            return left
        except DomainError as refused:
            account = self._accounts.get(row.user_id)
            if account is not None and isinstance(refused, UserSuspended | limits.TooBusy):
                account.refused = refused
            return refused

    def _replay(self, claim: ActionClaim, row: Any) -> Payment | _Repeated | None:
        """The first payment for the same source, in an earlier transaction or in this one."""
        first = self._paid_sources.get(claim.source)
        if row.paid_hash is None and first is None:
            return None
        if claim.payload_hash != (bytes(row.paid_hash) if first is None else first.claim.payload_hash):
            raise PayloadDiffers
        if first is not None:
            return _Repeated(first)
        return Payment(row.paid_score, row.paid_delta, row.paid_rank, row.paid_event_id, is_replay=True)

    def _pay(self, claim: ActionClaim, row: Any) -> NewPayment:
        account = self._account_of(claim, row)
        done, was_done = account.done[claim.action_type], row.was_done or row.once_key in self._once_keys
        points, terms = points_for(claim, _terms(row), done, was_done=was_done, now=self._now)
        if account.score + points > ledger.MAX_SCORE:
            raise ledger.TooHigh
        state = self._limit(claim, account)
        limits.breakers.require(
            self._tenant_id, max_per_minute=self._settings.limits.score_spike_per_minute, pending=len(self._new)
        )
        is_suspicious = account.points_in_last_hour + points > self._settings.integrity.points_per_hour
        if is_suspicious:
            self._require_tx()  # before anything changes
        account.score += points
        account.points_in_last_hour += points
        if claim.verification is Verification.CLIENT:
            self._app_payments += 1
        else:
            account.updates += 1
            account.oldest_update_at = account.oldest_update_at or self._at
        done.times_today, done.points_today, done.last_at = done.times_today + 1, done.points_today + points, self._at
        if terms.once_per_object:
            self._once_keys.add(row.once_key)
        new = self._paid_sources[claim.source] = NewPayment(
            claim,
            account.user_id,
            uuid4(),
            points,
            account.score,
            once_key=row.once_key if terms.once_per_object else None,
            limit=state,
        )
        self._new.append(new)
        if is_suspicious:
            self._flag(account)
        return new

    def _limit(self, claim: ActionClaim, account: _Account) -> State | None:
        """The state of the user's own limit. What the tenant's app claims is under the tenant's limit instead."""
        if claim.verification is not Verification.CLIENT:
            return limits.require_user(
                per_minute=self._settings.limits.score_updates_per_minute,
                updates=account.updates,
                oldest_at=account.oldest_update_at,
                now=self._now,
            )
        taken = self._app_actions
        if taken is not None and self._app_payments >= taken.amount:
            raise TooMany(f"At most {taken.state.limit} actions of the tenant's apps a minute", state=taken.state)
        return None

    def _account_of(self, claim: ActionClaim, row: Any) -> _Account:
        """The account that the claim is paid to; or why there is none."""
        if isinstance(claim.user, str):  # not created: the action is unknown, or there is no room
            if row.points is None:
                raise UnknownAction(claim.action_type)
            raise CeilingReached(Ceiling.USERS, ceilings.read(self._require_tx())[Ceiling.USERS])
        account = self._accounts.get(claim.user)
        if account is None or account.is_suspended:
            raise UserSuspended
        if account.refused is not None:
            raise account.refused
        return account

    def _flag(self, account: _Account) -> None:
        rule, tx = self._settings.integrity, self._require_tx()
        self.flagged.add(account.user_id)
        is_raised = integrity.raise_flag(
            tx,
            account.user_id,
            Rule.POINTS_PER_HOUR,
            {"points": account.points_in_last_hour, "most": rule.points_per_hour},
            state=integrity.State.SUSPENDED if rule.suspend_automatically else integrity.State.OPEN,
            now=self._now,
        )
        if is_raised and rule.suspend_automatically:
            user_changes.change_user(tx, users.get(tx, account.user_id), {"suspended": True}, now=self._now)
            account.is_suspended = True

    def _require_tx(self) -> Tx:
        if self._tx is None:
            raise _Left
        return self._tx


def _terms(row: Any) -> Terms | None:
    """The catalog's terms; None: it does not know the action."""
    if row.points is None:
        return None
    return Terms(
        row.points,
        row.daily_cap,
        row.daily_limit,
        row.cooldown_s,
        once_per_object=row.once_per_object,
        requires_token=row.requires_token,
        enabled=row.enabled,
    )


# A function, because its plans are cached; called without SQLAlchemy's compilation, which costs as much as it does.
_FACTS = """
    SELECT * FROM read_claim_facts(
        %s, %s, %s::uuid[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::bigint, %s::timestamptz,
        %s::timestamptz, %s::timestamptz, %s::timestamptz, %s)
"""
