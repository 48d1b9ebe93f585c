"""One tenant's flood, or its locked row, is its own trouble: a neighbour is neither refused nor kept waiting (P8).

Nor is a colleague: another caller of the same tenant, while one caller floods.
"""

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from random import choice, randrange
from statistics import median
from typing import Any, Self
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pytest
import requests

from app.run.data_folder import read_state
from tenants.db import LOCK_TIMEOUT_MS, SHARED_LOCK_TIMEOUT_MS
from tenants.shares import ALONE_AFTER_S, WAIT_ALONE_S
from tests.conftest import reachable_folder
from tests.service import Service, blocked_connections, eventually, plaudit_json, running_service

FLOOD = 44
# Half of the default: so a flood that fills both processes takes half as many senders, and half of the CPU time.
THREADS = 16
# More than both processes together let wait.
ENDLESS = 140
# What keeps a sender whose request was refused from spending the processors on refusals alone.
PAUSE_AFTER_REFUSAL_S = 0.1


@dataclass
class Tenant:
    """A tenant app, with a connection for each of its threads."""

    url: str
    token: str

    def __post_init__(self) -> None:
        self._own = threading.local()

    def __call__(self, method: str, path: str, **options: Any) -> requests.Response:
        if not hasattr(self._own, "session"):
            self._own.session = requests.Session()
            self._own.session.headers["Authorization"] = f"Bearer {self.token}"
        answer: requests.Response = self._own.session.request(method, self.url + path, timeout=60, **options)
        return answer

    def make_page(self, name: str) -> None:
        assert self("PUT", f"/api/v1/pages/{name}", json={"space": "s", "title": name, "url": f"/{name}"}).ok


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    env = {"PLAUDIT_WEB_THREADS": str(THREADS)}
    with reachable_folder() as folder, running_service(folder / "data", "--demo", "--no-traffic", env=env) as running:
        yield running


@pytest.fixture(scope="module")
def noisy(service: Service) -> Tenant:
    tenant = Tenant(service.url, service.token())
    assert tenant("PUT", "/api/v1/actions/catalog/post", json={"points": 1}).ok
    limits = {"limits": {"score_updates_per_minute": 10_000}, "integrity": {"points_per_hour": 10**9}}
    assert tenant("PATCH", "/api/v1/settings", json=limits).ok
    tenant.make_page("home")
    return tenant


@pytest.fixture(scope="module")
def quiet(service: Service) -> Tenant:
    plaudit_json("tenant", "create", "quiet", "--name", "Quiet", data_dir=service.data_dir)
    made = plaudit_json("client", "create", "quiet", "--scopes", "admin", data_dir=service.data_dir)
    auth = (made["client_id"], made["client_secret"])
    answer = service.post("/oauth/token", data={"grant_type": "client_credentials"}, auth=auth)
    tenant = Tenant(service.url, answer.json()["access_token"])
    tenant.make_page("home")
    return tenant


@pytest.fixture(scope="module")
def colleague(service: Service, noisy: Tenant) -> Tenant:
    """Another caller of the noisy tenant."""
    made = plaudit_json("client", "create", "demo", "--scopes", "admin", data_dir=service.data_dir)
    auth = (made["client_id"], made["client_secret"])
    answer = service.post("/oauth/token", data={"grant_type": "client_credentials"}, auth=auth)
    return Tenant(service.url, answer.json()["access_token"])


@pytest.fixture(scope="module")
def member(service: Service, noisy: Tenant) -> Tenant:
    """A user of the noisy tenant."""
    login = {name: service.ready[f"admin_{name}"] for name in ("username", "password")}
    answer = service.post("/api/v1/auth/login", json={"tenant": "demo", **login})
    return Tenant(service.url, answer.json()["access_token"])


