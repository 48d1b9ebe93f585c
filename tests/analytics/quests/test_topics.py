"""Live topics of quests: published after the commit, and readable from PostgreSQL."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import orjson
import pytest

from analytics.boards.redis_store import CHANNEL
from analytics.quests import expiring, personal, topics
from analytics.quests.states import Status
from analytics.quests.topics import QuestTopic
from tenants import redis
from tenants.errors import Invalid
from tests.analytics.quests.questing import World
from tests.conftest import redis_unavailable
from tests.service import eventually

Heard = list[dict[str, int]]


@pytest.fixture
def heard(world: World) -> Iterator[Heard]:
    """The versions of this tenant's topics that are published meanwhile."""
    found: Heard = []

    def on_message(message: dict[str, Any]) -> None:
        content = orjson.loads(message["data"])
        if content["tenant"] == world.tenant:
            found.append(content["versions"])

    following: Any = redis.boards().redis.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
    following.subscribe(**{CHANNEL: on_message})
    listening = following.run_in_thread(sleep_time=0.01, daemon=True)
    yield found
    listening.stop()
    listening.join()


def version_of(world: World, user_id: UUID | None) -> int:
    topic = QuestTopic(world.tenant, user_id)
    return topics.versions_of(world.tenant, [topic, QuestTopic(world.tenant, UUID(int=1))])[topic]


def test_a_step_is_published_to_those_whom_it_concerns(world: World, heard: Heard) -> None:
    creator, performer = world.person(), world.person()
    quest = world.create(creator)
    world.claim(quest, performer)
    world.submit(quest, performer)
    eventually(lambda: len(heard) == 3)
    of_creator, of_performer = (QuestTopic(world.tenant, person.user_id).topic for person in (creator, performer))
    assert [set(versions) for versions in heard] == [
        {topics.OPEN, of_creator},
        {topics.OPEN, of_creator, of_performer},
        {of_creator, of_performer},
    ]
    newest = heard[-1][of_performer]
    for person in (creator, performer):
        assert heard[-2][of_creator] < version_of(world, person.user_id) <= newest
    assert heard[1][topics.OPEN] < version_of(world, None) <= newest
    assert version_of(world, world.person().user_id) == 0
    assert topics.versions_of(world.tenant, []) == {}


def test_what_expires_is_published_and_without_redis_nothing_fails(world: World, heard: Heard) -> None:
    creator = world.person()
    quest = world.create(creator)
    world.let_expire(quest)
    expiring.expire(world.tenant, quest)
    eventually(lambda: len(heard) == 2)
    assert set(heard[1]) == {topics.OPEN, QuestTopic(world.tenant, creator.user_id).topic}
    performer = world.person()
    claimed = world.at(Status.CLAIMED, creator, performer)
    world.let_expire(claimed)
    expiring.expire(world.tenant, claimed)
    eventually(lambda: len(heard) == 5)
    assert QuestTopic(world.tenant, performer.user_id).topic in heard[-1]
    world.at(Status.CLAIMED, creator, performer)
    with world.tx() as tx:
        personal.erase(tx, performer.require_user())
    eventually(lambda: len(heard) == 8)
    assert set(heard[-1]) >= {topics.OPEN, QuestTopic(world.tenant, creator.user_id).topic}
    with redis_unavailable():
        world.create(creator)


def test_topics_have_names(world: World) -> None:
    for name in (topics.OPEN, f"{topics.OF_USER}{world.person().user_id}"):
        assert topics.is_topic(name)
        assert topics.parse("acme", name).topic == name
    assert not topics.is_topic("users:all:xp")
    for name in ("quests:", "quests:user:x", "quests:closed"):
        with pytest.raises(Invalid):
            topics.parse("acme", name)
