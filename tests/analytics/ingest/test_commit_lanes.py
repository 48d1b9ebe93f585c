"""Requests that wait for a group commit: how each kind of caller is woken."""

import threading
from collections.abc import Callable
from typing import Any

from analytics.ingest.commit_lanes import Away, Blocked, Lane
from analytics.ingest.writes import WriteRequest
from tenants.db import utcnow


def request() -> WriteRequest:
    return WriteRequest("acme", [], utcnow())


def away(done: Callable[[], None], ran: list[Any], request: WriteRequest) -> Away:
    return Away(request, Lane(), lead_in_thread=ran.append, run_in_thread=ran.append, done=done, expires_at=0)


def test_a_caller_that_waits_passes_once_for_each_turn() -> None:
    caller = Blocked(request(), Lane())
    passed: list[tuple[bool, bool]] = []

    def wait() -> None:
        for _ in range(2):
            assert caller.gate.acquire(timeout=10)
            passed.append((caller.leads, caller.is_done))

    thread = threading.Thread(target=wait)
    thread.start()
    caller.lead()
    thread.join(0.1)
    assert (passed, thread.is_alive()) == ([(True, False)], True)
    caller.finish()
    thread.join(10)
    assert passed[1] == (True, True)


def test_for_a_caller_that_went_away_a_thread_leads_and_it_is_called_at_the_end() -> None:
    called: list[str] = []
    ran: list[Any] = []
    caller = away(lambda: called.append("done"), ran, request())
    caller.lead()
    assert (ran, caller.leads) == ([caller], True)
    caller.finish()
    assert (called, len(ran)) == (["done"], 1)


def test_what_follows_a_commit_runs_in_a_thread_and_the_caller_is_called_after_it() -> None:
    order: list[str] = []
    ran: list[Any] = []
    written = request()
    written.after_commit = [lambda: order.append("announced")]
    away(lambda: order.append("done"), ran, written).finish()
    assert order == []
    ran[0]()
    assert order == ["announced", "done"]


def test_lanes_are_shared_or_of_one_tenant() -> None:
    assert Lane().is_shared
    assert not Lane("acme").is_shared
