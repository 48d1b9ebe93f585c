"""Requests that wait for a group commit: how their callers are woken."""

import threading

from analytics.ingest.commit_lanes import Lane, Waiting
from analytics.ingest.writes import WriteRequest
from tenants.db import utcnow


def test_a_caller_passes_once_for_each_turn() -> None:
    caller = Waiting(WriteRequest("acme", [], utcnow()), Lane())
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


def test_lanes_are_shared_or_of_one_tenant() -> None:
    assert Lane().is_shared
    assert not Lane("acme").is_shared
