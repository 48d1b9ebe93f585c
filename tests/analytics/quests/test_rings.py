"""People who attest each other are flagged, with the payments that an admin can take back."""

from typing import Any

import pytest

from analytics import checks
from analytics.boards import projection
from analytics.quests import rewards, steps
from analytics.quests.rewards import PaymentState, Reward
from analytics.quests.states import Status
from analytics.scores import integrity
from analytics.scores.integrity import Rule, Verdict
from tenants.db import utcnow
from tests.analytics.quests.questing import World, balances
from tests.analytics.quests.test_rewards import LOCKED, Broken


def flags(world: World) -> dict[Any, Any]:
    rows = world.rows("SELECT id, user_id, rule, details FROM integrity_flags")
    assert all(row.rule == Rule.ATTESTATION_RING for row in rows)
    return {row.user_id: row for row in rows}


def test_three_who_attest_each_other_in_a_circle_are_flagged(world: World) -> None:
    people = [world.person() for _ in range(3)]
    offers = world.person()
    quests: dict[Any, list[str]] = {}
    for _ in range(2):
        for place, performer in enumerate(people):
            assert flags(world) == {}
            quest = world.done(offers, performer, people[place - 1])
            quests.setdefault(performer.user_id, []).append(str(quest))
    raised = flags(world)
    assert raised.keys() == {person.user_id for person in people}
    for user_id, flag in raised.items():
        assert sorted(flag.details["quests"]) == sorted(quests[user_id])
        assert len(flag.details["entries"]) == 4, "XP and reputation of two quests"
        assert flag.details["accounts"] == ["xp", "reputation"]


def test_two_who_attest_each_other_are_flagged(world: World) -> None:
    one, other, offers = world.person(), world.person(), world.person()
    for _ in range(2):
        world.done(offers, one, other)
        world.done(offers, other, one)
    assert flags(world).keys() == {one.user_id, other.user_id}


@pytest.mark.parametrize(("by_others", "is_flagged"), [(3, True), (4, False)])
def test_most_attestations_by_one_person_are_flagged(world: World, by_others: int, is_flagged: bool) -> None:
    performer, friend, offers = world.person(), world.person(), world.person()
    for _ in range(by_others):
        world.done(offers, performer, world.person())
    for _ in range(5):
        world.done(offers, performer, friend)
    assert bool(flags(world)) == is_flagged


def test_a_reversal_takes_back_what_the_flag_names_and_nothing_else(world: World) -> None:
    performer, friend, offers = world.person(), world.person(), world.person()
    honest = world.done(offers, performer, world.person())
    made_up = [world.done(offers, performer, friend) for _ in range(5)]
    later = world.done(offers, performer, world.person())
    assert balances(world, performer) == (0, 700, 35)
    flag = flags(world)[performer.user_id]
    with world.tx() as tx:
        resolved = integrity.resolve(tx, flag.id, Verdict.REVERSE, by="admin", note=None, now=utcnow())
    assert resolved.reversed_entries == 10
    assert balances(world, performer) == (0, 200, 10)
    with world.tx() as tx:
        states = [rewards.states(tx, steps.find(tx, quest))[Reward.XP] for quest in (honest, *made_up, later)]
    assert states == [PaymentState.PAID, *[PaymentState.REVERSED] * 5, PaymentState.PAID]
    assert world.get(made_up[0]).status == Status.COMPLETE
    projection.project_all(world.tenant, now=utcnow)
    assert checks.check(world.tenant, now=utcnow()).differences == []


def test_an_open_flag_learns_of_more_quests(world: World) -> None:
    performer, friend, offers = world.person(), world.person(), world.person()
    for _ in range(7):
        world.done(offers, performer, friend)
    assert len(flags(world)[performer.user_id].details["quests"]) == 7


def test_what_is_paid_after_the_flag_is_taken_back_too_and_what_is_owed_is_not_paid(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    performer, friend, other, offers = (world.person() for _ in range(4))
    quests = [world.create(offers, attestations_required=2) for _ in range(6)]
    for quest in quests:
        world.claim(quest, performer)
        world.submit(quest, performer)
        world.attest(quest, friend)
    flag = flags(world)[performer.user_id]
    assert (len(flag.details["quests"]), flag.details["entries"]) == (6, [])
    Broken(monkeypatch, "xp", 1, LOCKED)
    for quest in quests:
        world.attest(quest, other)
    assert balances(world, performer) == (0, 500, 30)
    with world.tx() as tx:
        assert integrity.resolve(tx, flag.id, Verdict.REVERSE, by="x", note=None, now=utcnow()).reversed_entries == 11
    assert balances(world, performer) == (0, 0, 0)
    (owed,) = world.rows("SELECT next_attempt_at FROM failed_rewards")
    assert rewards.retry_due(world.tenant, by="worker", now=owed.next_attempt_at) == 0
    assert world.rows("SELECT status, error_details->>'code' FROM failed_rewards") == [("FAILED", "taken_back")]
    assert balances(world, performer) == (0, 0, 0)


def test_every_circle_that_an_attestation_closes_is_flagged(world: World) -> None:
    one, other, offers = world.person(), world.person(), world.person()
    thirds = [world.person() for _ in range(2)]
    for _ in range(2):
        for third in thirds:
            world.done(offers, third, other)
            world.done(offers, one, third)
    assert flags(world) == {}
    for _ in range(2):
        world.done(offers, other, one)
    assert flags(world).keys() == {person.user_id for person in (one, other, *thirds)}
