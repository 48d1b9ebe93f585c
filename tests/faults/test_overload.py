"""More requests than a process can answer: what is too much is refused at once, and what is accepted is as quick."""

import time
from collections.abc import Iterator
from functools import partial

import orjson
import pytest
import requests

from loadtests.blast import blast, request
from loadtests.open_loop import offer, percentile
from tests.conftest import reachable_folder
from tests.service import Service, plaudit_json, running_service

THREADS = 8
TENANTS = 4
EVENTS = 100
SECONDS = 4.0
MAX_GROWTH_BYTES = 150_000_000


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    env = {"PLAUDIT_WEB_PROCESSES": "1", "PLAUDIT_WEB_THREADS": str(THREADS)}
    with reachable_folder() as folder, running_service(folder / "data", env=env) as running:
        yield running


@pytest.fixture(scope="module")
def tokens(service: Service) -> list[str]:
    return [token_of(service, f"tenant-{number}") for number in range(TENANTS)]


def token_of(service: Service, tenant: str) -> str:
    plaudit_json("tenant", "create", tenant, "--name", tenant, data_dir=service.data_dir)
    made = plaudit_json("client", "create", tenant, "--scopes", "admin", data_dir=service.data_dir)
    auth = (made["client_id"], made["client_secret"])
    answer = service.post("/oauth/token", data={"grant_type": "client_credentials"}, auth=auth)
    token = str(answer.json()["access_token"])
    page = {"space": "s", "title": "t", "url": "/home"}
    headers = {"Authorization": f"Bearer {token}"}
    assert requests.put(f"{service.url}/api/v1/pages/home", json=page, headers=headers, timeout=10).ok
    return token


def batch(tokens: list[str], number: int) -> bytes:
    """Views without ids, so that a batch that is counted twice would show."""
    body = orjson.dumps({"events": [{"type": "view", "page": "home"}] * EVENTS})
    headers = {"Authorization": f"Bearer {tokens[number % len(tokens)]}", "Content-Type": "application/json"}
    return request("POST", "/api/v1/events", headers=headers, body=body)


def memory_of(service: Service) -> int:
    web = service.processes()["web"]
    return sum(each.memory_info().rss for each in [web, *web.children()])


def test_five_times_of_what_it_can_do_is_refused_at_once_and_the_rest_answered(
    service: Service, tokens: list[str]
) -> None:
    port = int(service.url.rpartition(":")[2])
    send = partial(batch, tokens)
    by_connection = blast(port, lambda _, connection, number: send(connection + number), connections=8, seconds=SECONDS)
    assert set(by_connection.statuses) == {202}, "fewer than it works on at once are never refused"
    before = memory_of(service)
    flood = offer(port, send, per_second=5 * by_connection.per_second, seconds=SECONDS)
    # A tenant may reach its share, too: with 429.
    assert {202, 503} <= set(flood.statuses) <= {202, 429, 503}, flood.statuses
    assert flood.statuses[503] > 10 * flood.statuses.get(429, 0), flood.statuses
    assert (flood.unanswered, flood.unsent) == (0, 0)
    assert memory_of(service) - before < MAX_GROWTH_BYTES
    # Generous, for a busy machine: without the door those accepted waited for seconds, and refusals for ten.
    assert len(flood.accepted) / SECONDS > by_connection.per_second / 4, "it works as much as before"
    assert percentile(flood.accepted, 0.5) < 20 * by_connection.p50_ms
    assert percentile(flood.refused, 0.5) < percentile(flood.accepted, 0.5), "nothing waits to be refused"
    time.sleep(1)
    headers = {"Authorization": f"Bearer {tokens[0]}"}
    calm = [requests.get(f"{service.url}/api/v1/pages/home", headers=headers, timeout=30) for _ in range(50)]
    assert {answer.status_code for answer in calm} == {200}, "and it recovers"
