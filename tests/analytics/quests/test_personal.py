"""A user's quests: exported whole; erased so that the quests of others go on."""

from typing import Any

from analytics import checks, privacy
from analytics.boards import projection
from analytics.quests import personal, steps
from analytics.quests.people import Person
from analytics.quests.states import Status
from analytics.quests.steps import NewAttestation
from tenants import users
from tenants.db import utcnow
from tests.analytics.quests.questing import WORK, World


def erase(world: World, person: Person) -> Any:
    with world.tx() as tx:
        return privacy.erase(tx, users.get(tx, person.require_user()), by_admin=True, now=utcnow())


def test_what_the_creator_leaves_behind(world: World) -> None:
    creator, performer = world.person(), world.person()
    quests = {status: world.at(status, creator, performer) for status in Status}
    assert erase(world, creator).quests == len(Status)
    after = {status: world.get(quest).status for status, quest in quests.items()}
    assert after == {status: Status.CANCELLED if status is Status.OPEN else status for status in Status}
    with world.tx() as tx:
        operator = Person(None, is_admin=True, by="command")
        steps.resolve(tx, quests[Status.DISPUTED], operator, Status.COMPLETE, reason="ok", now=utcnow())
    projection.project_all(world.tenant, now=utcnow)
    assert checks.check(world.tenant, now=utcnow()).differences == []


def test_what_the_performer_leaves_behind(world: World) -> None:
    creator, performer = world.person(), world.person()
    quests = {status: world.at(status, creator, performer) for status in Status}
    erase(world, performer)
    expected = {
        Status.CLAIMED: Status.OPEN,
        Status.PENDING_REVIEW: Status.CANCELLED,
        Status.DISPUTED: Status.CANCELLED,
    }
    after = {status: world.get(quest).status for status, quest in quests.items()}
    assert after == {status: expected.get(status, status) for status in Status}
    assert world.get(quests[Status.CLAIMED]).performer_id is None
    assert world.rows("SELECT 1 FROM quests WHERE submission IS NOT NULL") == []
    steps_ = world.rows("SELECT step, status, by FROM quest_history WHERE by = 'erasure' ORDER BY step")
    assert [tuple(step) for step in steps_] == [
        ("cancel", "CANCELLED", "erasure"),
        ("cancel", "CANCELLED", "erasure"),
        ("release", "OPEN", "erasure"),
    ]
    projection.project_all(world.tenant, now=utcnow)
    assert checks.check(world.tenant, now=utcnow()).differences == []


def test_an_attester_stays_without_name_and_words(world: World) -> None:
    creator, performer, attester = (world.person() for _ in range(3))
    quest = world.create(creator, attestations_required=2)
    world.claim(quest, performer)
    world.submit(quest, performer)
    with world.tx() as tx:
        new = NewAttestation(4, "my own words", "0xabc")
        steps.attest(tx, quest, attester, new, world.settings, now=utcnow())
        exported = personal.export(tx, attester.require_user())
    assert exported["attestations_given"][0]["comments"] == "my own words"
    erase(world, attester)
    (row,) = world.rows("SELECT rating, comments, signature FROM attestations")
    assert tuple(row) == (4, None, None)
    world.attest(quest, creator)
    assert world.get(quest).status == Status.COMPLETE


def test_an_export_has_everything_that_the_user_wrote(world: World) -> None:
    creator, performer = world.person(), world.person()
    world.at(Status.COMPLETE, creator, performer)
    withdrawn = world.at(Status.PENDING_REVIEW, creator, performer)
    with world.tx() as tx:
        steps.withdraw(tx, withdrawn, performer, world.settings)
        steps.release(tx, withdrawn, performer, reason="no time")
        exported = privacy.export(tx, users.get(tx, performer.require_user()))
    assert [quest["submission"] for quest in exported["quests_performed"]] == [WORK]
    assert {step["submission"] for step in exported["quest_steps"]} == {None, WORK}
    assert "no time" in {step["reason"] for step in exported["quest_steps"]}
    assert (exported["profile"]["experience_points"], exported["quests_created"]) == (100, [])
    erase(world, performer)
    assert world.rows("SELECT 1 FROM quest_history WHERE submission IS NOT NULL OR reason IS NOT NULL") == []
