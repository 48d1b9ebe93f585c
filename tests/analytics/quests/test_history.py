"""The history: every step, in order, bounded."""

import pytest

from analytics.quests import history, steps
from tests.analytics.quests.questing import World


def test_it_has_the_newest_steps_oldest_first(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    creator, performer = world.person(), world.person()
    quest = world.create(creator)
    for _ in range(2):
        world.claim(quest, performer)
        with world.tx() as tx:
            steps.release(tx, quest, performer)
    with world.tx() as tx:
        taken = history.of_quest(tx, quest)
        assert [step.step for step in taken] == ["create", "claim", "release", "claim", "release"]
        assert [step.version for step in taken] == [1, 2, 3, 4, 5]
        monkeypatch.setattr(history, "MAX_STEPS", 2)
        assert [step.version for step in history.of_quest(tx, quest)] == [4, 5]
