"""Paying for actions, each once: all claims of a commit together, in two calls however many they are.

The SQL function `read_claim_facts` locks the users and reads what decides about their claims; each is decided in turn;
and `record_payments` writes what is paid: ledger, audit, scores, hours, used tokens, outbox. A replay is answered
before any limit, as the first time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import orjson
from prometheus_client import Counter

from analytics import user_changes
from analytics.boards import reading
from analytics.boards.names import Board
from analytics.metrics import POINTS
from analytics.scores import integrity, ledger, limits
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
from analytics.scores.audit import MAX_AGENT_CHARS
from analytics.scores.catalog import Terms, UnknownAction
from analytics.scores.integrity import Rule
from analytics.windows import Window, hour_of
from tenants import ceilings, users
from tenants.ceilings import Ceiling, CeilingReached
from tenants.db import Tx, array
from tenants.errors import DomainError, Unavailable
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


def pay_all(tx: Tx, claims: Sequence[ActionClaim], settings: TenantSettings, *, room: int, now: datetime) -> Paid:
    """Pay or refuse each by itself. `room`: how many users may be created on first sight."""
    if not claims:
        return Paid([], 0)
    for _ in range(MAX_TRIES):
        cashier = Cashier(tx.tenant, claims, settings, now=now, tx=tx)
        cashier.decide(tx.call(*cashier.facts(room)))
        record = cashier.record(reading.ranks_for(tx, cashier.board, cashier.scores_to_rank))
        if record is None or tx.call(*record)[0].record_payments:
            for user_id in cashier.flagged:
                integrity.name_entries(tx, user_id, Rule.POINTS_PER_HOUR, now=now)
            return Paid([outcome for outcome in cashier.outcomes() if outcome is not None], cashier.created_users)
        # Another transaction has just paid one of the sources to another user.
    raise Contended


def count_payments(tenant_id: str, points: Sequence[int]) -> None:
    """Count committed payments, for the metrics and for the breakers."""
    if points:
        PAID.labels(tenant_id).inc(sum(points))
        limits.breakers.passed(tenant_id, len(points))


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


@dataclass
class _NewPayment:
    """A payment to be written."""

    claim: ActionClaim
    user_id: UUID
    event_id: UUID
    delta: int
    score: int
    once_key: str | None
    limit: State
    rank: int | None = None

    def payment(self, *, is_replay: bool) -> Payment:
        limit = None if is_replay else self.limit
        return Payment(self.score, self.delta, self.rank, self.event_id, is_replay=is_replay, limit=limit)


@dataclass(frozen=True)
class _Repeated:
    """A claim whose source another claim of the same commit has."""

    of: _NewPayment


class _Left(Exception):
    """A claim that only a thread can decide: it would have to ask the database for more."""


_Decision = _NewPayment | _Repeated | Payment | DomainError | _Left
# A statement, and a value for each `%s`.
Call = tuple[str, Sequence[Any]]


def _outcome(decided: _Decision) -> Payment | DomainError | None:
    match decided:
        case _Left():
            return None
        case _NewPayment():
            return decided.payment(is_replay=False)
        case _Repeated(first):
            return first.payment(is_replay=True)
        case Payment() | DomainError():
            return decided


class Cashier:
    """The claims of one tenant in one commit: what decides about them, and what was decided so far.

    Whoever has the transaction asks it `facts`, has the claims decided, and executes `record`, which writes what is
    paid. Without `tx` (on an event loop) a claim about which more would have to be asked is left undecided.
    """

    def __init__(
        self,
        tenant_id: str,
        claims: Sequence[ActionClaim],
        settings: TenantSettings,
        *,
        now: datetime,
        tx: Tx | None = None,
    ) -> None:
        self._tenant_id = tenant_id
        self._tx = tx
        self._settings = settings
        self._now = now
        # The ledger's times are in milliseconds, as everything that is shown.
        self._at = now.replace(microsecond=now.microsecond // 1000 * 1000)
        self._claims = claims
        self._new: list[_NewPayment] = []
        self._accounts: dict[UUID, _Account] = {}
        self._paid_sources: dict[str, _NewPayment] = {}
        self._once_keys: set[str] = set()
        self._decided: list[_Decision] = []
        self.created_users = 0
        # Who got too much in an hour: when all is written, their flags name the payments.
        self.flagged: set[UUID] = set()
        self.board = Board(tenant_id, "users", Window.ALL, POINTS)

    def facts(self, room: int) -> Call:
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

    def decide(self, facts: Sequence[Any]) -> None:
        """Each claim in turn."""
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

    @property
    def scores_to_rank(self) -> list[int]:
        """The new scores whose ranks are shown: not those of a batch."""
        return [new.score for new in self._ranked]

    @property
    def _ranked(self) -> list[_NewPayment]:
        return [new for new in self._new if new.claim.verification is not Verification.CLIENT]

    def record(self, ranks: Sequence[int]) -> Call | None:
        """What writes the payments, with the ranks of `scores_to_rank`; None: there are none.

        It returns false, and writes nothing, if one of the sources was paid to another user meanwhile.
        """
        for new, rank in zip(self._ranked, ranks, strict=True):
            new.rank = rank
        return (_RECORD, self._columns()) if self._new else None

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
            if account is not None and isinstance(refused, TooMany | UserSuspended | limits.TooBusy):
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

    def _pay(self, claim: ActionClaim, row: Any) -> _NewPayment:
        account = self._account_of(claim, row)
        done, was_done = account.done[claim.action_type], row.was_done or row.once_key in self._once_keys
        points, terms = points_for(claim, _terms(row), done, was_done=was_done, now=self._now)
        if account.score + points > ledger.MAX_SCORE:
            raise ledger.TooHigh
        state = limits.require_user(
            per_minute=self._settings.limits.score_updates_per_minute,
            updates=account.updates,
            oldest_at=account.oldest_update_at,
            now=self._now,
        )
        limits.breakers.require(
            self._tenant_id, max_per_minute=self._settings.limits.score_spike_per_minute, pending=len(self._new)
        )
        is_suspicious = account.points_in_last_hour + points > self._settings.integrity.points_per_hour
        if is_suspicious:
            self._require_tx()  # before anything changes
        account.score += points
        account.updates += 1
        account.oldest_update_at = account.oldest_update_at or self._at
        account.points_in_last_hour += points
        done.times_today, done.points_today, done.last_at = done.times_today + 1, done.points_today + points, self._at
        if terms.once_per_object:
            self._once_keys.add(row.once_key)
        new = self._paid_sources[claim.source] = _NewPayment(
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

    def _columns(self) -> tuple[Any, ...]:
        """The parameters of `record_payments`, in its order."""
        claims = [new.claim for new in self._new]
        tokens = [claim.token for claim in claims if claim.token is not None]
        return (
            self._tenant_id,
            POINTS.account,
            self._now,
            self._at,
            hour_of(self._at),
            array(new.user_id for new in self._new),
            [claim.source for claim in claims],
            [claim.action_type for claim in claims],
            array(new.delta for new in self._new),
            array(new.score for new in self._new),
            array("NULL" if new.rank is None else new.rank for new in self._new),
            array(new.event_id for new in self._new),
            [claim.payload_hash for claim in claims],
            [new.once_key for new in self._new],
            array(claim.verification.value for claim in claims),
            [claim.client_time for claim in claims],
            [claim.object for claim in claims],
            [claim.ip for claim in claims],
            [(claim.agent or "")[:MAX_AGENT_CHARS] or None for claim in claims],
            [_json(claim.client_info) for claim in claims],
            [_json(claim.metadata) for claim in claims],
            [token.id for token in tokens],
            [token.expires_at for token in tokens],
        )


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


def _json(value: Mapping[str, Any] | None) -> str | None:
    return orjson.dumps(value).decode() if value else None


# Functions, because their plans are cached; called without SQLAlchemy's compilation, which cost as much as they do.
_FACTS = """
    SELECT * FROM read_claim_facts(
        %s, %s, %s::uuid[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::bigint, %s::timestamptz,
        %s::timestamptz, %s::timestamptz, %s::timestamptz, %s)
"""
_RECORD = """
    SELECT record_payments(
        %s, %s, %s::timestamptz, %s::timestamptz, %s::timestamptz, %s::uuid[], %s::text[], %s::text[], %s::bigint[],
        %s::bigint[], %s::bigint[], %s::uuid[], %s::bytea[], %s::text[], %s::text[], %s::timestamptz[], %s::text[],
        %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::timestamptz[])
"""
