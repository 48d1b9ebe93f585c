"""Who gets a thread: everybody, until threads begin late."""

from typing import Any

import pytest

from app.server import door
from app.server.door import Door, Ticket


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "MIN_LIMIT", 1)


def entered(a_door: Door, tenant_id: str, asked: int) -> list[Ticket]:
    return [ticket for _ in range(asked) if (ticket := a_door.enter(tenant_id)) is not None]


def test_while_threads_begin_in_time_as_many_are_let_in_as_may_wait_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "LATE_AFTER_S", 60.0)
    a_door = Door(working=2, threads=10)
    assert len(entered(a_door, "a", 100)) == 20, "bounded all the same"


def test_while_threads_begin_late_as_many_are_let_in_as_are_worked_on_at_once(
    monkeypatch: pytest.MonkeyPatch, logged: Any
) -> None:
    monkeypatch.setattr(door, "LATE_AFTER_S", -1.0)
    a_door = Door(working=4, threads=10)
    under_way = entered(a_door, "a", 100)
    assert len(under_way) == 4
    assert a_door.enter("a", always=True) is not None
    for ticket in under_way:
        a_door.begin(ticket)
        a_door.leave(ticket)
    assert len(entered(a_door, "a", 100)) == 3, "as many as there is room for"
    assert [line["action"] for line in logged()] == ["requests.refused"], "once a minute at most"


def test_others_do_not_notice_the_flood_of_one_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "LATE_AFTER_S", -1.0)
    one = Door(working=6, threads=10)
    assert len(entered(one, "a", 100)) == 6
    assert len(entered(one, "quiet", 3)) == 3
    several = Door(working=6, threads=10)
    for tenant in "abcabc":
        assert several.enter(tenant) is not None
    assert entered(several, "quiet", 3) == [], "where nobody has most of it, all are refused alike"


def test_few_requests_are_never_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "LATE_AFTER_S", -1.0)
    monkeypatch.setattr(door, "MIN_LIMIT", 32)
    assert len(entered(Door(working=1, threads=100), "a", 100)) == 32


def test_it_recovers_once_threads_begin_in_time_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "LATE_AFTER_S", -1.0)
    a_door = Door(working=1, threads=10)
    (under_way,) = entered(a_door, "a", 5)
    assert a_door.enter("a") is None
    a_door.begin(under_way)
    monkeypatch.setattr(door, "CALM_AFTER_S", -1.0)
    assert len(entered(a_door, "a", 1)) == 1


def test_nothing_is_remembered_of_requests_that_were_answered() -> None:
    a_door = Door(working=2, threads=2)
    for number in range(100):
        ticket = a_door.enter(f"tenant-{number}")
        assert ticket is not None
        a_door.begin(ticket)
        a_door.leave(ticket)
    a_door._catch_up()
    assert (a_door._waiting, a_door._inside, a_door._count) == ({}, {}, 0)


def test_a_request_is_either_withdrawn_or_begun() -> None:
    a_door = Door(working=2, threads=2)
    withdrawn, begun = entered(a_door, "a", 2)
    assert a_door.withdraw(withdrawn)
    assert not a_door.begin(withdrawn), "a thread that finds it later leaves it alone"
    assert a_door.begin(begun)
    assert not a_door.withdraw(begun), "the thread answers it"
    a_door.leave(begun)
    a_door._catch_up()
    assert (a_door._waiting, a_door._inside, a_door._count) == ({}, {}, 0)


def test_health_checks_and_metrics_have_a_limit_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "LATE_AFTER_S", 60.0)
    a_door = Door(working=2, threads=2)
    entered(a_door, "a", 100)
    checks = [ticket for _ in range(100) if (ticket := a_door.enter_for_operators()) is not None]
    assert len(checks) == door.MAX_FOR_OPERATORS, "however many requests of tenants are under way"
    a_door.begin(checks[0])
    a_door.leave(checks[0])
    assert a_door.enter_for_operators() is not None
    assert a_door.enter_for_operators() is None
