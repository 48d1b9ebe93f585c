"""Steps: one winner, the moment that counts, rounds, and what people may do in a day."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from analytics import checks
from analytics.quests import expiring, people, steps
from analytics.quests.people import (
    AlreadyWitnessed,
    Expected,
    PerformerSuspended,
    Person,
    QuestExpired,
    QuestNotFound,
    RuleBroken,
    WrongState,
)
from analytics.quests.states import Status
from analytics.quests.steps import NewAttestation
from analytics.scores.actions import UserSuspended
from tenants.db import Tx, utcnow
from tenants.errors import Invalid, PreconditionRequired, Stale
from tenants.settings import Quests
from tests.analytics.quests.questing import WORK, World, balances


def test_of_fifty_who_claim_at_once_one_gets_it(world: World) -> None:
    quest, claimants = world.create(world.person()), [world.person() for _ in range(50)]

    def claim(person: Person) -> str:
        try:
            world.claim(quest, person)
        except WrongState as refused:
            return refused.code
        return "claimed"

    with ThreadPoolExecutor(10) as threads:
        outcomes = list(threads.map(claim, claimants))
    assert sorted(outcomes) == ["claimed"] + ["quest_claimed"] * 49
    assert world.get(quest).performer_id == claimants[outcomes.index("claimed")].user_id


def test_of_many_who_attest_at_once_each_counts_once_and_it_is_paid_once(world: World) -> None:
    creator, performer, attesters = world.person(), world.person(), [world.person() for _ in range(8)]
    quest = world.create(creator, attestations_required=4)
    world.claim(quest, performer)
    world.submit(quest, performer)

    def attest(person: Person) -> str:
        try:
            world.attest(quest, person)
        except WrongState as refused:
            return refused.code
        return "attested"

    with ThreadPoolExecutor(8) as threads:
        outcomes = sorted(threads.map(attest, attesters))
    assert outcomes == ["attested"] * 4 + ["quest_complete"] * 4
    assert balances(world, performer) == (0, 100, 5)
    assert checks.check(world.tenant, now=utcnow()).differences == []


def test_a_quest_goes_from_offer_to_payment(world: World) -> None:
    creator, performer = world.person(), world.person()
    quest = world.done(creator, performer, creator)
    done = world.get(quest)
    assert (done.status, done.submission) == (Status.COMPLETE, WORK)
    assert done.created_at <= done.claimed_at <= done.submitted_at <= done.completed_at == done.updated_at  # type: ignore[operator]
    assert (world.user(creator).quests_created, world.user(creator).attestations_given) == (1, 1)
    user = world.user(performer)
    assert (user.quests_completed, user.attestations_received, user.quests_created) == (1, 1, 0)
    assert balances(world, performer) == (0, 100, 5)


def test_a_quest_past_its_time_is_expired_whatever_step_is_meant(world: World) -> None:
    creator, performer = world.person(), world.person()
    for status in (Status.OPEN, Status.CLAIMED):
        quest = world.at(status, creator, performer)
        world.let_expire(quest)
        for take in (steps.cancel, steps.release):
            with pytest.raises(QuestExpired) as refused, world.tx() as tx:
                take(tx, quest, creator)
            assert refused.value.code == "quest_expired"
        expiring.expire(world.tenant, quest)
        assert world.get(quest).status == Status.EXPIRED
    reviewed = world.at(Status.PENDING_REVIEW, creator, performer)
    world.let_expire(reviewed)
    expiring.expire(world.tenant, reviewed)
    world.attest(reviewed, creator)
    assert world.get(reviewed).status == Status.COMPLETE, "what was submitted in time is reviewed"


def test_the_statement_itself_sees_that_the_time_has_come(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    quest, performer = world.create(world.person(), expires_at=utcnow() + timedelta(minutes=1)), world.person()
    read = steps._read

    def read_before_it_expires(*args: object, **options: object) -> object:
        found = read(*args, **options)  # type: ignore[arg-type]
        if not options["lock"]:
            world.let_expire(quest)
        return found

    monkeypatch.setattr(steps, "_read", read_before_it_expires)
    with pytest.raises(QuestExpired):
        world.claim(quest, performer)


def test_a_stale_version_is_refused_before_the_state_and_a_missing_one_where_it_is_demanded(world: World) -> None:
    creator = world.person()
    quest = world.at(Status.COMPLETE, creator, world.person())
    for expected, error in ((Expected(1), Stale), (Expected(None, is_required=True), PreconditionRequired)):
        with pytest.raises(error), world.tx() as tx:
            steps.cancel(tx, quest, creator, expected=expected)
    with pytest.raises(WrongState), world.tx() as tx:
        steps.cancel(tx, quest, creator, expected=Expected(world.get(quest).version, is_required=True))


def test_what_does_not_exist_is_not_found_before_anything_else(world: World) -> None:
    with pytest.raises(QuestNotFound), world.tx() as tx:
        steps.claim(tx, uuid4(), world.person(), world.settings, Expected(7))


def test_nobody_attests_twice_in_a_round_or_their_own_work(world: World) -> None:
    creator, performer, other = world.person(), world.person(), world.person()
    quest = world.create(creator, attestations_required=3)
    world.claim(quest, performer)
    world.submit(quest, performer)
    world.attest(quest, other)
    for person, code in ((other, "already_attested"), (performer, "own_work")):
        with pytest.raises(RuleBroken) as refused:
            world.attest(quest, person)
        assert refused.value.code == code
    with pytest.raises(AlreadyWitnessed), world.tx() as tx:
        steps.withdraw(tx, quest, performer, world.settings)


def test_a_low_average_is_disputed_and_an_admin_opens_a_new_round(world: World) -> None:
    creator, performer, admin = world.person(), world.person(), world.person(is_admin=True)
    quest = world.at(Status.PENDING_REVIEW, creator, performer)
    world.attest(quest, creator, rating=2)
    assert world.get(quest).status == Status.DISPUTED
    assert balances(world, performer) == (0, 0, 0)
    with world.tx() as tx:
        steps.resolve(tx, quest, admin, Status.OPEN, reason="try again", now=utcnow())
    opened = world.get(quest)
    assert (opened.status, opened.round, opened.performer_id, opened.submission) == (Status.OPEN, 2, None, None)
    (step,) = world.rows("SELECT performer_id, submission, reason FROM quest_history WHERE step = 'resolve'")
    assert step == (performer.user_id, WORK, "try again")
    world.claim(quest, performer)
    world.submit(quest, performer, "better")
    world.attest(quest, creator, rating=4)
    assert world.get(quest).status == Status.COMPLETE
    assert (world.user(performer).attestations_received, world.user(performer).quests_completed) == (2, 1)
    assert balances(world, performer) == (0, 100, 5)


def test_an_expired_quest_is_opened_again_only_with_a_new_time(world: World) -> None:
    creator, performer, admin = world.person(), world.person(), world.person(is_admin=True)
    quest = world.at(Status.DISPUTED, creator, performer)
    world.let_expire(quest)
    later = utcnow() + timedelta(days=1)
    for expires_at in (None, utcnow() - timedelta(seconds=1)):
        with pytest.raises(Invalid), world.tx() as tx:
            steps.resolve(tx, quest, admin, Status.OPEN, reason="again", now=utcnow(), expires_at=expires_at)
    with world.tx() as tx:
        steps.resolve(tx, quest, admin, Status.OPEN, reason="again", now=utcnow(), expires_at=later)
    assert world.get(quest).expires_at == later


def test_above_a_bound_the_creator_alone_does_not_complete_it(world: World) -> None:
    creator, performer, witness = world.person(), world.person(), world.person()
    quest = world.create(creator, reward_xp=501)
    world.claim(quest, performer)
    world.submit(quest, performer)
    world.attest(quest, creator)
    assert world.get(quest).status == Status.PENDING_REVIEW
    world.attest(quest, witness)
    assert world.get(quest).status == Status.COMPLETE
    assert balances(world, performer) == (0, 501, 5)


def test_suspended_users_take_no_step_and_their_work_is_not_attested_or_paid(world: World) -> None:
    creator, performer, admin = world.person(), world.person(), world.person(is_admin=True)
    quest = world.at(Status.PENDING_REVIEW, creator, performer)
    world.suspend(performer, at=utcnow())
    with pytest.raises(PerformerSuspended):
        world.attest(quest, creator)
    with pytest.raises(UserSuspended), world.tx() as tx:
        steps.withdraw(tx, quest, performer, world.settings)
    with world.tx() as tx:
        steps.dispute(tx, quest, creator, "the performer is suspended")
    with pytest.raises(PerformerSuspended), world.tx() as tx:
        steps.resolve(tx, quest, admin, Status.COMPLETE, reason="well done", now=utcnow())
    world.suspend(performer, at=None)
    with world.tx() as tx:
        steps.resolve(tx, quest, admin, Status.COMPLETE, reason="well done", now=utcnow())
    assert balances(world, performer) == (0, 100, 5)


def test_open_claims_and_attestations_are_bounded_for_each_user(world: World) -> None:
    world.settings = Quests(open_claims=2, attestations_per_day=2)
    creator, performer = world.person(), world.person()
    quests = [world.create(creator) for _ in range(4)]

    def claim(quest: object) -> str:
        try:
            world.claim(quest, performer)  # type: ignore[arg-type]
        except RuleBroken as refused:
            return refused.code
        return "claimed"

    with ThreadPoolExecutor(4) as threads:
        assert sorted(threads.map(claim, quests)) == ["claimed"] * 2 + ["open_claims_spent"] * 2
    claimed = [quest for quest in quests if world.get(quest).status == Status.CLAIMED]
    for quest in claimed:
        world.submit(quest, performer)
        world.attest(quest, creator)
    third = next(quest for quest in quests if world.get(quest).status == Status.OPEN)
    world.claim(third, performer)
    world.submit(third, performer)
    with pytest.raises(RuleBroken) as refused:
        world.attest(third, creator)
    assert refused.value.code == "attestation_budget_spent"


def test_withdrawing_counts_as_a_claim(world: World) -> None:
    world.settings = Quests(open_claims=1)
    creator, performer = world.person(), world.person()
    submitted = world.at(Status.PENDING_REVIEW, creator, performer)
    world.set(submitted, claimed_at=utcnow() - timedelta(days=20))
    claimed = world.at(Status.CLAIMED, creator, performer)
    with pytest.raises(RuleBroken) as refused, world.tx() as tx:
        steps.withdraw(tx, submitted, performer, world.settings)
    assert refused.value.code == "open_claims_spent"
    world.let_expire(claimed)
    with world.tx() as tx:
        again = steps.withdraw(tx, submitted, performer, world.settings)
    assert again.claimed_at is not None
    assert utcnow() - again.claimed_at < timedelta(days=1), "it is not released at once"


def test_what_is_released_or_withdrawn_is_in_the_history(world: World) -> None:
    creator, performer = world.person(), world.person()
    quest = world.at(Status.PENDING_REVIEW, creator, performer)
    with world.tx() as tx:
        steps.withdraw(tx, quest, performer, world.settings)
        steps.release(tx, quest, performer, reason="no time")
    opened = world.get(quest)
    assert (opened.status, opened.performer_id, opened.claimed_at, opened.submission) == (Status.OPEN, None, None, None)
    rows = world.rows("SELECT step, status, performer_id, submission, reason FROM quest_history ORDER BY version")
    assert [row.step for row in rows] == ["create", "claim", "submit", "withdraw", "release"]
    assert rows[3].submission == WORK
    assert (rows[4].performer_id, rows[4].reason) == (performer.user_id, "no time")


def test_a_client_that_may_do_everything_acts_as_an_admin_but_not_as_a_user(world: World) -> None:
    app = Person(None, is_admin=True, by="client:app")
    quest = world.at(Status.DISPUTED, world.person(), world.person())
    with pytest.raises(Invalid), world.tx() as tx:
        steps.claim(tx, quest, app, world.settings)
    with pytest.raises(Invalid), world.tx() as tx:
        steps.attest(tx, quest, app, NewAttestation(5), world.settings, now=utcnow())
    with world.tx() as tx:
        steps.resolve(tx, quest, app, Status.CANCELLED, reason="nobody needs it", now=utcnow())
    assert world.get(quest).status == Status.CANCELLED


def test_a_quest_that_somebody_else_has_claimed_meanwhile_is_not_the_one_that_was_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    creator, performer, other = world.person(), world.person(), world.person()
    quest = world.at(Status.CLAIMED, creator, performer)
    lock, calls = people.lock, [0]

    def lock_late(tx: Tx, user_ids: Iterable[UUID]) -> object:
        calls[0] += 1
        if calls[0] == 1:  # between reading the quest and locking people, in transactions of their own
            with ThreadPoolExecutor(1) as thread:
                thread.submit(change_hands).result()
        return lock(tx, user_ids)

    def change_hands() -> None:
        with world.tx() as tx:
            steps.release(tx, quest, performer)
        world.claim(quest, other)

    monkeypatch.setattr(people, "lock", lock_late)
    with pytest.raises(RuleBroken) as refused:
        world.submit(quest, performer)
    assert refused.value.code == "not_performer"
    assert (world.get(quest).status, world.get(quest).performer_id) == (Status.CLAIMED, other.user_id)
