"""Creating: within a budget, which parallel requests cannot exceed."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest

from analytics.quests import creating, steps
from analytics.quests.creating import NewQuest
from analytics.quests.people import RuleBroken
from analytics.quests.states import Status
from analytics.scores.actions import UserSuspended
from tenants.db import utcnow
from tenants.errors import Invalid
from tenants.settings import Quests
from tests.analytics.quests.questing import OFFER, World


@pytest.mark.parametrize(
    ("bounds", "created", "code"),
    [
        (Quests(quests_per_day=20), 20, "quest_budget_spent"),
        (Quests(quests_per_day=100, xp_per_day=450), 4, "xp_budget_spent"),
    ],
)
def test_fifty_parallel_requests_never_exceed_the_budget_of_a_day(
    world: World, bounds: Quests, created: int, code: str
) -> None:
    world.settings = bounds
    creator = world.person()

    def create(_: int) -> str:
        try:
            world.create(creator)
        except RuleBroken as refused:
            return refused.code
        return "created"

    with ThreadPoolExecutor(10) as threads:
        outcomes = list(threads.map(create, range(50)))
    assert sorted(outcomes) == ["created"] * created + [code] * (50 - created)
    assert world.user(creator).quests_created == created
    assert world.rows("SELECT sum(reward_xp) FROM quests")[0][0] == 100 * created


def test_cancelled_quests_count_and_yesterdays_do_not(world: World) -> None:
    world.settings = Quests(quests_per_day=1)
    creator = world.person()
    quest = world.create(creator)
    with world.tx() as tx:
        steps.cancel(tx, quest, creator)
    with pytest.raises(RuleBroken):
        world.create(creator)
    world.set(quest, created_at=utcnow() - timedelta(days=1))
    world.create(creator)


def test_a_new_quest_is_open_with_its_tags_and_history(world: World) -> None:
    creator = world.person()
    quest = world.get(world.create(creator, tags=["docs", "de"], requirements=["speaks German"]))
    assert (quest.status, quest.version, quest.round) == (Status.OPEN, 1, 1)
    assert (quest.tags, quest.requirements, quest.attestations_required, quest.min_rating) == (
        ["docs", "de"],
        ["speaks German"],
        1,
        3,
    )
    assert {row.tag for row in world.rows("SELECT tag FROM quest_tags")} == {"docs", "de"}
    (step,) = world.rows("SELECT step, status_before, status, user_id FROM quest_history")
    assert step == ("create", None, "OPEN", creator.user_id)


def test_a_quest_asks_for_no_less_than_the_tenant_does(world: World) -> None:
    world.settings = Quests(attestations_required=2, min_rating=4)
    creator = world.person()
    for name, too_little in (("attestations_required", 1), ("min_rating", 3)):
        with pytest.raises(Invalid) as refused:
            world.create(creator, **{name: too_little})
        assert name in refused.value.errors  # type: ignore[operator]
    quest = world.get(world.create(creator, attestations_required=3, min_rating=5))
    assert (quest.attestations_required, quest.min_rating) == (3, 5)


def test_a_past_time_a_suspended_creator_and_a_member_where_only_admins_create_are_refused(world: World) -> None:
    creator = world.person()
    with pytest.raises(Invalid):
        world.create(creator, expires_at=utcnow())
    world.settings = Quests(members_create=False)
    with pytest.raises(RuleBroken, match="only admins"):
        world.create(creator)
    world.create(replace(creator, is_admin=True))
    world.suspend(creator, at=utcnow())
    with pytest.raises(UserSuspended), world.tx() as tx:
        creating.create(tx, NewQuest(**OFFER), creator, Quests(), now=utcnow())
    assert world.user(creator).quests_created == 1