class Flood:
    """A request sent by many threads, again and again, until `stop`; and what was answered by now."""

    def __init__(self, send: Callable[[], requests.Response], *, threads: int) -> None:
        self._send = send
        self._answers: list[str] = []
        self._enough = threading.Event()
        self._pool = ThreadPoolExecutor(threads)
        self._senders = [self._pool.submit(self._keep_sending) for _ in range(threads)]

    @property
    def answers(self) -> "Counter[str]":
        return Counter(list(self._answers))

    def refused(self) -> int:
        return self.answers["429 tenant_busy"]

    def has_refused(self, count: int) -> bool:
        return self.refused() >= count

    def stop(self) -> None:
        self._enough.set()

    def _keep_sending(self) -> None:
        while not self._enough.is_set():
            answer = self._send()
            self._answers.append(f"{answer.status_code} {answer.json().get('code', '')}".strip())
            if not answer.ok:
                self._enough.wait(PAUSE_AFTER_REFUSAL_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()
        with self._pool:
            for sender in self._senders:
                sender.result(60)


def ask_everything(tenant: Tenant, number: int) -> Iterator[requests.Response]:
    yield tenant("POST", "/api/v1/pages/home/views", json={"id": str(uuid4())})
    yield tenant("GET", "/api/v1/pages/home")
    yield tenant("GET", "/api/v1/pages/home/stats")
    yield tenant("GET", f"/api/v1/leaderboards?limit={number % 900 + 1}")
    yield tenant("PUT", f"/api/v1/pages/home/likes/u{number}")


def test_a_flood_of_action_batches_is_refused_to_its_sender_and_unnoticed_by_others(
    noisy: Tenant, quiet: Tenant
) -> None:
    def batch() -> requests.Response:
        actions = [{"type": "action", "user": f"u{n}", "action_type": "post"} for n in range(150)]
        return noisy("POST", "/api/v1/events", json={"events": actions})

    with Flood(batch, threads=FLOOD) as flood:
        eventually(flood.refused)
        answers = [answer for number in range(8) for answer in ask_everything(quiet, number)]
    sent = flood.answers
    assert {answer.status_code for answer in answers} <= {200, 202}
    assert sent["202"]
    assert sent["429 tenant_busy"], sent
    refusals = {"429 tenant_busy", "503 overloaded", "503 database_unavailable"}
    assert set(sent) <= {"202"} | refusals, "its batches wait for each other"


def database_url(service: Service) -> str:
    state = read_state(service.data_dir)
    assert state is not None
    return str(state["addresses"]["database_url"])


@contextmanager
def locked_page(service: Service) -> Iterator[Callable[[], None]]:
    """Nobody can count anything for the noisy tenant's pages, until the end of the block or a call of what it gets."""
    with psycopg.connect(database_url(service)) as locking:
        locking.execute("SELECT FROM page_counters WHERE tenant_id = 'demo' FOR UPDATE")
        yield locking.rollback
        locking.rollback()


def seconds_of(ask: Callable[[], requests.Response]) -> float:
    began = time.monotonic()
    assert ask().ok
    return time.monotonic() - began


def test_a_neighbour_who_comes_seldom_finds_a_thread(service: Service, noisy: Tenant, quiet: Tenant) -> None:
    """The noisy tenant has been alone for a while, and keeps as many requests waiting as it can."""

    def read_page() -> requests.Response:
        return quiet("GET", "/api/v1/pages/home")

    def flood_of_batches() -> Flood:
        """Of requests that a thread answers, and that wait there."""
        events = [{"type": "like", "page": "home", "user": "ada"}]
        return Flood(lambda: noisy("POST", "/api/v1/events", json={"events": events}), threads=ENDLESS)

    with flood_of_batches() as flood:
        eventually(lambda: flood.answers.total() > 100)
        unlocked = [seconds_of(read_page) for _ in range(3)]
    locked = []
    with locked_page(service) as unlock, flood_of_batches() as flood:
        for _ in range(3):
            eventually(partial(flood.has_refused, flood.refused() + 50))
            locked.append(seconds_of(read_page))
        flood.stop()
        unlock()
    # Without a free thread it would wait for one of the requests that wait for their turn.
    assert median(locked) < 3 * median(unlocked) + WAIT_ALONE_S / 2, (locked, unlocked)


def test_single_writes_that_wait_for_a_locked_row_take_no_thread_from_a_neighbour(
    service: Service, noisy: Tenant, quiet: Tenant
) -> None:
    def flood_of_likes() -> Flood:
        return Flood(lambda: noisy("PUT", f"/api/v1/pages/home/likes/{uuid4()}"), threads=ENDLESS)

    def read_pages() -> list[float]:
        return [seconds_of(lambda: quiet("GET", "/api/v1/pages/home")) for _ in range(9)]

    with flood_of_likes() as flood:
        eventually(lambda: flood.answers.total() > 100)
        unlocked = read_pages()
    with locked_page(service) as unlock, flood_of_likes() as flood:
        time.sleep(0.5)  # by then every one of them waits for the row
        locked = read_pages()
        flood.stop()
        unlock()
    assert median(locked) < 3 * median(unlocked) + 0.2, (locked, unlocked)


def test_forty_eight_short_requests_at_once_are_never_refused(noisy: Tenant) -> None:
    def ask(number: int) -> set[int]:
        return {answer.status_code for answer in ask_everything(noisy, number)}

    time.sleep(ALONE_AFTER_S + 0.1)  # the other tenant's last request must be this old
    with ThreadPoolExecutor(48) as pool:
        assert set.union(*pool.map(ask, range(96))) <= {200, 202}


def test_a_locked_row_stops_no_other_tenants_ingest(service: Service, noisy: Tenant, quiet: Tenant) -> None:
    shared_lock_timeout_s = SHARED_LOCK_TIMEOUT_MS / 1000

    def flood_of_likes() -> Flood:
        return Flood(lambda: noisy("PUT", "/api/v1/pages/home/likes/ada"), threads=FLOOD)

    def thirty_views() -> list[float]:
        return sorted(seconds_of(lambda: quiet("POST", "/api/v1/pages/home/views", json={})) for _ in range(30))

    with flood_of_likes() as flood:
        eventually(lambda: flood.answers.total() > FLOOD)
        unlocked = thirty_views()
    with locked_page(service) as unlock, flood_of_likes() as flood:
        # In each of the two processes the noisy tenant writes apart, and not in the transaction that tenants share.
        eventually(lambda: blocked_connections(database_url(service), for_s=2 * shared_lock_timeout_s) == 2)
        locked = thirty_views()
        flood.stop()
        unlock()
    sent = flood.answers
    assert locked[26] < 3 * unlocked[26] + shared_lock_timeout_s, "nine of ten do not wait for the lock"
    assert locked[-1] < 3 * unlocked[-1] + LOCK_TIMEOUT_MS / 1000, "and nobody as long as the lock's own timeout"
    assert set(sent) <= {"200", "429 tenant_busy", "503 database_unavailable", "503 overloaded"}
    eventually(lambda: noisy("PUT", "/api/v1/pages/home/likes/ada").status_code == 200)


def long_batch(tenant: Tenant) -> requests.Response:
    """A body that is not received before its sender is known."""
    events = [{"type": "view", "page": "home", "id": f"{uuid4()}{'x' * 50}"} for _ in range(700)]
    return tenant("POST", "/api/v1/events", json={"events": events})


def refused_update(member: Tenant) -> requests.Response:
    """A score update that nothing is paid for."""
    body = {"actionId": str(uuid4()), "actionType": "unknown", "timestamp": datetime.now(UTC).isoformat()}
    return member("POST", "/api/v1/scores/update", json=body)


def uncached_board(member: Tenant) -> requests.Response:
    window, metric = choice(["1d", "7d", "30d", "all"]), choice(["views", "likes", "score"])
    return member(
        "GET", f"/api/v1/leaderboards?scope=tenant&window={window}&metric={metric}&limit={randrange(1, 1000)}"
    )


def refusal_in(answer: requests.Response) -> str:
    return f"{answer.request.method} {answer.request.path_url} {answer.status_code} {answer.json()}"


@pytest.mark.parametrize("send", [refused_update, uncached_board])
def test_one_members_flood_is_unnoticed_by_a_colleague_and_a_neighbour(
    member: Tenant, colleague: Tenant, quiet: Tenant, send: Callable[[Tenant], requests.Response]
) -> None:
    with Flood(partial(send, member), threads=200) as flood:
        eventually(lambda: flood.answers.total() > 400)
        answers = [
            answer
            for number in range(10)
            for caller in (colleague, quiet)
            for answer in (*ask_everything(caller, number), long_batch(caller))
        ]
        flood.stop()
    assert [refusal_in(answer) for answer in answers if not answer.ok] == []


def test_one_members_slow_bodies_are_unnoticed_by_a_colleague_and_a_neighbour(
    service: Service, member: Tenant, colleague: Tenant, quiet: Tenant
) -> None:
    address = urlsplit(service.url)
    head = f"POST /api/v1/scores/update HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
    head += f"Authorization: Bearer {member.token}\r\nContent-Length: 900000\r\n\r\n"
    with ExitStack() as open_ones:
        for _ in range(120):
            sender = open_ones.enter_context(socket.create_connection((address.hostname, address.port), timeout=60))
            sender.sendall(head.encode() + b"x")
        answers = [long_batch(caller) for _ in range(30) for caller in (colleague, quiet)]
        assert Counter(answer.status_code for answer in answers) == {202: 60}
