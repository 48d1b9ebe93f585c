"""Limits by the minute on many at once: one for all processes by Redis, and without it one for each."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection
from uuid import uuid4

import pytest

from app.settings import Settings
from tenants import allowances, waiting
from tenants import redis as tenants_redis
from tenants.allowances import UNTOLD_SHARE, give_back, take, take_one
from tenants.waiting import WouldWait
from tests.conftest import redis_unavailable
from tests.forking import forking
from tests.service import eventually


@pytest.fixture(params=["redis", "no redis"])
def redis(request: pytest.FixtureRequest, connected: None) -> str:
    if request.param == "no redis":
        request.getfixturevalue("no_redis")
    return str(request.param)


@pytest.fixture
def on_loop() -> Iterator[None]:
    """This thread may not wait."""
    waiting.forbid_in_this_thread()
    yield
    waiting.allow_in_this_thread()


def test_who_wants_more_than_there_is_gets_the_rest_and_a_wait(redis: str) -> None:
    tenant = str(uuid4())
    first, second, third = (take("actions", 100, 60, tenant) for _ in range(3))
    assert [one.amount for one in (first, second, third)] == [60, 40, 0]
    assert [one.state.is_allowed for one in (first, second, third)] == [True, False, False]
    assert 1 <= second.state.resets_in_s <= third.state.resets_in_s <= 120
    assert take("actions", 100, 60, str(uuid4())).amount == 60, "another tenant has its own"
    give_back("actions", 30, tenant)
    assert take("actions", 100, 60, tenant).amount == 30


def test_processes_count_together(connected: None) -> None:
    tenant = str(uuid4())
    assert take("actions", 100, 60, tenant).amount == 60
    allowances._own.clear()  # as another process has none of it
    assert take("actions", 100, 60, tenant).amount == 40


@pytest.mark.parametrize(
    ("at", "amount", "wait_s"),
    [
        (0, 100, None),
        (59, 0, 61),  # 100 in the minute before: the wanted 100 fit when all of them are gone
        (60, 0, 60),
        (90, 50, 30),  # half of the minute before is past, and the other half in half a minute
        (120, 50, 60),
        (600, 100, None),
    ],
)
def test_the_minute_before_is_weighed_by_what_is_left_of_it(at: int, amount: int, wait_s: int | None) -> None:
    key = ("test", str(uuid4()))
    allowances._take_here(key, 100, 100 if at else 0, now=6_000)
    if at == 120:
        allowances._take_here(key, 100, 50, now=6_090)
    got, taken, before, elapsed_s = allowances._take_here(key, 100, 100, now=6_000 + at)
    assert got == amount
    if wait_s is not None:
        wait = allowances._wait_s(100, 100 - got, taken, before, elapsed_s)
        later = allowances._take_here(key, 100, 100 - got, now=6_000 + at + wait + 0.01)
        assert later[0] == 100 - got, "after that wait the rest is there"
        assert wait == pytest.approx(wait_s)


def test_one_by_one_no_more_are_taken_than_the_limit_says(redis: str) -> None:
    user = str(uuid4())
    states = [take_one("attempts", 100, user) for _ in range(150)]
    assert [state.is_allowed for state in states[:100]] == [True] * 100
    assert sum(state.is_allowed for state in states) <= 102, "a few more, if a minute ended meanwhile"
    assert states[0].headers()["RateLimit-Policy"] == '"attempts";q=100;w=60'
    assert (states[0].remaining, states[99].remaining) == (99, 0)
    assert 1 <= states[-1].resets_in_s <= 120
    assert take_one("attempts", 100, str(uuid4())).is_allowed, "another user has a limit of their own"


def test_callers_who_take_little_cost_no_exchange(connected: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allowances, "exchange", lambda *_, **__: pytest.fail("Redis was asked"))
    monkeypatch.setattr(allowances._exchange, "soon", lambda *_: pytest.fail("Redis was told"))
    user = str(uuid4())
    assert all(take_one("attempts", 10 * UNTOLD_SHARE, user).is_allowed for _ in range(9))


def test_threads_take_hardly_more_together(connected: None) -> None:
    user = str(uuid4())
    with ThreadPoolExecutor(8) as threads:
        allowed = sum(threads.map(lambda _: take_one("attempts", 400, user).is_allowed, range(4_000)))
    assert 400 <= allowed <= 400 + 400 // UNTOLD_SHARE + 10


def test_what_a_process_has_taken_is_told_the_others_within_moments(connected: None) -> None:
    user = str(uuid4())
    for _ in range(10):
        assert take_one("attempts", 400, user).is_allowed
    eventually(lambda: allowances._own["attempts", user].untold == 0)
    allowances._own.clear()  # as another process has none of it
    assert take("attempts", 400, 1, user).state.remaining == 389


def test_on_an_event_loop_nobody_waits_for_redis(connected: None, on_loop: None) -> None:
    user, limit = str(uuid4()), 10 * UNTOLD_SHARE
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(allowances._exchange, "soon", lambda *_: None)  # it is quick: the loop hardly ever meets this
        assert all(take_one("attempts", limit, user).is_allowed for _ in range(10))
        for _ in range(3):
            with pytest.raises(WouldWait):
                take_one("attempts", limit, user)
    waiting.allow_in_this_thread()
    state = take_one("attempts", limit, user)
    assert (state.is_allowed, state.remaining) == (True, limit - 11), "a thread asks Redis, which is told of all"
    waiting.forbid_in_this_thread()
    assert take_one("attempts", limit, user).is_allowed


def test_on_an_event_loop_a_refusal_needs_no_redis(connected: None, on_loop: None) -> None:
    user = str(uuid4())
    assert take_one("flags", 1, user).is_allowed
    assert not any(take_one("flags", 1, user).is_allowed for _ in range(100))


def test_after_an_outage_a_process_learns_of_the_others_again(connected: None) -> None:
    user = str(uuid4())
    assert take("attempts", 100, 70, user).amount == 70, "by another process"
    with redis_unavailable():
        assert sum(take_one("attempts", 100, user).is_allowed for _ in range(50)) == 50, "it counts alone"
    allowed = sum(take_one("attempts", 100, user).is_allowed for _ in range(100))
    assert allowed <= 50
    assert not take_one("attempts", 100, user).is_allowed


def test_what_a_process_remembers_is_bounded(no_redis: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allowances, "MAX_OWN_KEYS", 10)
    allowances._own.clear()
    users = [str(uuid4()) for _ in range(100)]
    assert all(take_one("attempts", 1, user).is_allowed for user in users)
    assert len(allowances._own) == 10
    assert len(allowances._exchange._due) <= 10
    assert not any(take_one("attempts", 1, user).is_allowed for user in users[-10:]), "the newest are remembered"


LIMIT, PROCESSES = 400, 4


def take_many(settings: Settings, name: str, calls: Connection) -> None:
    """A process that takes one after the other until most are refused; it answers how many it got."""
    tenants_redis.configure(boards_url=settings.redis_url or "", queue_url=settings.queue_redis_url or "")
    tenants_redis.boards().is_up()
    calls.send("ready")
    user = calls.recv()
    allowed = refused = 0
    while refused < 2 * LIMIT:
        is_allowed = take_one(name, LIMIT, user).is_allowed
        allowed, refused = allowed + is_allowed, refused + (not is_allowed)
    calls.send(allowed)


@pytest.mark.parametrize("is_away", [False, True])
def test_four_processes_take_at_most_a_tenth_more_together(connected: None, settings: Settings, is_away: bool) -> None:
    if is_away:
        settings = replace(settings, redis_url="redis://127.0.0.1:1/0")
    user, pipes, processes = str(uuid4()), [], []
    for _ in range(PROCESSES):
        ours, theirs = forking.Pipe()
        process = forking.Process(target=take_many, args=(settings, "attempts", theirs), daemon=True)
        process.start()
        pipes.append(ours)
        processes.append(process)
    try:
        assert [pipe.recv() for pipe in pipes] == ["ready"] * PROCESSES
        began = time.monotonic()
        for pipe in pipes:
            pipe.send(user)
        allowed = [pipe.recv() for pipe in pipes]
        seconds = time.monotonic() - began
    finally:
        for process in processes:
            process.kill()
            process.join()
    if is_away:
        assert all(LIMIT <= one <= LIMIT * (1 + seconds / 60) + 1 for one in allowed), "each counts alone"
    else:
        # In these seconds so many of the minute before have passed out of it.
        assert LIMIT <= sum(allowed) <= LIMIT * (1.1 + seconds / 60), allowed


def test_without_a_thread_to_tell_redis_the_next_call_asks_and_a_later_one_starts_it(
    connected: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(allowances, "_exchange", allowances._Exchange())
    user = str(uuid4())
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        assert all(take_one("attempts", UNTOLD_SHARE, user).is_allowed for _ in range(2))
    take_one("attempts", UNTOLD_SHARE, user)
    assert allowances._exchange._pid, "it is started"
    eventually(lambda: allowances._own["attempts", user].untold == 0)
