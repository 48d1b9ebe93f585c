"""Limits on payments: a user's rate, and the breaker for a tenant's spikes (P8)."""

import pytest

from analytics.scores import limits
from analytics.scores.limits import Breaker, Breakers
from app.settings import Settings
from tenants import redis
from tenants.errors import Unavailable
from tenants.redis_cluster import slot_of
from tenants.settings import Limits
from tenants.shares import share_of
from tests.analytics.scores.conftest import UPDATE, claim_of, entries
from tests.conftest import redis_unavailable
from tests.people import Caller
from tests.redis_nodes import node_of_slot, running_nodes, url_of
from tests.service import eventually


@pytest.mark.parametrize("redis", ["up", "down"])
def test_the_eleventh_update_in_a_minute_is_refused_but_replays_are_not(
    player: Caller, tenant: str, redis: str, request: pytest.FixtureRequest
) -> None:
    if redis == "down":
        request.getfixturevalue("no_redis")
    bodies = [claim_of() for _ in range(11)]
    for number, body in enumerate(bodies[:10]):
        headers = {"X-Forwarded-For": f"10.0.0.{number}"}
        assert player("POST", UPDATE, json=body, headers=headers).status_code == 200
    refused = player("POST", UPDATE, json=bodies[10], headers={"X-Forwarded-For": "10.9.9.9"})
    assert (refused.status_code, refused.get_json()["code"]) == (429, "rate_limited")
    assert 1 <= int(refused.headers["Retry-After"]) <= 60
    assert refused.headers["RateLimit"].startswith('"scores";r=0;t=')
    assert player("POST", UPDATE, json=bodies[0]).status_code == 200, "a replay is answered before limits"
    assert len(entries(tenant, player.id)) == 10


def let_through(breaker: Breaker, max_per_minute: int) -> None:
    breaker.require(max_per_minute)
    breaker.passed()


def test_a_breaker_opens_probes_and_closes() -> None:
    clock = [1000.0]
    breaker = Breaker("test", clock=lambda: clock[0])
    for _ in range(100):
        let_through(breaker, 100)
    with pytest.raises(Unavailable) as refused:
        breaker.require(100)
    assert refused.value.code == "score_spike"
    assert 1 <= (refused.value.retry_after_s or 0) <= limits.OPEN_S
    clock[0] += 5
    with pytest.raises(Unavailable):
        breaker.require(100)
    clock[0] += 6
    for _ in range(limits.PROBES):
        let_through(breaker, 100)
    clock[0] += 11
    for _ in range(51):
        let_through(breaker, 100)


def test_a_breaker_stays_open_while_the_rush_goes_on() -> None:
    clock = [1000.0]
    breaker = Breaker("test", clock=lambda: clock[0])
    refused = 0
    for _ in range(3000):
        clock[0] += 0.01
        try:
            let_through(breaker, 600)
        except Unavailable:
            refused += 1
    assert refused > 1500


def test_a_breaker_sees_what_is_pending_in_a_transaction() -> None:
    breaker = Breaker("test", clock=lambda: 1000.0)
    for pending in range(100):
        breaker.require(100, pending=pending)
    with pytest.raises(Unavailable):
        breaker.require(100, pending=100)


def test_a_breaker_counts_nothing_that_is_rolled_back() -> None:
    breaker = Breaker("test", clock=lambda: 1000.0)
    for _ in range(200):
        breaker.require(100)
    for _ in range(100):
        let_through(breaker, 100)
    with pytest.raises(Unavailable):
        breaker.require(100)


def test_the_default_spike_is_above_any_honest_load_and_below_what_would_open_the_breaker_of_all() -> None:
    fastest_per_s = 10_000  # actions; the fastest trial of paying 64 together reached 7,000
    assert fastest_per_s * limits.WINDOW_S < Limits().score_spike_per_minute < share_of(limits.MAX_PER_MINUTE)


