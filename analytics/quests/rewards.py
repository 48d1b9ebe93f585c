"""The rewards of a completed quest: XP and reputation, through the ledger, each exactly once.

They are paid in the transaction of the step that completes the quest, each in a savepoint of its own. One that cannot
be paid there is owed: a row of `failed_rewards`, which a worker retries with growing pauses, and an admin at any time.
The ledger's `source` decides whether a reward was paid, whoever tries to pay it how often.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID, uuid4

import orjson
import structlog
from sqlalchemy import select, text, tuple_
from sqlalchemy.exc import DBAPIError, IntegrityError

from analytics import metrics
from analytics.metrics import Metric
from analytics.quests import people
from analytics.quests.people import PerformerSuspended
from analytics.quests.tables import FailedReward, Quest
from analytics.scores import integrity, ledger, sources
from tenants import across
from tenants.across import OF_ONE
from tenants.db import Tx, tenant_tx
from tenants.errors import Conflict, DomainError, NotFound

MAX_ATTEMPTS = 8
# After each attempt but the last: 24 hours in all.
PAUSES = tuple(timedelta(minutes=minutes) for minutes in (1, 5, 15, 60, 180, 360, 720))
LEASE = timedelta(minutes=2)
# Few, since nobody else may try a reward that is leased: when a turn is over none is.
MAX_LEASED = 10
MAX_REASON_CHARS = 500
ACTION_TYPE = "quest"

log = structlog.get_logger()


class Reward(StrEnum):
    XP = "XP"
    REPUTATION = "REPUTATION"

    @property
    def metric(self) -> Metric:
        return metrics.XP if self is Reward.XP else metrics.REPUTATION

    def amount_of(self, quest: Quest) -> int:
        return quest.reward_xp if self is Reward.XP else quest.reward_reputation


class PaymentState(StrEnum):
    OWED = "owed"
    PAID = "paid"
    FAILED = "failed"
    REVERSED = "reversed"


class RetryState(StrEnum):
    PENDING = "PENDING"
    PROCESSING = "PROCESSING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


class NoPayee(DomainError):
    code = "no_payee"
    title = "The user was erased"


class TakenBack(DomainError):
    code = "taken_back"
    title = "An admin has taken back what this quest paid"


class LeaseLost(Exception):
    """Somebody else has tried it meanwhile."""


class RewardNotFound(NotFound):
    title = "There is no such reward"


class RewardPaid(Conflict):
    code = "reward_completed"
    title = "This reward was paid before"


class RewardBusy(Conflict):
    code = "reward_processing"
    title = "This reward is being paid just now"


# What an attempt may fail with, and whether it is worth trying again; whatever is not here is.
FAILS_AT_ONCE = (ledger.TooHigh, NoPayee, TakenBack, IntegrityError)


def pay(tx: Tx, quest: Quest, *, now: datetime) -> None:
    """Pay a completed quest's performer, whose row is locked. What cannot be paid is owed."""
    assert quest.performer_id is not None  # noqa: S101  a completed quest has one
    for reward in Reward:
        try:
            with tx.begin_nested():
                tx.connection()  # which sends the savepoint: what follows goes to the driver itself
                pay_one(tx, quest.id, quest.performer_id, reward, reward.amount_of(quest), now=now)
        except Exception as error:
            if isinstance(error, DBAPIError) and error.connection_invalidated:
                raise  # nothing of the step is committed
            _owe(tx, quest, reward, error, now=now)


def pay_one(tx: Tx, quest_id: UUID, user_id: UUID, reward: Reward, amount: int, *, now: datetime) -> None:
    """Add the ledger's entry, unless it is there."""
    user = ledger.lock_user(tx, user_id, reward.metric)
    if user is None:
        raise NoPayee
    if integrity.is_taken_back(tx, user_id, str(quest_id)):
        raise TakenBack
    ledger.add_entry(
        tx,
        user,
        reward.metric,
        source=sources.of_quest(quest_id, user_id, reward),
        delta=amount,
        at=now,
        payload_hash=hashlib.sha256(f"{quest_id}:{user_id}:{reward}:{amount}".encode()).digest(),
        action_type=ACTION_TYPE,
    )


def _owe(tx: Tx, quest: Quest, reward: Reward, error: Exception, *, now: datetime) -> None:
    status = RetryState.FAILED if isinstance(error, FAILS_AT_ONCE) else RetryState.PENDING
    tx.add(
        FailedReward(
            tenant_id=tx.tenant,
            id=uuid4(),
            quest_id=quest.id,
            user_id=quest.performer_id,
            reward_type=reward.value,
            amount=reward.amount_of(quest),
            reason=_reason(error),
            error_details=_details(error),
            status=status.value,
            attempt_count=1,
            created_at=now,
            last_attempt_at=now,
            next_attempt_at=now + PAUSES[0],
        )
    )
    tx.flush()
    _log_failure(tx.tenant, quest.id, reward.value, error, attempt=1, is_final=status is RetryState.FAILED)


