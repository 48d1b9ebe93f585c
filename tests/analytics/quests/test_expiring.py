"""Quests past their time, and claims that nobody worked on."""

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from analytics.quests import expiring, steps
from analytics.quests.states import Status
from tenants import settings as tenant_settings
from tenants.db import utcnow
from tests.analytics.quests.questing import World


def test_the_job_ends_what_is_due_and_nothing_else(world: World) -> None:
    creator, performer = world.person(), world.person()
    due = [world.at(status, creator, performer) for status in (Status.OPEN, Status.CLAIMED)]
    never = [world.at(status, creator, performer) for status in (Status.PENDING_REVIEW, Status.DISPUTED)]
    for quest in (*due, *never):
        world.let_expire(quest)
    later = world.create(creator, expires_at=utcnow() + timedelta(hours=1))
    assert world.tenant in expiring.tenants_with_due(now=utcnow())
    assert expiring.end_due(world.tenant, now=utcnow()) == (2, 0)
    assert expiring.end_due(world.tenant, now=utcnow()) == (0, 0)
    assert {world.get(quest).status for quest in due} == {Status.EXPIRED}
    assert [world.get(quest).status for quest in never] == [Status.PENDING_REVIEW, Status.DISPUTED]
    assert world.get(later).status == Status.OPEN
    steps = world.rows("SELECT status_before, status, by FROM quest_history WHERE step = 'expire'")
    assert sorted(steps) == [("CLAIMED", "EXPIRED", "job"), ("OPEN", "EXPIRED", "job")]
    assert world.tenant not in expiring.tenants_with_due(now=utcnow())


def test_an_old_claim_is_released_after_the_days_of_the_tenant(world: World) -> None:
    creator, performer = world.person(), world.person()
    old, new = (world.at(Status.CLAIMED, creator, performer) for _ in range(2))
    world.set(old, claimed_at=utcnow() - timedelta(days=14))
    world.set(new, claimed_at=utcnow() - timedelta(days=13))
    assert expiring.end_due(world.tenant, now=utcnow()) == (0, 1)
    assert (world.get(old).status, world.get(old).performer_id) == (Status.OPEN, None)
    assert world.get(new).status == Status.CLAIMED
    with world.tx() as tx:
        tenant_settings.change(tx, {"quests": {"claim_days": 7}}, now=utcnow())
    assert expiring.end_due(world.tenant, now=utcnow()) == (0, 1)
    (step,) = world.rows(
        "SELECT performer_id, reason, by FROM quest_history WHERE quest_id = :id AND step = 'release'", id=new
    )
    assert step == (performer.user_id, "not submitted within 7 days", "job")


def test_one_that_is_not_due_is_left_alone(world: World) -> None:
    quest = world.create(world.person(), expires_at=utcnow() + timedelta(hours=1))
    expiring.expire(world.tenant, quest)
    assert (world.get(quest).status, world.get(quest).version) == (Status.OPEN, 1)


def test_a_step_that_meets_it_waits_until_it_is_expired(world: World) -> None:
    quest = world.create(world.person())
    world.let_expire(quest)
    with ThreadPoolExecutor(1) as thread:
        with world.tx() as tx:
            held = text("SELECT FROM quests WHERE tenant_id = :t AND id = :id FOR UPDATE")
            tx.execute(held, {"t": world.tenant, "id": quest})
            waiting = thread.submit(expiring.expire, world.tenant, quest)
            time.sleep(0.1)
            assert not waiting.done()
        waiting.result()
    assert world.get(quest).status == Status.EXPIRED


def test_a_claim_that_changed_hands_meanwhile_is_not_released(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    creator, performer, other = world.person(), world.person(), world.person()
    quest = world.at(Status.CLAIMED, creator, performer)
    world.set(quest, claimed_at=utcnow() - timedelta(days=15))
    release = steps.release

    def late(*args: Any, **options: Any) -> Any:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(change_hands).result()
        return release(*args, **options)

    def change_hands() -> None:
        with world.tx() as tx:
            release(tx, quest, performer)
        world.claim(quest, other)

    monkeypatch.setattr(steps, "release", late)
    assert expiring.end_due(world.tenant, now=utcnow()) == (0, 0)
    assert world.get(quest).performer_id == other.user_id


def test_the_job_makes_way_after_a_step(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiring, "MAX_PER_STEP", 2)
    monkeypatch.setattr(expiring, "MAX_RELEASED_PER_STEP", 1)
    creator, performer = world.person(), world.person()
    for _ in range(3):
        world.let_expire(world.at(Status.OPEN, creator, performer))
        world.set(world.at(Status.CLAIMED, creator, performer), claimed_at=utcnow() - timedelta(days=15))
    done = [expiring.end_due(world.tenant, now=utcnow(), is_over=lambda: True) for _ in range(4)]
    assert done[0] == (2, 0)
    assert done[1] == (1, 1)
    assert [sum(column) for column in zip(*done, strict=True)] == [3, 3]
