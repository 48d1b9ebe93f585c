"""Every request gets a thread, until threads begin late for some time."""

from typing import Any

import pytest

from app.server import door, overload
from app.server.door import Door, QueueDoor, Ticket
from tenants.shares import NOBODY, Caller

ADA = Caller("a", "client:a")


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
    caller = Caller(tenant_id, f"client:{tenant_id}")
    return [ticket for _ in range(asked) if (ticket := a_door.enter(caller)) is not None]


def test_while_threads_begin_in_time_as_many_are_let_in_as_may_wait_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "LATE_AFTER_S", 60.0)
    a_door = Door(working=2, threads=10)
    assert len(entered(a_door, "a", 100)) == 20, "bounded all the same"


@pytest.mark.usefixtures("_late")
def test_while_threads_begin_late_as_many_are_let_in_as_are_worked_on_at_once(logged: Any) -> None:
    a_door = Door(working=4, threads=10)
    under_way = entered(a_door, "a", 100)
    assert len(under_way) == 4
    assert a_door.enter(ADA, always=True) is not None
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
        assert several.enter(Caller(tenant, "ada")) is not None
    assert entered(several, "quiet", 3) == [], "where nobody has most of it, all are refused alike"


@pytest.mark.usefixtures("_late")
def test_others_of_the_same_tenant_do_not_notice_the_flood_of_one_caller() -> None:
    one = Door(working=6, threads=10)
    assert len([one.enter(ADA) for _ in range(6)]) == 6
    assert one.enter(ADA) is None
    assert one.enter(Caller("a", "user:bob")) is not None
    assert one.enter(Caller("b", "user:eve")) is not None


@pytest.mark.usefixtures("_late")
def test_the_flood_of_a_whole_tenant_is_refused_to_all_of_its_callers() -> None:
    one = Door(working=6, threads=10)
    for number in range(6):
        assert one.enter(Caller("a", f"user:{number}")) is not None
    assert one.enter(Caller("a", "user:bob")) is None
    assert one.enter(Caller("b", "user:eve")) is not None


@pytest.mark.usefixtures("_late")
def test_a_flood_without_a_verified_name_is_its_networks_and_no_tenants() -> None:
    one = Door(working=6, threads=10)
    flood = Caller(NOBODY, "192.0.2.1")
    assert all(one.enter(flood) is not None for _ in range(6))
    assert one.enter(flood) is None
    assert one.enter(Caller(NOBODY, "192.0.2.2")) is not None
    assert one.enter(ADA) is not None


@pytest.mark.usefixtures("_late")
def test_few_requests_are_never_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "MIN_LIMIT", 32)
    assert len(entered(Door(working=1, threads=100), "a", 100)) == 32


def left_in(a_door: Door) -> int:
    inside = a_door._inside
    return len(a_door._waiting) + len(inside._of_tenants) + len(inside._of_callers) + inside.count


def answer(a_door: Door, tickets: list[Ticket]) -> None:
    for ticket in tickets:
        a_door.begin(ticket)
        a_door.leave(ticket)


def flow(a_door: Door, clock: Clock, *, late_by: float, seconds: float) -> None:
    """Let in a request each 10 ms, whose thread begins so many seconds later."""
    waiting: list[tuple[float, Ticket]] = []
    end = clock.now + seconds
    while clock.now < end:
        if (ticket := a_door.enter(ADA)) is not None:
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
        refused = a_door.enter(ADA) is None
    assert refused


def test_nothing_is_remembered_of_requests_that_were_answered() -> None:
    a_door = Door(working=2, threads=2)
    for number in range(100):
        ticket = a_door.enter(Caller(f"tenant-{number}", "ada"))
        assert ticket is not None
        a_door.begin(ticket)
        a_door.leave(ticket)
    a_door._catch_up()
    assert left_in(a_door) == 0


def test_a_request_is_either_withdrawn_or_begun() -> None:
    a_door = Door(working=2, threads=2)
    withdrawn, begun = entered(a_door, "a", 2)
    assert a_door.withdraw(withdrawn)
    assert not a_door.begin(withdrawn), "a thread that finds it later leaves it alone"
    assert a_door.begin(begun)
    assert not a_door.withdraw(begun), "the thread answers it"
    a_door.leave(begun)
    a_door._catch_up()
    assert left_in(a_door) == 0


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