def tenants_with_due(*, now: datetime) -> list[str]:
    """The tenants that owe rewards which are to be tried again."""
    return [row.id for row in across.read(_TENANTS_WITH_DUE, {"now": now})]


def _never() -> bool:
    return False


def retry_due(tenant_id: str, *, by: str, now: datetime, is_over: Callable[[], bool] = _never) -> int:
    """Try a tenant's due rewards again, step by step, until none is due or `is_over` says so.

    Each is tried in a transaction of its own. Returns how many were paid.
    """
    paid = 0
    while True:
        with tenant_tx(tenant_id) as tx:
            tx.run(_GIVE_UP, {"tenant": tenant_id, "now": now, "most": MAX_ATTEMPTS})
            leased = tx.run(_LEASE_DUE, _lease(tenant_id, now))
        paid += sum(attempt_leased(tenant_id, Lease(row.id, row.attempt_count), by=by, now=now) for row in leased)
        if len(leased) < MAX_LEASED or is_over():
            return paid


def get(tx: Tx, reward_id: UUID) -> FailedReward:
    owed = tx.get(FailedReward, (tx.tenant, reward_id), populate_existing=True)
    if owed is None:
        raise RewardNotFound
    return owed


@dataclass(frozen=True)
class Lease:
    """The right to try a reward: as long as nobody has tried it again."""

    reward_id: UUID
    attempt: int


def lease_one(tx: Tx, reward_id: UUID, *, now: datetime) -> Lease:
    """For `attempt_leased`, by an admin: whatever its state is, unless it is paid or being paid."""
    leased = tx.run(_LEASE_ONE, {**_lease(tx.tenant, now), "id": reward_id})
    if leased:
        return Lease(reward_id, leased[0].attempt_count)
    status = tx.scalar(select(FailedReward.status).where(FailedReward.id == reward_id))
    if status is None:
        raise RewardNotFound
    raise RewardPaid if status == RetryState.COMPLETED else RewardBusy


def attempt_leased(tenant_id: str, lease: Lease, *, by: str, now: datetime) -> bool:
    """Pay a reward that the caller has leased, in a transaction of its own. Returns whether it is paid."""
    try:
        with tenant_tx(tenant_id) as tx:
            _pay_leased(tx, lease, by=by, now=now)
    except LeaseLost:
        return False
    except Exception as error:  # noqa: BLE001  whatever it is, it is recorded, and the other rewards are tried
        _fail(tenant_id, lease, error, now=now)
        return False
    return True


def _pay_leased(tx: Tx, lease: Lease, *, by: str, now: datetime) -> None:
    owed = get(tx, lease.reward_id)
    payee = people.lock(tx, [owed.user_id]).get(owed.user_id)
    if payee is not None and payee.is_suspended:
        raise PerformerSuspended
    pay_one(tx, owed.quest_id, owed.user_id, Reward(owed.reward_type), owed.amount, now=now)
    if not tx.run(_COMPLETE, {**_named(tx.tenant, lease), "now": now, "by": by}):
        raise LeaseLost


def _named(tenant_id: str, lease: Lease) -> dict[str, Any]:
    return {"tenant": tenant_id, "id": lease.reward_id, "attempt": lease.attempt}


def _lease(tenant_id: str, now: datetime) -> dict[str, Any]:
    return {"tenant": tenant_id, "now": now, "until": now + LEASE, "limit": MAX_LEASED}


def _fail(tenant_id: str, lease: Lease, error: Exception, *, now: datetime) -> None:
    """Record why it failed, unless somebody else has tried it meanwhile."""
    is_final = isinstance(error, FAILS_AT_ONCE) or lease.attempt >= MAX_ATTEMPTS
    pause = PAUSES[min(lease.attempt, len(PAUSES)) - 1]
    with tenant_tx(tenant_id) as tx:
        failed = tx.run(
            _FAIL,
            {
                **_named(tenant_id, lease),
                "status": RetryState.FAILED if is_final else RetryState.PENDING,
                "reason": _reason(error),
                "details": orjson.dumps(_details(error)).decode(),
                "next": now + pause,
            },
        )
    for row in failed:
        _log_failure(tenant_id, row.quest_id, row.reward_type, error, attempt=lease.attempt, is_final=is_final)


def list_(tx: Tx, *, status: str | None, after: tuple[datetime, UUID] | None, limit: int) -> Sequence[FailedReward]:
    """Newest first."""
    query = select(FailedReward).order_by(FailedReward.created_at.desc(), FailedReward.id.desc()).limit(limit)
    if status is not None:
        query = query.where(FailedReward.status == status)
    if after is not None:
        query = query.where(tuple_(FailedReward.created_at, FailedReward.id) < after)
    return tx.scalars(query).all()


