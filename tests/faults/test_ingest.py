"""P1, P2 and P3 for views and likes, with processes that die and servers that go away."""

import random
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median
from typing import Any

import psycopg
import pytest
import requests

from app.run.data_folder import read_state
from tenants import redis
from tests.committed_views import COMMITTED_VIEWS
from tests.conftest import reachable_folder
from tests.service import Service, eventually, running_service


@pytest.fixture(scope="module")
def whole_service() -> Iterator[Service]:
    with reachable_folder() as folder, running_service(folder / "data", "--demo", "--no-traffic") as running:
        headers = {"Authorization": f"Bearer {running.token()}"}
        for number in range(10):
            body = {"space": "s", "title": "t", "url": f"https://w.example/{number}"}
            put = requests.put(f"{running.url}/api/v1/pages/p{number}", json=body, headers=headers, timeout=10)
            assert put.status_code == 201
        yield running


@pytest.fixture
def service(whole_service: Service) -> Service:
    """What the test before took away is back."""
    eventually(lambda: whole_service.get("/health/ready").json()["status"] == "ok")
    eventually(lambda: {"valkey", "postgres", "web"} <= set(whole_service.processes()))
    return whole_service


def counted(service: Service) -> tuple[int, int, int]:
    """The views of the ten pages, how many likes they have, and how many their counters say."""
    state = read_state(service.data_dir)
    assert state is not None
    with psycopg.connect(state["addresses"]["database_url"]) as connection:
        found = connection.execute(
            "WITH ours AS (SELECT id FROM pages WHERE external_id LIKE 'p_')"
            f" SELECT (SELECT coalesce(sum(v.views), 0) FROM {COMMITTED_VIEWS} v JOIN ours ON ours.id = v.page_id),"
            " (SELECT count(l.liked_at) FROM page_likes l JOIN ours ON ours.id = l.page_id),"
            " (SELECT sum(c.likes) FROM page_counters c JOIN ours ON ours.id = c.page_id)"
        ).fetchone()
    assert found is not None
    return int(found[0]), int(found[1]), int(found[2])


def insist(method: str, url: str, **options: Any) -> int:
    """Send until it is acknowledged; returns how often it was sent."""
    tries = 0
    while True:
        tries += 1
        try:
            if requests.request(method, url, timeout=5, **options).ok:
                return tries
        except requests.RequestException:
            pass
        time.sleep(0.05)


def replaced(service: Service, killed_pid: int) -> bool:
    """Whether another web process has taken the killed one's place."""
    web = service.processes().get("web")
    return web is not None and web.pid != killed_pid


def test_a_thousand_views_and_likes_through_three_kills_are_a_thousand(service: Service) -> None:
    """32 connections, the web process killed three times, clients that retry: views with the same id, and likes.

    Every third like is taken back.
    """
    rng = random.Random(20261116)
    headers = {"Authorization": f"Bearer {service.token()}"}
    before = counted(service)
    done = threading.Semaphore(0)
    progress = [0]

    def send(number: int) -> int:
        page = f"{service.url}/api/v1/pages/p{rng.randrange(10)}"
        if number % 2:
            tries = insist("POST", f"{page}/views", json={"id": f"v{number}"}, headers=headers)
        else:
            tries = insist("PUT", f"{page}/likes/u{number}", headers=headers)
            tries += insist("DELETE", f"{page}/likes/u{number}", headers=headers) if number % 3 == 0 else 0
        progress[0] += 1
        done.release()
        return tries

    def kill_thrice() -> None:
        for threshold in (150, 400, 700):
            while progress[0] < threshold:
                done.acquire(timeout=60)
            web = service.processes()["web"]
            for process in [*web.children(recursive=True), web]:
                process.send_signal(signal.SIGKILL)
            eventually(partial(replaced, service, web.pid))

    killer = threading.Thread(target=kill_thrice)
    killer.start()
    with ThreadPoolExecutor(32) as pool:
        tries = list(pool.map(send, range(1000)))
    killer.join()
    unlikes = len(range(0, 1000, 6))
    assert sum(tries) > 1000 + unlikes, "something was cut off and sent again"
    views, likes, counters = (now - then for now, then in zip(counted(service), before, strict=True))
    assert (views, likes, counters) == (500, 500 - unlikes, 500 - unlikes)


