"""P2 and P6 under kills: whatever dies, every user's ledger adds up to their score and to their place on the board."""

import contextlib
import os
import random
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import Any

import psutil
import psycopg
import pytest
import requests

from app.run.data_folder import read_state
from tests.conftest import reachable_folder
from tests.service import Service, eventually, running_service, wait_for_right_boards

# The promise is about ten thousand; a few thousand find the same mistakes in a third of the time.
USERS, ACTIONS, THREADS = 100, int(os.environ.get("PLAUDIT_TEST_ACTIONS", "1200")), 16


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    options = ("--demo", "--no-traffic", "--workers", "2")
    with reachable_folder() as folder, running_service(folder / "data", *options) as running:
        headers = {"Authorization": f"Bearer {running.token()}"}
        for name, points in {"small": 1, "large": 37}.items():
            put = requests.put(
                f"{running.url}/api/v1/actions/catalog/{name}", json={"points": points}, headers=headers, timeout=10
            )
            assert put.status_code == 200
        settings = {
            "limits": {"score_updates_per_minute": 10_000, "score_spike_per_minute": 100_000_000},
            "integrity": {"points_per_hour": 10**9},
        }
        assert requests.patch(f"{running.url}/api/v1/settings", json=settings, headers=headers, timeout=10).ok
        yield running


# What is killed, one after the other, while the actions are sent.
VICTIMS = ["one web process", "worker", "one web process", "all of web", "worker", "one web process"]


def kill(service: Service, victim: str) -> None:
    kind = "worker" if victim == "worker" else "web"

    def running() -> list[psutil.Process]:
        found = [process for name, process in service.processes().items() if name.startswith(kind)]
        return [*found[0].children(recursive=True)[:1]] if found and victim == "one web process" else found

    for process in eventually(running):
        children = process.children(recursive=True)
        for one in [*children, process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()


def has(answered: list[int], enough: int) -> bool:
    return len(answered) >= enough


def test_thousands_of_actions_through_kills_add_up(service: Service) -> None:
    """By 100 users and 16 threads; clients retry with the same ids until they are answered."""
    rng = random.Random(6)
    token = service.token()
    url = f"{service.url}/api/v1/events"
    batches: list[list[dict[str, Any]]] = [[] for _ in range(ACTIONS // 10)]
    paid: dict[str, int] = {}
    for number in range(ACTIONS):
        user, kind = f"u{rng.randrange(USERS)}", rng.choice(["small", "large"])
        paid[user] = paid.get(user, 0) + {"small": 1, "large": 37}[kind]
        batches[number % len(batches)].append({"type": "action", "user": user, "action_type": kind, "id": f"a{number}"})
    tries: list[str] = []
    answered: list[int] = []

    def send(batch: list[dict[str, Any]]) -> None:
        while True:
            tries.append(batch[0]["id"])
            with contextlib.suppress(requests.RequestException):
                answer = requests.post(
                    url, json={"events": batch}, headers={"Authorization": f"Bearer {token}"}, timeout=10
                )
                if answer.status_code == 202:
                    body = answer.json()
                    assert body["rejected"] == []
                    assert body["accepted"] + body["duplicates"] == len(batch)
                    answered.append(len(batch))
                    return
            time.sleep(0.1)

    with ThreadPoolExecutor(THREADS) as pool:
        sending = [pool.submit(send, batch) for batch in batches]
        for number, victim in enumerate(VICTIMS, start=1):
            enough = number * len(batches) // (len(VICTIMS) + 1)
            eventually(partial(has, answered, enough))
            kill(service, victim)
        for one in sending:
            one.result()
    assert len(tries) > len(batches), "something was cut off and sent again"
    state = read_state(service.data_dir)
    assert state is not None
    with psycopg.connect(state["addresses"]["database_url"]) as connection:
        rows = connection.execute(
            "SELECT u.external_id, u.current_score, (SELECT sum(delta) FROM score_ledger l WHERE l.user_id = u.id)"
            " FROM users u WHERE u.tenant_id = 'demo' AND u.external_id LIKE 'u%'"
        ).fetchall()
    assert {name: int(total) for name, _, total in rows} == paid
    assert {name: score for name, score, _ in rows} == paid
    wait_for_right_boards(service)
    headers = {"Authorization": f"Bearer {service.token()}"}
    board = service.get("/api/v1/leaderboards?scope=users&window=all&limit=1000", headers=headers).json()
    assert board["source"] == "redis"
    assert {row["user"]["external_id"]: row["value"] for row in board["items"]} == paid


def token_of_new_user(service: Service, username: str) -> str:
    login = {"tenant": "demo", "username": username, "password": "correct horse battery"}
    made = service.post("/api/v1/auth/register", json={**login, "email": f"{username}@example.org"})
    assert made.status_code == 201, made.text
    return str(service.post("/api/v1/auth/login", json=login).json()["access_token"])


def test_the_limit_is_one_for_all_processes(service: Service) -> None:
    headers = {"Authorization": f"Bearer {service.token()}"}
    limits = {"limits": {"score_updates_per_minute": 10}}
    assert requests.patch(f"{service.url}/api/v1/settings", json=limits, headers=headers, timeout=10).ok
    first, second = (token_of_new_user(service, name) for name in ("limited_one", "limited_two"))

    def act(number: int, token: str = second) -> int:
        body = {
            "actionId": str(uuid.uuid4()),
            "actionType": "small",
            "timestamp": datetime.now(UTC).isoformat(),
        }
        forwarded = {"Authorization": f"Bearer {token}", "X-Forwarded-For": f"10.1.1.{number}"}
        return requests.post(
            f"{service.url}/api/v1/scores/update", json=body, headers=forwarded, timeout=10
        ).status_code

    # Each process reads its settings every few seconds: one that has not would still accept some of so many.
    eventually(lambda: {act(number, first) for number in range(24)} == {429})
    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(act, range(25)))
    assert sorted(statuses) == [200] * 10 + [429] * 15