def test_a_batch_above_the_tenants_spike_is_cut(admin: Caller, tenant: str) -> None:
    admin("PATCH", "/api/v1/settings", json={"limits": {"score_spike_per_minute": 2}})
    actions = [{"type": "action", "user": f"u{n}", "action_type": "post"} for n in range(5)]
    answer = admin("POST", "/api/v1/events", json={"events": actions}).get_json()
    assert (answer["accepted"], [r["code"] for r in answer["rejected"]]) == (2, ["limited"] * 3)


def test_a_tenants_spike_is_refused_with_503(admin: Caller, player: Caller) -> None:
    admin("PATCH", "/api/v1/settings", json={"limits": {"score_spike_per_minute": 2}})
    statuses = [player("POST", UPDATE, json=claim_of()).status_code for _ in range(4)]
    assert statuses[0] == 200
    assert statuses[-1] == 503


def pay(process: Breakers, tenant: str, payments: int, *, max_per_minute: int) -> None:
    process.require(tenant, max_per_minute=max_per_minute, pending=payments - 1)
    process.passed(tenant, payments)


def processes(monkeypatch: pytest.MonkeyPatch) -> list[Breakers]:
    """Two, which exchange when the test says so."""
    monkeypatch.setattr(Breakers, "_start", lambda _: None)
    return [Breakers(), Breakers()]


def exchange(processes: list[Breakers]) -> None:
    for process in (*processes, *processes):
        process.exchange()


def test_a_tenants_spike_is_one_of_all_processes_together(tenant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    both = processes(monkeypatch)
    for payments in (1, 30, 20):
        for process in both:
            pay(process, tenant, payments, max_per_minute=100)
        exchange(both)
    for process in both:
        with pytest.raises(Unavailable):
            pay(process, tenant, 1, max_per_minute=100)
        pay(process, "another", 1, max_per_minute=100)


def test_without_redis_each_process_counts_alone_and_with_it_again_together(
    tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = first, second = processes(monkeypatch)
    for process in both:
        pay(process, tenant, 1, max_per_minute=100)
    exchange(both)
    with redis_unavailable():
        pay(first, tenant, 70, max_per_minute=100)
        pay(second, tenant, 40, max_per_minute=100)
        exchange(both)
    exchange(both)
    pay(second, tenant, 30, max_per_minute=100)
    exchange(both)
    with pytest.raises(Unavailable):
        pay(first, tenant, 1, max_per_minute=100)


def test_while_a_node_of_the_cluster_is_away_no_payment_is_counted_twice(
    connected: None, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = {f"t{n:03d}": slot_of(("GET", limits.counter_of(f"t{n:03d}"))) for n in range(100)}
    away, there = (next(t for t, slot in slots.items() if node_of_slot(slot) == number) for number in range(2))
    both = first, second = processes(monkeypatch)
    with running_nodes() as nodes:
        redis.configure(boards_url=url_of(nodes), queue_url=settings.queue_redis_url or "")
        for process in both:
            for tenant in (away, there):
                pay(process, tenant, 5, max_per_minute=1000)
        exchange(both)
        with nodes[0].hung():
            for _ in range(10):
                for tenant in (away, there):
                    pay(first, tenant, 1, max_per_minute=1000)
                first.exchange()
        eventually(redis.boards().is_up)
        exchange(both)
        counted = redis.boards().redis.get(limits.counter_of(there))
    assert (counted, first._of(there)._arrived, second._of(there)._arrived) == (b"20", 20, 15)


def test_a_tenant_far_below_its_limit_costs_no_round_trip(tenant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    process, _ = processes(monkeypatch)
    monkeypatch.setattr(limits, "boards", None)
    pay(process, tenant, 999, max_per_minute=1_000_000)
    process.exchange()
    pay(process, tenant, 1, max_per_minute=1_000_000)
    with pytest.raises(TypeError):
        process.exchange()
