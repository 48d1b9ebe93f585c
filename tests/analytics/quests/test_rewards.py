"""Rewards: paid exactly once, whatever fails; XP and reputation have nothing to do with points."""

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from analytics import checks
from analytics.boards import projection
from analytics.quests import rewards, steps
from analytics.quests.people import Person
from analytics.quests.rewards import (
    LEASE,
    MAX_ATTEMPTS,
    PAUSES,
    Lease,
    PaymentState,
    RetryState,
    Reward,
    RewardBusy,
    RewardNotFound,
    RewardPaid,
)
from analytics.quests.states import Status
from analytics.scores import ledger
from tenants.db import utcnow
from tests.analytics.quests.questing import World, balances


class Broken:
    """A ledger that fails so many times for one account."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, account: str, times: int, error: Exception | str) -> None:
        """`error`: raised, or a statement that fails in PostgreSQL."""
        self.left = times
        add_entry = ledger.add_entry

        def failing(tx: Any, user: Any, metric: Any, **options: Any) -> Any:
            if metric.account == account and self.left:
                self.left -= 1
                if isinstance(error, Exception):
                    raise error
                tx.run(text(error), {})  # as the ledger does it
            return add_entry(tx, user, metric, **options)

        monkeypatch.setattr(ledger, "add_entry", failing)


LOCKED = OperationalError("x", {}, Exception("canceling statement due to lock timeout"))


def owed(world: World) -> list[Any]:
    return list(world.rows("SELECT * FROM failed_rewards ORDER BY reward_type"))


def states(world: World, quest: UUID) -> dict[Reward, PaymentState]:
    with world.tx() as tx:
        return rewards.states(tx, steps.find(tx, quest))


def check(world: World) -> list[Any]:
    projection.project_all(world.tenant, now=utcnow)
    return list(checks.check(world.tenant, now=utcnow()).differences)


def test_both_are_paid_with_the_completion_and_move_no_points(world: World) -> None:
    performer, creator = world.person(), world.person()
    quest = world.done(creator, performer, creator)
    assert balances(world, performer) == (0, 100, 5)
    entries = world.rows("SELECT account, source, delta, previous, score FROM score_ledger ORDER BY account")
    assert entries == [
        ("reputation", f"quest:{quest}:{performer.user_id}:reputation", 5, 0, 5),
        ("xp", f"quest:{quest}:{performer.user_id}:xp", 100, 0, 100),
    ]
    assert states(world, quest) == {Reward.XP: PaymentState.PAID, Reward.REPUTATION: PaymentState.PAID}
    assert owed(world) == []
    assert check(world) == []


def test_what_cannot_be_paid_is_owed_and_paid_by_the_third_retry(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    Broken(monkeypatch, "xp", 3, "SELECT 1 / 0")  # as in a statement of the ledger: only a savepoint survives it
    performer, creator, now = world.person(), world.person(), utcnow()
    quest = world.done(creator, performer, creator)
    assert world.get(quest).status == Status.COMPLETE, "the quest does not wait for its payment"
    (row,) = owed(world)
    assert (row.reward_type, row.amount, row.status, row.attempt_count) == ("XP", 100, "PENDING", 1)
    assert "division by zero" in row.reason
    assert row.error_details == {"error": "DataError", "code": "22012"}
    assert states(world, quest) == {Reward.XP: PaymentState.OWED, Reward.REPUTATION: PaymentState.PAID}
    assert check(world) == [], "what is owed is no difference"
    assert rewards.retry_due(world.tenant, by="worker", now=now) == 0, "not due yet"
    for attempt in (1, 2, 3):
        now = owed(world)[0].next_attempt_at
        assert world.tenant in rewards.tenants_with_due(now=now)
        paid = rewards.retry_due(world.tenant, by="worker", now=now)
        assert paid == (attempt == 3)
    (row,) = owed(world)
    assert (row.status, row.attempt_count, row.processed_at, row.processed_by) == ("COMPLETED", 4, now, "worker")
    assert balances(world, performer) == (0, 100, 5)
    assert states(world, quest)[Reward.XP] is PaymentState.PAID
    assert check(world) == []


def test_the_pauses_grow_and_after_the_last_attempt_it_has_failed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    Broken(monkeypatch, "reputation", 99, LOCKED)
    performer, creator = world.person(), world.person()
    quest = world.done(creator, performer, creator)
    first: datetime = owed(world)[0].created_at
    pauses = []
    while owed(world)[0].status == RetryState.PENDING:
        row = owed(world)[0]
        pauses.append(row.next_attempt_at - row.last_attempt_at)
        rewards.retry_due(world.tenant, by="worker", now=row.next_attempt_at)
    (row,) = owed(world)
    assert (row.status, row.attempt_count) == ("FAILED", MAX_ATTEMPTS)
    assert pauses == list(PAUSES)
    assert row.last_attempt_at - first < timedelta(hours=24)
    assert states(world, quest)[Reward.REPUTATION] is PaymentState.FAILED
    assert world.tenant not in rewards.tenants_with_due(now=utcnow() + timedelta(days=9))


def test_what_can_never_be_paid_fails_at_once(world: World) -> None:
    performer, creator = world.person(), world.person()
    with world.tx() as tx:
        named = {"max": ledger.MAX_SCORE - 50, "id": performer.user_id}
        tx.execute(text("UPDATE users SET experience_points = :max WHERE id = :id"), named)
    quest = world.done(creator, performer, creator)
    (row,) = owed(world)
    assert (row.reward_type, row.status, row.error_details["code"]) == ("XP", "FAILED", "score_too_high")
    assert states(world, quest) == {Reward.XP: PaymentState.FAILED, Reward.REPUTATION: PaymentState.PAID}


def leased(world: World, reward_id: UUID, *, now: datetime) -> Lease:
    with world.tx() as tx:
        return rewards.lease_one(tx, reward_id, now=now)


def test_an_admin_retries_what_is_not_paid_and_not_being_paid(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    Broken(monkeypatch, "xp", 1, LOCKED)
    performer, creator, now = world.person(), world.person(), utcnow()
    world.done(creator, performer, creator)
    (row,) = owed(world)
    lease = leased(world, row.id, now=now)
    with pytest.raises(RewardBusy):
        leased(world, row.id, now=now)
    assert rewards.retry_due(world.tenant, by="worker", now=now + PAUSES[0]) == 0, "it is leased"
    assert rewards.attempt_leased(world.tenant, lease, by="user:admin", now=now)
    with pytest.raises(RewardPaid):
        leased(world, row.id, now=now)
    with pytest.raises(RewardNotFound):
        leased(world, creator.require_user(), now=now)
    assert balances(world, performer) == (0, 100, 5)


def test_a_lease_whose_process_died_is_taken_over_and_nothing_is_paid_twice(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    Broken(monkeypatch, "xp", 1, LOCKED)
    performer, creator, now = world.person(), world.person(), utcnow()
    world.done(creator, performer, creator)
    (row,) = owed(world)
    leased(world, row.id, now=now)
    with world.tx() as tx:  # paid, but not recorded: as if it had been paid by hand
        rewards.pay_one(tx, row.quest_id, row.user_id, Reward.XP, row.amount, now=now)
    with ThreadPoolExecutor(4) as threads:
        later = now + LEASE
        paid = list(threads.map(lambda n: rewards.retry_due(world.tenant, by=f"worker {n}", now=later), range(4)))
    assert sorted(paid) == [0, 0, 0, 1]
    assert balances(world, performer) == (0, 100, 5)
    assert owed(world)[0].status == "COMPLETED"
    assert check(world) == []


def test_retrying_makes_way_after_a_step_and_leaves_none_leased(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewards, "MAX_LEASED", 2)
    Broken(monkeypatch, "xp", 3, LOCKED)
    performer, creator = world.person(), world.person()
    for _ in range(3):
        world.done(creator, performer, creator)
    later = max(row.next_attempt_at for row in owed(world))
    paid = [rewards.retry_due(world.tenant, by="worker", now=later, is_over=lambda: True)]
    assert sorted(row.status for row in owed(world)) == ["COMPLETED", "COMPLETED", "PENDING"]
    paid.append(rewards.retry_due(world.tenant, by="worker", now=later))
    assert paid == [2, 1]


def test_failed_rewards_are_listed_newest_first_by_status(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    Broken(monkeypatch, "xp", 3, LOCKED)
    creator = world.person()
    quests = [world.done(creator, world.person(), creator) for _ in range(3)]
    with world.tx() as tx:
        newest = rewards.list_(tx, status=None, after=None, limit=2)
        assert [row.quest_id for row in newest] == quests[:0:-1]
        rest = rewards.list_(tx, status="PENDING", after=(newest[-1].created_at, newest[-1].id), limit=2)
        assert [row.quest_id for row in rest] == quests[:1]
        assert rewards.list_(tx, status="FAILED", after=None, limit=2) == []


def test_a_lost_connection_commits_nothing_of_the_step(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = OperationalError("x", {}, Exception("server closed the connection"), connection_invalidated=True)
    Broken(monkeypatch, "xp", 1, lost)
    performer, creator = world.person(), world.person()
    quest = world.at(Status.PENDING_REVIEW, creator, performer)
    with pytest.raises(OperationalError):
        world.attest(quest, creator)
    assert world.get(quest).status == Status.PENDING_REVIEW
    assert balances(world, performer) == (0, 0, 0)
    world.attest(quest, Person(creator.user_id, is_admin=False, by="again"))
    assert balances(world, performer) == (0, 100, 5)


def test_whoever_has_lost_the_lease_changes_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Broken(monkeypatch, "xp", 1, LOCKED)
    performer, creator, now = world.person(), world.person(), utcnow()
    world.done(creator, performer, creator)
    (row,) = owed(world)
    first = leased(world, row.id, now=now)
    second = leased(world, row.id, now=now + LEASE)
    assert rewards.attempt_leased(world.tenant, second, by="second", now=now + LEASE)
    broken.left = 1
    assert not rewards.attempt_leased(world.tenant, first, by="first", now=now + LEASE), "it fails"
    assert not rewards.attempt_leased(world.tenant, first, by="first", now=now + LEASE), "it would pay"
    (row,) = owed(world)
    assert (row.status, row.processed_by) == ("COMPLETED", "second")
    assert balances(world, performer) == (0, 100, 5)


def test_attempts_that_die_count_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    Broken(monkeypatch, "xp", 1, LOCKED)
    performer, creator, now = world.person(), world.person(), utcnow()
    world.done(creator, performer, creator)
    monkeypatch.setattr(rewards, "attempt_leased", lambda *_args, **_options: False)  # as if the process had died
    for attempt in range(2 * MAX_ATTEMPTS):
        rewards.retry_due(world.tenant, by="worker", now=now + (attempt + 1) * LEASE)
    (row,) = owed(world)
    assert (row.status, row.attempt_count) == ("FAILED", MAX_ATTEMPTS)


def test_a_suspended_performer_is_paid_when_they_are_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    Broken(monkeypatch, "xp", 1, LOCKED)
    performer, creator = world.person(), world.person()
    world.done(creator, performer, creator)
    world.suspend(performer, at=utcnow())
    assert rewards.retry_due(world.tenant, by="worker", now=owed(world)[0].next_attempt_at) == 0
    assert (owed(world)[0].status, owed(world)[0].error_details["code"]) == ("PENDING", "performer_suspended")
    world.suspend(performer, at=None)
    assert rewards.retry_due(world.tenant, by="worker", now=owed(world)[0].next_attempt_at) == 1
