"""More requests than a process can answer: what is too much is refused at once, and what is accepted is as quick."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import orjson
import pytest
import requests
from flask import Flask
from flask.testing import FlaskClient

from analytics.ingest.loop_writes import commit_on_loop
from analytics.ingest.writes import WriteRequest
from app.server import front
from loadtests.blast import blast, request
from loadtests.open_loop import offer, percentile
from tests.analytics.conftest import views_of
from tests.app.http.test_fast_reads import fill
from tests.app.server.served import VIEWS, become_known, over_http, served
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


def view(tokens: list[str], number: int) -> bytes:
    headers = {"Authorization": f"Bearer {tokens[number % len(tokens)]}"}
    return request("POST", "/api/v1/pages/home/views", headers=headers)


def kept_read(tokens: list[str], number: int) -> bytes:
    headers = {"Authorization": f"Bearer {tokens[number % len(tokens)]}"}
    return request("GET", "/api/v1/leaderboards?limit=10", headers=headers)


@pytest.mark.parametrize("load", [2, 5])
def test_batches_beyond_what_it_can_do_are_refused_at_once_and_the_rest_answered(
    service: Service, tokens: list[str], load: int
) -> None:
    port = int(service.url.rpartition(":")[2])
    send = partial(batch, tokens)
    by_connection = blast(port, lambda _, connection, number: send(connection + number), connections=8, seconds=SECONDS)
    assert set(by_connection.statuses) == {202}, "fewer than it works on at once are never refused"
    before = memory_of(service)
    flood = offer(port, send, per_second=load * by_connection.per_second, seconds=SECONDS)
    # A tenant may reach its share, too: with 429. Eight callers at a time do not reach what it can do, so twice of that
    # is not always too much.
    assert set(flood.statuses) <= {202, 429, 503}, flood.statuses
    assert (flood.unanswered, flood.unsent) == (0, 0)
    assert memory_of(service) - before < MAX_GROWTH_BYTES
    # Generous, for a busy machine: without the door those accepted waited for seconds, and refusals for ten.
    assert len(flood.accepted) / SECONDS > by_connection.per_second / 4, "it works as much as before"
    if load == 5:
        assert flood.statuses[503] > 10 * flood.statuses.get(429, 0), flood.statuses
        assert percentile(flood.accepted, 0.5) < 20 * by_connection.p50_ms
        assert percentile(flood.refused, 0.5) < percentile(flood.accepted, 0.5), "nothing waits to be refused"
    require_recovery(service, tokens)


@pytest.mark.parametrize("send", [view, kept_read])
def test_a_flood_of_calls_that_the_loop_answers_leaves_none_unanswered_and_needs_no_memory(
    service: Service, tokens: list[str], send: Callable[[list[str], int], bytes]
) -> None:
    port = int(service.url.rpartition(":")[2])
    make = partial(send, tokens)
    blast(port, lambda _, connection, number: make(connection + number), connections=8, seconds=1)
    before = memory_of(service)
    flood = blast(port, lambda _, connection, number: make(connection + number), connections=1_500, seconds=SECONDS)
    assert set(flood.statuses) <= {200, 202, 429, 503}, flood.statuses
    assert {200, 202} & set(flood.statuses)
    assert memory_of(service) - before < MAX_GROWTH_BYTES
    require_recovery(service, tokens)


def require_recovery(service: Service, tokens: list[str]) -> None:
    """Within a second, everything is answered."""
    time.sleep(1)
    headers = {"Authorization": f"Bearer {tokens[0]}"}
    paths = ("/api/v1/pages/home", "/api/v1/leaderboards?limit=10")
    calm = [requests.get(service.url + path, headers=headers, timeout=30) for path in paths for _ in range(50)]
    calm += [requests.post(f"{service.url}/api/v1/pages/home/views", headers=headers, timeout=30) for _ in range(50)]
    assert {answer.status_code for answer in calm} == {200, 202}


COMMIT_S = 0.2
TOGETHER = 4
# What a process can do whose commits are so slow and small, however busy the machine is.
CAPACITY = TOGETHER / COMMIT_S
# Of that, so that it keeps up even if the machine takes as long again for each commit.
CALM = 0.25


@pytest.fixture
def slow(app: Flask, client: FlaskClient, tenant: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, str]]:
    """A caller whom it knows, and the address of a server with that capacity."""

    async def commit(requests: Sequence[WriteRequest], connection: Any) -> list[WriteRequest]:
        await asyncio.sleep(COMMIT_S)
        return await commit_on_loop(requests, connection)

    monkeypatch.setattr(front, "MAX_EVENTS", TOGETHER)
    monkeypatch.setattr(front, "commit_on_loop", commit)
    admin = fill(client, tenant)
    with served(app) as url:
        become_known(over_http(admin, url), [])
        yield admin, url


def test_single_writes_beyond_what_it_can_commit_are_refused_while_those_that_were_let_in_are_soon_answered(
    slow: tuple[Any, str], tenant: str
) -> None:
    admin, url = slow
    port = int(url.rpartition(":")[2])

    def send(_number: int) -> bytes:
        return request("POST", VIEWS, headers={"Authorization": f"Bearer {admin.token}"})

    usual = offer(port, send, per_second=CALM * CAPACITY, seconds=SECONDS)
    assert set(usual.statuses) == {202}
    for load in (2, 5):
        before = views_of(tenant)
        flood = offer(port, send, per_second=load * CAPACITY, seconds=SECONDS)
        assert set(flood.statuses) == {202, 503}
        assert (flood.unanswered, flood.unsent) == (0, 0)
        assert views_of(tenant) - before == flood.statuses[202], "what was accepted is counted once, the rest never"
        assert len(flood.accepted) > 0.3 * CAPACITY * SECONDS, "it works as much as before"
        # Generous, for a busy machine. Two commits, where those let in without a door waited for dozens.
        assert percentile(flood.accepted, 0.5) < 8 * percentile(usual.accepted, 0.5)
        assert percentile(flood.refused, 0.5) < percentile(flood.accepted, 0.5), "nothing waits to be refused"
        after = offer(port, send, per_second=CALM * CAPACITY, seconds=2)
        assert set(after.statuses) == {202}, "it recovers at once"
