"""P2 for quests: whoever completes a quest or retries a reward dies with -9 at every point on the way.

The process that dies is a fork without HTTP, so that a test decides where: after a named function has returned, or
between a commit and its answer.
"""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from importlib import import_module
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text

from analytics import checks
from analytics.boards import projection
from analytics.quests import rewards
from analytics.quests.people import Person
from analytics.quests.states import Status
from analytics.scores import ledger
from app.settings import Settings
from app.web import connect
from tenants import logs
from tenants.db import Tx, utcnow
from tests.analytics.quests.questing import World, balances
from tests.forking import forking

COMMITTED = "committed"
# Module and function; and after how many calls.
COMPLETING = [
    ("analytics.quests.people:lock", 1),
    ("analytics.quests.steps:_apply", 1),
    ("analytics.quests.history:record", 1),
    ("analytics.quests.steps:_record_attestation", 1),
    ("analytics.quests.rewards:pay_one", 1),
    ("analytics.quests.rewards:pay_one", 2),
    ("analytics.quests.rewards:pay", 1),
    ("analytics.quests.rings:watch", 1),
    (COMMITTED, 1),
]
RETRYING = [
    (COMMITTED, 1),  # leased
    ("analytics.quests.rewards:pay_one", 1),
    (COMMITTED, 2),  # paid
]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_after(point: str, times: int) -> None:
    """Have this process die after so many calls of a function, or so many commits."""
    left = [times]

    def count(*_: object) -> None:
        left[0] -= 1
        if not left[0]:
            die()

    if point == COMMITTED:
        setattr(Tx, "run_after_commit", count)  # noqa: B010  what follows a commit is not needed here
        return
    module, name = point.split(":")
    function: Callable[..., Any] = getattr(import_module(module), name)

    def dying(*args: Any, **options: Any) -> Any:
        answer = function(*args, **options)
        count()
        return answer

    setattr(import_module(module), name, dying)


def fail_xp(times: int) -> None:
    """Have the ledger's statement fail so many times for XP."""
    left, add_entry = [times], ledger.add_entry

    def failing(tx: Any, user: Any, metric: Any, **options: Any) -> Any:
        if metric.account == "xp" and left[0]:
            left[0] -= 1
            tx.run(text("SELECT 1 / 0"), {})
        return add_entry(tx, user, metric, **options)

    setattr(ledger, "add_entry", failing)  # noqa: B010  the process is ours alone


def in_process(
    settings: Settings, what: str, arguments: Sequence[Any], point: tuple[str, int] | None, fails: int
) -> int:
    """Do something in a process that dies there; returns its exit code."""
    own = replace(settings, database_url=None if settings.service_database_url else settings.database_url)
    process = forking.Process(target=_do, args=(own, what, arguments, point, fails), daemon=True)
    process.start()
    process.join(30)
    assert process.exitcode is not None
    return process.exitcode


def _do(settings: Settings, what: str, arguments: Sequence[Any], point: tuple[str, int] | None, fails: int) -> None:
    logs.configure(service="web", log_format="json", stream=sys.stderr)
    connect(settings)
    fail_xp(fails)
    if point is not None:
        die_after(*point)
    tenant, *rest = arguments
    match what:
        case "attest":
            quest, attester = rest
            World(tenant).attest(UUID(quest), Person(UUID(attester), is_admin=False, by="test"))
        case "retry":
            rewards.retry_due(tenant, by="worker", now=rest[0])


def is_right(world: World) -> bool:
    projection.project_all(world.tenant, now=utcnow)
    return checks.check(world.tenant, now=utcnow()).differences == []


@pytest.mark.parametrize("point", COMPLETING, ids=str)
def test_a_completion_that_dies_anywhere_pays_once_when_it_is_tried_again(
    settings: Settings, tenant: str, point: tuple[str, int]
) -> None:
    world = World(tenant)
    creator, performer = world.person(), world.person()
    quest = world.at(Status.PENDING_REVIEW, creator, performer)
    arguments = (tenant, str(quest), str(creator.user_id))
    assert in_process(settings, "attest", arguments, point, 0) == -signal.SIGKILL
    is_committed = point[0] == COMMITTED
    assert world.get(quest).status == (Status.COMPLETE if is_committed else Status.PENDING_REVIEW)
    assert balances(world, performer) == ((0, 100, 5) if is_committed else (0, 0, 0))
    assert is_right(world)
    if not is_committed:
        assert in_process(settings, "attest", arguments, None, 0) == 0
    assert (world.get(quest).status, balances(world, performer)) == (Status.COMPLETE, (0, 100, 5))
    assert world.rows("SELECT account, count(*) FROM score_ledger GROUP BY 1 ORDER BY 1") == [
        ("reputation", 1),
        ("xp", 1),
    ]
    assert is_right(world)


def retried_until_paid(world: World, settings: Settings, point: tuple[str, int] | None, fails: int) -> datetime:
    """Retry when it is due: with failures, then dying at the point, then to the end."""
    now = utcnow()
    for where, failures in [*[(None, 1)] * fails, (point, 0), (None, 0)]:
        now = max(now, *(row.next_attempt_at for row in world.rows("SELECT next_attempt_at FROM failed_rewards")))
        died = in_process(settings, "retry", (world.tenant, now), where, failures) == -signal.SIGKILL
        assert died == (where is not None)
        assert is_right(world)
    return now


@pytest.mark.parametrize("point", RETRYING, ids=str)
def test_a_reward_that_fails_three_times_and_whose_worker_dies_is_paid_once(
    settings: Settings, tenant: str, point: tuple[str, int]
) -> None:
    world = World(tenant)
    creator, performer = world.person(), world.person()
    quest = world.at(Status.PENDING_REVIEW, creator, performer)
    assert in_process(settings, "attest", (tenant, str(quest), str(creator.user_id)), None, 1) == 0
    assert balances(world, performer) == (0, 0, 5)
    retried_until_paid(world, settings, point, fails=2)
    (row,) = world.rows("SELECT status, processed_by, attempt_count FROM failed_rewards")
    assert (row.status, row.processed_by) == ("COMPLETED", "worker")
    assert row.attempt_count in {4, 5}
    assert balances(world, performer) == (0, 100, 5)
