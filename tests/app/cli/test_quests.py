"""`plaudit quest …` and `plaudit reward …`"""

import json

import pytest

from analytics.quests.states import Status
from tests.analytics.quests.questing import World, balances
from tests.analytics.quests.test_rewards import LOCKED, Broken
from tests.app.cli.conftest import Run


def test_quests_are_listed_and_disputes_are_resolved(tenant: str, on_ours: Run) -> None:
    assert "no such quest" in on_ours("quest", "list", tenant).stdout
    world = World(tenant)
    creator, performer = world.person(), world.person()
    disputed, opened = world.at(Status.DISPUTED, creator, performer), world.create(creator)
    assert "Translate" in on_ours("quest", "list", tenant).stdout
    listed = json.loads(on_ours("quest", "list", tenant, "--status", "disputed", "--json").stdout)
    assert [one["id"] for one in listed] == [str(disputed)]
    refused = on_ours("quest", "resolve", tenant, str(opened), "--to", "COMPLETE", "--reason", "fine")
    assert (refused.returncode, "must be DISPUTED" in refused.stderr) == (1, True)
    done = on_ours("quest", "resolve", tenant, str(disputed), "--to", "complete", "--reason", "fine")
    assert "COMPLETE" in done.stdout
    assert balances(world, performer) == (0, 100, 5)


def test_a_reward_is_retried_by_hand(tenant: str, on_ours: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "paid at once" in on_ours("reward", "list", tenant).stdout
    world = World(tenant)
    creator, performer = world.person(), world.person()
    with monkeypatch.context() as patch:
        Broken(patch, "xp", 1, LOCKED)
        world.done(creator, performer, creator)
    (owed,) = json.loads(on_ours("reward", "list", tenant, "--json").stdout)
    assert (owed["status"], owed["reward_type"]) == ("PENDING", "XP")
    assert "100 XP paid" in on_ours("reward", "retry", tenant, owed["id"]).stdout
    again = on_ours("reward", "retry", tenant, owed["id"])
    assert (again.returncode, "paid before" in again.stderr) == (1, True)
    assert balances(world, performer) == (0, 100, 5)
