"""Revoking takes effect at once in every process, with Redis there and with Redis hanging."""

import signal
import time

import pytest
import requests

from tests.service import Service, eventually

CALLS = 24  # enough to meet every web process


@pytest.fixture(scope="module")
def service(demo_service: Service) -> Service:
    return demo_service


def log_in(service: Service) -> dict[str, str]:
    body = {"tenant": "demo", "username": service.ready["admin_username"], "password": service.ready["admin_password"]}
    answer = service.post("/api/v1/auth/login", json=body)
    assert answer.status_code == 200, answer.text
    return {"Authorization": f"Bearer {answer.json()['access_token']}"}


def statuses(service: Service, headers: dict[str, str]) -> tuple[set[int], float]:
    """What every process answers (each call on a connection of its own), and the slowest of them."""
    seen, slowest = set(), 0.0
    for _ in range(CALLS):
        began = time.monotonic()
        seen.add(service.get("/api/v1/me", headers=headers).status_code)
        slowest = max(slowest, time.monotonic() - began)
    return seen, slowest


def test_a_logout_counts_at_once_in_every_process(service: Service) -> None:
    headers = log_in(service)
    assert statuses(service, headers)[0] == {200}
    assert requests.post(f"{service.url}/api/v1/auth/logout", headers=headers, timeout=10).status_code == 204
    assert statuses(service, headers)[0] == {401}


def test_it_counts_at_once_while_redis_hangs_and_nobody_waits_long(service: Service) -> None:
    valkey = service.processes()["valkey"]
    headers = log_in(service)
    assert statuses(service, headers)[0] == {200}, "and every process has it cached"
    valkey.send_signal(signal.SIGSTOP)
    try:
        seen, slowest = statuses(service, headers)
        assert seen == {200}
        assert slowest < 1.5, "half a second for Redis, and slack for a busy machine"
        assert requests.post(f"{service.url}/api/v1/auth/logout", headers=headers, timeout=10).status_code == 204
        assert statuses(service, headers)[0] == {401}
    finally:
        valkey.send_signal(signal.SIGCONT)
    eventually(lambda: statuses(service, headers) and every_outage_is_over(service))
    eventually(lambda: statuses(service, headers)[0] == {401}, within_s=10)  # see tenants/liveness.py
    assert statuses(service, headers)[0] == {401}, "and Redis, back again, does not bring it back"


def every_outage_is_over(service: Service) -> bool:
    """Whether every web process that had lost Redis has it again."""
    said = [line for line in service.log_text().splitlines() if '"service":"web"' in line]
    lost, found = (sum(f'"{action}"' in line for line in said) for action in ("redis.outage", "redis.recovered"))
    assert lost
    return lost == found