def states(tx: Tx, quest: Quest) -> dict[Reward, PaymentState]:
    """What became of a completed quest's rewards."""
    assert quest.performer_id is not None  # noqa: S101  a completed quest has one
    named = {
        reward: (reward.metric.account, sources.of_quest(quest.id, quest.performer_id, reward)) for reward in Reward
    }
    rows = tx.run(
        _STATES,
        {
            "tenant": tx.tenant,
            "quest": quest.id,
            "rewards": [reward.value for reward in named],
            "accounts": [account for account, _ in named.values()],
            "sources": [source for _, source in named.values()],
        },
    )
    return {Reward(row.reward): PaymentState(row.state) for row in rows}


def _reason(error: Exception) -> str:
    said = str(error.orig) if isinstance(error, DBAPIError) and error.orig is not None else str(error)
    return (said.splitlines() or [type(error).__name__])[0][:MAX_REASON_CHARS] or type(error).__name__


def _details(error: Exception) -> dict[str, Any]:
    code = getattr(getattr(error, "orig", None), "sqlstate", None) or getattr(error, "code", None)
    return {"error": type(error).__name__, "code": code}


def _log_failure(
    tenant_id: str, quest_id: UUID, reward: str, error: Exception, *, attempt: int, is_final: bool
) -> None:
    data = {"quest": str(quest_id), "reward": reward, "attempt": attempt, **_details(error)}
    write = log.error if is_final else log.warning
    write("a reward could not be paid", action="reward.failed", tenantId=tenant_id, data=data)


_TENANTS_WITH_DUE = text(f"""
    SELECT DISTINCT t.id FROM tenants t JOIN failed_rewards f ON f.tenant_id = t.id
    WHERE f.status IN ('PENDING', 'PROCESSING') AND f.next_attempt_at <= :now AND {OF_ONE} ORDER BY t.id
""")  # noqa: S608  our own names
# Also those whose last attempt died with its process.
# An array is computed once. A subquery in FROM could be executed again after some rows were changed, and return more.
_LEASE_DUE = text("""
    UPDATE failed_rewards SET status = 'PROCESSING', attempt_count = attempt_count + 1, last_attempt_at = :now,
        next_attempt_at = :until
    WHERE tenant_id = :tenant AND id = ANY(ARRAY(
        SELECT id FROM failed_rewards
        WHERE tenant_id = :tenant AND status IN ('PENDING', 'PROCESSING') AND next_attempt_at <= :now
        ORDER BY next_attempt_at LIMIT :limit FOR UPDATE SKIP LOCKED
    ))
    RETURNING id, attempt_count
""")
# Whose last attempt died too.
_GIVE_UP = text("""
    UPDATE failed_rewards SET status = 'FAILED'
    WHERE tenant_id = :tenant AND status IN ('PENDING', 'PROCESSING') AND next_attempt_at <= :now
      AND attempt_count >= :most
    RETURNING id
""")
_LEASE_ONE = text("""
    UPDATE failed_rewards SET status = 'PROCESSING', attempt_count = attempt_count + 1, last_attempt_at = :now,
        next_attempt_at = :until
    WHERE tenant_id = :tenant AND id = :id
      AND (status IN ('PENDING', 'FAILED') OR (status = 'PROCESSING' AND next_attempt_at <= :now))
    RETURNING attempt_count
""")
_COMPLETE = text("""
    UPDATE failed_rewards SET status = 'COMPLETED', processed_at = :now, processed_by = :by
    WHERE tenant_id = :tenant AND id = :id AND status = 'PROCESSING' AND attempt_count = :attempt RETURNING id
""")
_FAIL = text("""
    UPDATE failed_rewards SET status = :status, reason = :reason, error_details = CAST(:details AS jsonb),
        next_attempt_at = :next
    WHERE tenant_id = :tenant AND id = :id AND status = 'PROCESSING' AND attempt_count = :attempt
    RETURNING quest_id, reward_type
""")
_STATES = text("""
    SELECT w.reward, CASE WHEN r.id IS NOT NULL THEN 'reversed' WHEN e.id IS NOT NULL THEN 'paid'
                          WHEN f.status = 'FAILED' THEN 'failed' ELSE 'owed' END AS state
    FROM unnest(CAST(:rewards AS text[]), CAST(:accounts AS text[]), CAST(:sources AS text[]))
         AS w(reward, account, source)
    LEFT JOIN score_ledger e ON e.tenant_id = :tenant AND e.account = w.account AND e.source = w.source
    LEFT JOIN score_ledger r ON r.tenant_id = :tenant AND r.reverses = e.id
    LEFT JOIN failed_rewards f ON f.tenant_id = :tenant AND f.quest_id = :quest AND f.reward_type = w.reward
""")
