"""What readers see: current names, and the submission only if it is for them."""

from typing import Any
from uuid import UUID

from sqlalchemy import text

from analytics.quests import showing, steps
from analytics.quests.people import Person
from analytics.quests.showing import Viewer
from analytics.quests.states import Status
from analytics.quests.steps import NewAttestation
from tenants.db import utcnow
from tests.analytics.quests.questing import WORK, World


def shown(world: World, quest: UUID, person: Person, *, external_ids: bool = True) -> dict[str, Any]:
    with world.tx() as tx:
        viewer = Viewer(person, sees_external_ids=external_ids)
        return showing.in_full(tx, steps.find(tx, quest), viewer, now=utcnow())


def test_a_submission_is_for_everybody_while_it_is_reviewed_and_then_for_those_involved(world: World) -> None:
    creator, performer, attester, stranger = (world.person() for _ in range(4))
    admin = world.person(is_admin=True)
    quest = world.create(creator)
    world.claim(quest, performer)
    world.submit(quest, performer)
    everybody = (creator, performer, attester, stranger, admin)
    assert [shown(world, quest, person)["submission"] for person in everybody] == [WORK] * 5
    world.attest(quest, attester)
    assert [shown(world, quest, person)["submission"] for person in everybody] == [WORK, WORK, WORK, None, WORK]
    assert shown(world, quest, Person(None, is_admin=False, by="client:app"))["submission"] is None


def test_who_only_reads_numbers_sees_no_submission(world: World) -> None:
    quest = world.at(Status.PENDING_REVIEW, world.person(), world.person())
    reader = Viewer(Person(None, is_admin=False, by="client:app"), sees_external_ids=True, may_attest=False)
    with world.tx() as tx:
        assert showing.in_full(tx, steps.find(tx, quest), reader, now=utcnow())["submission"] is None


def test_people_are_shown_by_their_current_names_and_erased_ones_not_at_all(world: World) -> None:
    creator, performer, attester = (world.person() for _ in range(3))
    quest = world.create(creator, attestations_required=2)
    world.claim(quest, performer)
    world.submit(quest, performer)
    with world.tx() as tx:
        new = NewAttestation(4, "well done", "0xabc")
        steps.attest(tx, quest, attester, new, world.settings, now=utcnow())
        renamed = "UPDATE users SET username = 'renamed', display_name = 'Re Named' WHERE id = :id"
        tx.execute(text(renamed), {"id": attester.user_id})
    seen = shown(world, quest, creator)
    (attestation,) = seen["attestations"]
    assert attestation["attester"]["display_name"] == "Re Named"
    stranger = Viewer(creator, sees_external_ids=False, sees_names=False)
    with world.tx() as tx:
        unnamed = showing.in_full(tx, steps.find(tx, quest), stranger, now=utcnow())["attestations"][0]["attester"]
    assert (unnamed["username"], unnamed["display_name"], unnamed["avatar_url"]) == ("renamed", None, None)
    assert (attestation["attester_username"], attestation["rating"], attestation["comments"]) == (
        "renamed",
        4,
        "well done",
    )
    assert (attestation["signature"], attestation["signature_verified"], attestation["on_chain"]) == (
        "0xabc",
        False,
        False,
    )
    assert seen["creator"]["external_id"] is not None
    assert shown(world, quest, creator, external_ids=False)["creator"]["external_id"] is None
    with world.tx() as tx:
        tx.execute(text("UPDATE users SET erased_at = now() WHERE id = :id"), {"id": creator.user_id})
    seen = shown(world, quest, performer)
    assert seen["creator"] is None
    assert seen["history"][0]["by"] is None


def test_rewards_have_a_state_once_the_quest_is_complete(world: World) -> None:
    creator, performer = world.person(), world.person()
    quest = world.at(Status.PENDING_REVIEW, creator, performer)
    assert [reward["status"] for reward in shown(world, quest, creator)["rewards"]] == [None, None]
    world.attest(quest, creator)
    assert shown(world, quest, creator)["rewards"] == [
        {"type": "XP", "amount": 100, "status": "paid"},
        {"type": "REPUTATION", "amount": 5, "status": "paid"},
    ]
    assert [(step["step"], step["from"], step["to"]) for step in shown(world, quest, creator)["history"]] == [
        ("create", None, "OPEN"),
        ("claim", "OPEN", "CLAIMED"),
        ("submit", "CLAIMED", "PENDING_REVIEW"),
        ("attest", "PENDING_REVIEW", "COMPLETE"),
    ]


def test_lists_have_no_submission(world: World) -> None:
    creator, performer = world.person(), world.person()
    quest = world.at(Status.PENDING_REVIEW, creator, performer)
    world.let_expire(opened := world.create(creator))
    with world.tx() as tx:
        quests = [steps.find(tx, quest), steps.find(tx, opened)]
        listed = showing.in_list(tx, quests, Viewer(creator, sees_external_ids=True), now=utcnow())
    assert "submission" not in listed[0]
    assert listed[0]["performer"]["id"] == str(performer.user_id)
    assert listed[1]["status"] == "EXPIRED"