def call(a_door: QueueDoor, name: str, asked: int) -> list[float]:
    """Those that were let in, and when."""
    caller = Caller(name, f"client:{name}")
    return [a_door.enter(caller) for _ in range(asked) if a_door.is_open_to(lambda: caller)]


def answer_calls(a_door: QueueDoor, name: str, calls: list[float]) -> None:
    for entered_at in calls:
        a_door.leave(Caller(name, f"client:{name}"), entered_at)


@pytest.fixture
def late_queue(clock: Clock) -> QueueDoor:
    """Calls have been answered late for some time, and none is under way."""
    a_door = QueueDoor(together=4)
    for _ in range(2):
        calls = call(a_door, "a", 100)
        assert len(calls) == 100, "not late for long enough"
        clock.now += 2 * door.LATE_ANSWER_AFTER_S
        answer_calls(a_door, "a", calls)
    return a_door


def test_calls_that_are_answered_in_time_are_all_let_in(clock: Clock) -> None:
    a_door = QueueDoor(together=4)
    for _ in range(100):
        calls = call(a_door, "a", 1_000)
        assert len(calls) == 1_000, "a burst"
        clock.now += door.LATE_ANSWER_AFTER_S / 2
        answer_calls(a_door, "a", calls)


def test_calls_that_are_answered_late_now_and_then_are_all_let_in(clock: Clock) -> None:
    a_door = QueueDoor(together=4)
    for _ in range(10):
        calls = call(a_door, "a", 100)
        clock.now += 5 * door.LATE_ANSWER_AFTER_S  # a pause
        answer_calls(a_door, "a", calls)
        quick = call(a_door, "a", 100)
        assert len(quick) == 100
        clock.now += door.LATE_ANSWER_AFTER_S / 2
        answer_calls(a_door, "a", quick)


def test_once_calls_are_answered_late_for_some_time_as_many_are_let_in_as_can_be_answered_soon(
    late_queue: QueueDoor, clock: Clock, logged: Any
) -> None:
    calls = call(late_queue, "a", 100)
    assert len(calls) == 8, "those that are answered now, and those after them"
    answer_calls(late_queue, "a", calls[:3])
    assert len(call(late_queue, "a", 100)) == 3
    clock.now += overload.CALM_AFTER_S
    answer_calls(late_queue, "a", calls[3:])
    assert [line["action"] for line in logged()] == ["requests.refused"]


def test_a_queue_recovers_once_there_was_no_excess_for_some_time(late_queue: QueueDoor, clock: Clock) -> None:
    for _ in range(10):
        calls = call(late_queue, "a", 100)
        assert len(calls) == 8, "they are answered in time because of the refusals"
        clock.now += overload.CALM_AFTER_S * 0.9
        for entered_at in calls:
            late_queue.leave(ADA, max(entered_at, clock.now))
    clock.now += overload.CALM_AFTER_S
    assert len(call(late_queue, "a", 100)) == 100


def test_calls_of_others_are_let_in_during_the_flood_of_one_tenant(late_queue: QueueDoor) -> None:
    assert len(call(late_queue, "a", 100)) == 8
    assert len(call(late_queue, "quiet", 3)) == 3
    assert call(late_queue, "a", 100) == []


def test_calls_of_colleagues_are_let_in_during_the_flood_of_one_caller(late_queue: QueueDoor) -> None:
    assert len(call(late_queue, "a", 100)) == 8
    colleague = Caller("a", "user:quiet")
    assert late_queue.is_open_to(lambda: colleague)


def test_calls_that_nobody_answers_are_overload_too(clock: Clock) -> None:
    a_door = QueueDoor(together=4)
    assert len(call(a_door, "a", 50)) == 50
    for _ in range(40):
        clock.now += 0.01
        refused = not a_door.is_open_to(lambda: ADA)
    assert refused


def test_nothing_is_remembered_of_calls_that_were_answered(clock: Clock) -> None:
    a_door = QueueDoor(together=4)
    for number in range(100):
        answer_calls(a_door, f"tenant-{number}", call(a_door, f"tenant-{number}", 10))
    assert (a_door._inside.count, a_door._inside._of_tenants, a_door._inside._of_callers) == (0, {}, {})
