"""Who somebody is to a quest, and the order in which people are locked."""

from datetime import timedelta
from uuid import UUID

import pytest

from analytics.quests import people
from analytics.quests.people import Person, WrongState
from analytics.quests.states import Roles, Status, Step
from tenants.db import utcnow
from tenants.errors import Invalid
from tests.analytics.quests.questing import World


def test_roles_are_those_of_the_user_and_a_client_has_none(world: World) -> None:
    creator, performer = world.person(), world.person(is_admin=True)
    quest = world.get(world.at(Status.CLAIMED, creator, performer))
    assert creator.roles(quest) == Roles(is_creator=True)
    assert performer.roles(quest) == Roles(is_performer=True, is_admin=True)
    app = Person(None, is_admin=False, by="client:app")
    assert app.roles(world.get(world.create(creator))) == Roles()
    with pytest.raises(Invalid):
        app.require_user()


def test_people_are_locked_by_ascending_id_with_what_matters_about_them(world: World) -> None:
    several = [world.person() for _ in range(4)]
    world.suspend(several[0], at=utcnow())
    world.suspend(several[1], at=utcnow(), until=utcnow() + timedelta(hours=1))
    world.suspend(several[2], at=utcnow(), until=utcnow() - timedelta(seconds=1))  # has ended
    with world.tx() as tx:
        locked = people.lock(tx, [person.require_user() for person in several])
    assert list(locked) == sorted(person.require_user() for person in several)
    assert [locked[person.require_user()].is_suspended for person in several] == [True, True, False, False]
    with world.tx() as tx:
        assert people.lock(tx, [UUID(int=0)]) == {}


def test_a_wrong_state_says_what_the_state_is_and_must_be() -> None:
    refused = WrongState(Status.CLAIMED, Step.CANCEL)
    assert refused.code == "quest_claimed"
    assert str(refused) == "The quest is CLAIMED; to cancel it, it must be OPEN or CLAIMED or PENDING_REVIEW"
