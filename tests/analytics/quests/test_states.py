"""The table: every state, step and role."""

from collections.abc import Callable
from uuid import UUID

import pytest

from analytics.quests import steps
from analytics.quests.people import Person, RuleBroken, WrongState
from analytics.quests.states import MOVES, Roles, Status, Step, Who
from analytics.quests.steps import NewAttestation
from tenants.db import Tx, utcnow
from tenants.settings import Quests
from tests.analytics.quests.questing import World

FINAL = (Status.COMPLETE, Status.EXPIRED, Status.CANCELLED)


# As the product's table has it.
TABLE = {
    ("claim", "OPEN"): ("CLAIMED", "OTHERS"),
    ("release", "CLAIMED"): ("OPEN", "PERFORMER_OR_ADMIN"),
    ("submit", "CLAIMED"): ("PENDING_REVIEW", "PERFORMER"),
    ("withdraw", "PENDING_REVIEW"): ("CLAIMED", "PERFORMER"),
    ("attest", "PENDING_REVIEW"): ("PENDING_REVIEW COMPLETE DISPUTED", "PEERS"),
    ("dispute", "PENDING_REVIEW"): ("DISPUTED", "INVOLVED"),
    ("resolve", "DISPUTED"): ("COMPLETE OPEN CANCELLED", "UNINVOLVED_ADMIN"),
    ("cancel", "OPEN"): ("CANCELLED", "CREATOR_OR_ADMIN"),
    ("cancel", "CLAIMED"): ("CANCELLED", "ADMIN"),
    ("cancel", "PENDING_REVIEW"): ("CANCELLED", "ADMIN"),
    ("expire", "OPEN"): ("EXPIRED", "ADMIN"),
    ("expire", "CLAIMED"): ("EXPIRED", "ADMIN"),
}


def test_the_table_is_that_of_the_product() -> None:
    moves = {(step, status): move for step, of_step in MOVES.items() for status, move in of_step.items()}
    assert {key: (" ".join(move.to), move.who.name) for key, move in moves.items()} == TABLE


def test_final_states_allow_nothing() -> None:
    assert {status for moves in MOVES.values() for status in moves} == set(Status) - set(FINAL)
    assert {to for moves in MOVES.values() for move in moves.values() for to in move.to} == set(Status)


def test_every_rule_has_a_code_and_somebody_whom_it_allows_and_whom_it_refuses() -> None:
    everybody = [
        Roles(is_creator=creator, is_performer=performer, is_admin=admin)
        for creator in (False, True)
        for performer in (False, True)
        for admin in (False, True)
    ]
    for who in Who:
        assert {who.allows(roles) for roles in everybody} == {True, False}, who
        assert who.code.replace("_", "").islower()


UNLIMITED = Quests(quests_per_day=1000, xp_per_day=1_000_000, open_claims=1000, attestations_per_day=1000)
Take = Callable[[Tx, World, UUID, Person], object]
TAKE: dict[Step, Take] = {
    Step.CLAIM: lambda tx, world, quest, person: steps.claim(tx, quest, person, world.settings),
    Step.RELEASE: lambda tx, _, quest, person: steps.release(tx, quest, person),
    Step.SUBMIT: lambda tx, _, quest, person: steps.submit(tx, quest, person, "done"),
    Step.WITHDRAW: lambda tx, world, quest, person: steps.withdraw(tx, quest, person, world.settings),
    Step.ATTEST: lambda tx, world, quest, person: steps.attest(
        tx, quest, person, NewAttestation(4), world.settings, now=utcnow()
    ),
    Step.DISPUTE: lambda tx, _, quest, person: steps.dispute(tx, quest, person, "not what was asked for"),
    Step.RESOLVE: lambda tx, _, quest, person: steps.resolve(
        tx, quest, person, Status.CANCELLED, reason="no", now=utcnow()
    ),
    Step.CANCEL: lambda tx, _, quest, person: steps.cancel(tx, quest, person),
}


@pytest.mark.parametrize("status", list(Status))
def test_of_all_steps_and_roles_those_of_the_table_work_and_all_others_are_refused_by_name(
    world: World, status: Status
) -> None:
    world.settings = UNLIMITED
    roles_tried = ("creator", "performer", "stranger", "admin", "creator and admin", "performer and admin")
    people = {name: world.person(is_admin="admin" in name) for name in roles_tried}
    tried = 0
    for role in roles_tried:
        creator = people[role] if role.startswith("creator") else people["creator"]
        performer = people[role] if role.startswith("performer") else people["performer"]
        quest = world.at(status, creator, performer)
        for step, take in TAKE.items():
            before = world.get(quest)
            move = MOVES[step].get(status)
            roles = people[role].roles(before)
            refused: Exception | None = None
            try:
                with world.tx() as tx:
                    take(tx, world, quest, people[role])
            except (WrongState, RuleBroken) as error:
                refused = error
            case = f"{step} by {role}"
            after = world.get(quest)
            tried += 1
            if move is None:
                assert isinstance(refused, WrongState), case
                assert refused.code == f"quest_{status.lower()}"
            elif not move.who.allows(roles):
                assert isinstance(refused, RuleBroken), case
                assert refused.code == move.who.code
            else:
                assert refused is None, case
                assert Status(after.status) in move.to
                assert after.version == before.version + 1
                quest = world.at(status, creator, performer)
                continue
            assert (after.status, after.version) == (before.status, before.version), case
    assert tried == 48
