"""Every request gets a thread, until threads begin late for some time."""

from typing import Any

import pytest

from app.server import door, overload
from app.server.door import Door, Ticket


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "MIN_LIMIT", 1)


class Clock:
    """The time that the door reads, in seconds."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(door, "time", made)
    return made


@pytest.fixture
def _late(monkeypatch: pytest.MonkeyPatch) -> None:
    """All threads have begun late for long enough."""
    monkeypatch.setattr(door, "LATE_AFTER_S", -1.0)
    monkeypatch.setattr(overload, "LATE_FOR_S", -1.0)


def entered(a_door: Door, tenant_id: str, asked: int) -> list[Ticket]:
    return [ticket for _ in range(asked) if (ticket := a_door.enter(tenant_id)) is not None]


def test_while_threads_begin_in_time_as_many_are_let_in_as_may_wait_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "LATE_AFTER_S", 60.0)
    a_door = Door(working=2, threads=10)
    assert len(entered(a_door, "a", 100)) == 20, "bounded all the same"


@pytest.mark.usefixtures("_late")
def test_while_threads_begin_late_as_many_are_let_in_as_are_worked_on_at_once(logged: Any) -> None:
    a_door = Door(working=4, threads=10)
    under_way = entered(a_door, "a", 100)
    assert len(under_way) == 4
    assert a_door.enter("a", always=True) is not None
    answer(a_door, under_way)
    assert len(entered(a_door, "a", 100)) == 3, "as many as there is room for"
    assert [line["action"] for line in logged()] == ["requests.refused"], "once a minute at most"


@pytest.mark.usefixtures("_late")
def test_others_do_not_notice_the_flood_of_one_tenant() -> None:
    one = Door(working=6, threads=10)
    assert len(entered(one, "a", 100)) == 6
    assert len(entered(one, "quiet", 3)) == 3
    several = Door(working=6, threads=10)
    for tenant in "abcabc":
        assert several.enter(tenant) is not None
    assert entered(several, "quiet", 3) == [], "where nobody has most of it, all are refused alike"


@pytest.mark.usefixtures("_late")
def test_few_requests_are_never_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "MIN_LIMIT", 32)
    assert len(entered(Door(working=1, threads=100), "a", 100)) == 32


def answer(a_door: Door, tickets: list[Ticket]) -> None:
    for ticket in tickets:
        a_door.begin(ticket)
        a_door.leave(ticket)


def flow(a_door: Door, clock: Clock, *, late_by: float, seconds: float) -> None:
    """Let in a request each 10 ms, whose thread begins so many seconds later."""
    waiting: list[tuple[float, Ticket]] = []
    end = clock.now + seconds
    while clock.now < end:
        if (ticket := a_door.enter("a")) is not None:
            waiting.append((clock.now, ticket))
        clock.now += 0.01
        while waiting and clock.now - waiting[0][0] >= late_by:
            answer(a_door, [waiting.pop(0)[1]])
    answer(a_door, [ticket for _, ticket in waiting])


def test_a_pause_of_the_process_is_no_overload(clock: Clock) -> None:
    a_door = Door(working=4, threads=100)
    for _ in range(10):
        paused = entered(a_door, "a", 50)
        clock.now += 0.3  # neither the loop nor a thread runs
        arrived = entered(a_door, "a", 10)
        assert len(arrived) == 10
        answer(a_door, [*paused, *arrived])
        flow(a_door, clock, late_by=0.01, seconds=0.1)
    assert len(entered(a_door, "a", 50)) == 50


def test_a_late_thread_now_and_then_is_no_overload(clock: Clock) -> None:
    a_door = Door(working=4, threads=100)
    for _ in range(10):
        (late,) = entered(a_door, "a", 1)
        clock.now += overload.CALM_AFTER_S + 1.0
        a_door.begin(late)
        under_way = entered(a_door, "a", 50)
        assert len(under_way) == 50
        for ticket in [late, *under_way]:
            a_door.leave(ticket)


def test_threads_that_begin_late_for_some_time_are_overload_until_they_begin_in_time_again(clock: Clock) -> None:
    a_door = Door(working=4, threads=100)
    flow(a_door, clock, late_by=0.03, seconds=2 * overload.LATE_FOR_S)
    under_way = entered(a_door, "a", 50)
    assert len(under_way) == 4
    answer(a_door, under_way)
    flow(a_door, clock, late_by=0.01, seconds=overload.CALM_AFTER_S / 2)
    under_way = entered(a_door, "a", 50)
    assert len(under_way) == 4, "it was overloaded a moment ago"
    answer(a_door, under_way)
    flow(a_door, clock, late_by=0.01, seconds=overload.CALM_AFTER_S)
    assert len(entered(a_door, "a", 50)) == 50


def test_requests_that_wait_for_a_thread_are_overload_too(clock: Clock) -> None:
    a_door = Door(working=4, threads=100)
    assert len(entered(a_door, "a", 50)) == 50
    for _ in range(20):
        clock.now += 0.01
        refused = a_door.enter("a") is None
    assert refused


def test_nothing_is_remembered_of_requests_that_were_answered() -> None:
    a_door = Door(working=2, threads=2)
    for number in range(100):
        ticket = a_door.enter(f"tenant-{number}")
        assert ticket is not None
        a_door.begin(ticket)
        a_door.leave(ticket)
    a_door._catch_up()
    assert (a_door._waiting, a_door._inside.count, a_door._inside._of_tenant) == ({}, 0, {})


def test_a_request_is_either_withdrawn_or_begun() -> None:
    a_door = Door(working=2, threads=2)
    withdrawn, begun = entered(a_door, "a", 2)
    assert a_door.withdraw(withdrawn)
    assert not a_door.begin(withdrawn), "a thread that finds it later leaves it alone"
    assert a_door.begin(begun)
    assert not a_door.withdraw(begun), "the thread answers it"
    a_door.leave(begun)
    a_door._catch_up()
    assert (a_door._waiting, a_door._inside.count, a_door._inside._of_tenant) == ({}, 0, {})


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
