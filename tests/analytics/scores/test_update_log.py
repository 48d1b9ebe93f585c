"""The log line of score updates: all of them, and above a rate one of many."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import pytest

from analytics.ingest import writes
from analytics.ingest.writes import WriteRequest
from analytics.scores.actions import ActionClaim, Payment, Verification
from analytics.scores.update_log import MAX_LINES_PER_S, LoggedPayment, UpdateLog
from tenants import settings as tenant_settings
from tenants.db import tenant_tx, utcnow
from tenants.logs import SAMPLED
from tests.analytics.scores.conftest import UPDATE, claim_of
from tests.people import Caller

Lines = Callable[[], list[dict[str, Any]]]


def payments(count: int) -> list[LoggedPayment]:
    return [(Payment(n, 1, None, None, is_replay=False), None) for n in range(count)]


def test_an_update_is_one_line_and_a_replay_none(player: Caller, tenant: str, logged: Lines) -> None:
    body, asked = claim_of(), {"X-Request-Id": "of-the-claim"}
    answer = player("POST", UPDATE, json=body, headers=asked).get_json()
    player("POST", UPDATE, json=body)
    (line,) = (line for line in logged() if line["action"] == "score_update")
    assert (line["tenantId"], line["userId"], line["requestId"]) == (tenant, player.id, "of-the-claim")
    assert line["data"] == {"scoreDelta": 10, "newScore": answer["score"], "rank": answer["rank"]}


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "k"}, {"Cookie": "not=plain"}])
def test_each_line_has_the_id_of_its_request(player: Caller, logged: Lines, headers: dict[str, str]) -> None:
    sent = {f"request-{number}" for number in range(5)}
    with ThreadPoolExecutor(5) as pool:  # some of them share a commit
        for one in sent:
            own = {**headers, "X-Request-Id": one} | ({"Idempotency-Key": one} if "Idempotency-Key" in headers else {})
            pool.submit(player, "POST", UPDATE, json=claim_of(), headers=own)
    assert {line["requestId"] for line in logged() if line["action"] == "score_update"} == sent


def test_the_lines_of_a_batch_have_the_id_of_its_request(admin: Caller, logged: Lines) -> None:
    batch = [{"type": "action", "user": "ada", "action_type": "post", "id": str(uuid4())} for _ in range(2)]
    answer = admin("POST", "/api/v1/events", json={"events": batch}, headers={"X-Request-Id": "of-the-batch"})
    assert answer.get_json()["accepted"] == 2, answer.text
    ids = [line["requestId"] for line in logged() if line["action"] == "score_update"]
    assert ids == ["of-the-batch"] * 2


@pytest.mark.parametrize("is_logged", [True, False])
def test_the_traffic_of_the_demo_is_not_logged(player: Caller, tenant: str, logged: Lines, is_logged: bool) -> None:
    claim = ActionClaim(UUID(player.id), "post", f"test:{uuid4()}", Verification.CLIENT)
    with tenant_tx(tenant) as tx:
        settings = tenant_settings.read(tx)[0]
        writes.apply(tx, WriteRequest(tenant, [], utcnow(), claims=[claim], settings=settings, is_logged=is_logged))
    assert len([line for line in logged() if line["action"] == "score_update"]) == is_logged


def test_above_a_rate_lines_stand_for_many(logged: Lines) -> None:
    clock = [1000.0]
    updates, tenant, sizes = UpdateLog(clock=lambda: clock[0]), str(uuid4()), (1, 30, 119, 0, 64, 1000, 7)
    for size in sizes:
        updates.record(tenant, payments(size))
    counts = [line["data"].get("sampled", 1) for line in logged() if line["tenantId"] == tenant]
    assert counts[:MAX_LINES_PER_S] == [1] * MAX_LINES_PER_S
    assert counts[MAX_LINES_PER_S:] == [SAMPLED] * ((sum(sizes) - MAX_LINES_PER_S) // SAMPLED)
    clock[0] += 1
    updates.record(tenant, payments(3))
    assert [line["data"] for line in logged() if line["tenantId"] == tenant][-1] == {
        "scoreDelta": 1,
        "newScore": 2,
        "rank": None,
    }


def test_updates_a_little_above_the_rate_are_counted_over_the_seconds(logged: Lines) -> None:
    clock = [1000.0]
    updates, tenant = UpdateLog(clock=lambda: clock[0]), str(uuid4())
    for _ in range(10):
        updates.record(tenant, payments(MAX_LINES_PER_S + 40))
        clock[0] += 1
    counts = [line["data"].get("sampled", 1) for line in logged() if line["tenantId"] == tenant]
    assert sum(counts) == 10 * (MAX_LINES_PER_S + 40)
    assert counts.count(SAMPLED) == 4


def test_many_updates_cost_microseconds_each() -> None:
    updates, batch = UpdateLog(clock=lambda: 1000.0), payments(64)
    updates.record("t1", batch)
    began = time.process_time()
    for _ in range(200):
        updates.record("t1", batch)
    each_us = (time.process_time() - began) / (200 * 64) * 1e6
    assert each_us < 20, f"{each_us:.1f} µs"