def test_without_postgres_it_says_so_quickly_and_comes_back_quickly(service: Service) -> None:
    headers = {"Authorization": f"Bearer {service.token()}"}

    def view() -> requests.Response:
        return requests.post(f"{service.url}/api/v1/pages/p1/views", headers=headers, timeout=10)

    assert view().status_code == 202
    postgres = service.processes()["postgres"]
    # Its replacement must not come at once: keep the supervisor busy restarting a server that cannot start.
    supervisor = service.process
    supervisor.send_signal(signal.SIGSTOP)
    try:
        postgres.send_signal(signal.SIGINT)
        eventually(lambda: not postgres.is_running() or postgres.status() == "zombie")
        began = time.monotonic()
        for _ in range(20):
            answer = view()
            assert answer.status_code == 503
            assert answer.headers["Content-Type"] == "application/problem+json"
            assert answer.json()["code"] == "database_unavailable"
            assert "Retry-After" in answer.headers
        # Some 10 ms each; one that waited for the database would take longer than the 2 s that are promised.
        assert time.monotonic() - began < 20 * 2
    finally:
        supervisor.send_signal(signal.SIGCONT)
    eventually(lambda: service.get("/health/ready").status_code == 200, within_s=30)
    eventually(lambda: view().status_code == 202, within_s=10)


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
def test_without_redis_everything_is_still_answered(service: Service, how: signal.Signals) -> None:
    headers = {"Authorization": f"Bearer {service.token()}"}
    admin = {"tenant": "demo", "username": service.ready["admin_username"], "password": service.ready["admin_password"]}
    user = {"Authorization": f"Bearer {service.post('/api/v1/auth/login', json=admin).json()['access_token']}"}
    key = service.post("/api/v1/keys", json={"origins": ["https://w.example"]}, headers=headers).json()["key"]
    browser = {"Origin": "https://w.example", "User-Agent": "Mozilla/5.0 Firefox/130.0", "Content-Type": "text/plain"}
    page = {"space": "s", "title": "t", "url": "/new"}
    calls = [
        ("POST", "/api/v1/pages/p1/views", headers, None),
        ("POST", "/api/v1/events", headers, {"events": [{"type": "view", "page": "p2"}]}),
        ("PUT", "/api/v1/pages/p3/likes/u-1", headers, None),
        ("DELETE", "/api/v1/pages/p3/likes/u-1", headers, None),
        ("PUT", "/api/v1/pages/p4/like", user, None),
        ("PUT", "/api/v1/pages/new", headers, page),
        ("GET", "/api/v1/pages/new", headers, None),
        ("GET", "/api/v1/pages?space=s", headers, None),
        ("POST", f"/api/v1/beacon?key={key}", browser, {"page": "p5"}),
        ("DELETE", "/api/v1/pages/new", headers, None),
    ]

    def typical_s() -> float:
        """Make every call four times; the median of their times."""
        times: list[float] = []
        for method, path, who, body in calls * 4:
            began = time.monotonic()
            answer = requests.request(method, service.url + path, headers=who, json=body, timeout=10)
            times.append(time.monotonic() - began)
            assert answer.status_code < 300, (method, path, answer.text)
        return median(times)

    with_redis_s = typical_s()
    valkey = service.processes()["valkey"]
    if how is signal.SIGKILL:
        service.process.send_signal(signal.SIGSTOP)  # so that it is not started again at once
    valkey.send_signal(how)
    try:
        # Some requests probe Redis, the others do not wait for it.
        assert typical_s() < 3 * with_redis_s + redis.TIMEOUT_S / 2
    finally:
        valkey.send_signal(signal.SIGCONT) if how is signal.SIGSTOP else None
        service.process.send_signal(signal.SIGCONT)
