"""P3 and P4: boards come back, whatever happens to Redis and to workers, and nobody notices while they read."""

import contextlib
import itertools
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import requests
from redis import Redis

from analytics.boards.redis_store import is_complete
from app.run.data_folder import read_state
from tenants import redis
from tests.conftest import reachable_folder
from tests.service import Service, eventually, plaudit, running_service, wait_for_right_boards

PAGES = 30
BOARD = "/api/v1/leaderboards?scope=tenant&window=all&metric=views"


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    options = ("--demo", "--no-traffic", "--workers", "2")
    with reachable_folder() as folder, running_service(folder / "data", *options) as running:
        headers = headers_of(running)
        for number in range(PAGES):
            body = {"space": f"s{number % 3}", "title": "t", "url": f"/{number}"}
            requests.put(f"{running.url}/api/v1/pages/p{number}", json=body, headers=headers, timeout=10)
        send(running, {f"p{number}": number + 1 for number in range(PAGES)})
        yield running


def headers_of(service: Service) -> dict[str, str]:
    return {"Authorization": f"Bearer {service.token()}"}


def send(service: Service, views: dict[str, int]) -> None:
    events = [{"type": "view", "page": page} for page, count in views.items() for _ in range(count)]
    random.Random(1).shuffle(events)
    for start in range(0, len(events), 1000):
        answer = service.post(
            "/api/v1/events", json={"events": events[start : start + 1000]}, headers=headers_of(service)
        )
        assert answer.status_code == 202


def redis_of(service: Service) -> "Redis":
    state = read_state(service.data_dir)
    assert state is not None
    return Redis.from_url(state["addresses"]["redis_url"])


def read(service: Service, headers: dict[str, str], *, limit: int = 100) -> dict[str, Any]:
    answer = requests.get(f"{service.url}{BOARD}&limit={limit}", headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def rebuilt(service: Service) -> float:
    lines = service.get("/metrics").text.splitlines()
    return sum(
        float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith('plaudit_boards_rebuilt_total{tenant="demo"')
    )


def test_emptying_redis_under_two_hundred_readers(service: Service) -> None:
    wait_for_right_boards(service)
    redis_of(service).delete("lbr:demo")  # so that boards are filled that had no rows until now
    eventually(lambda: is_complete(redis_of(service).get("lbr:demo")))
    headers = headers_of(service)
    expected = [(row["rank"], row["page"]["external_id"], row["value"]) for row in read(service, headers)["items"]]
    before = rebuilt(service)
    stop, emptied = threading.Event(), threading.Event()
    sources: Counter[str] = Counter()

    def keep_reading(_: int) -> None:
        with requests.Session() as session:
            while not stop.is_set():
                answer = session.get(f"{service.url}{BOARD}&limit=100", headers=headers, timeout=20)
                assert answer.status_code == 200, answer.text
                body = answer.json()
                rows = [(row["rank"], row["page"]["external_id"], row["value"]) for row in body["items"]]
                assert rows == expected, "right throughout, wherever it was read"
                sources[body["source"]] += 1
                stop.wait(0 if emptied.is_set() else 0.5)  # all at once when Redis is empty, and seldom before

    with ThreadPoolExecutor(200) as pool:
        readers = [pool.submit(keep_reading, number) for number in range(200)]
        try:
            eventually(lambda: sources["redis"] >= 200)
            emptied.set()
            redis_of(service).flushall()
            before_it_was_filled = sources["redis"]
            eventually(lambda: read(service, headers)["source"] == "redis")
            emptied.clear()
            eventually(lambda: sources["redis"] >= before_it_was_filled + 200)
        finally:
            stop.set()
        for reader in readers:
            reader.result()
    eventually(lambda: read(service, headers)["source"] == "redis")
    wait_for_right_boards(service)
    boards = len(list(redis_of(service).scan_iter("lbv:{lb:demo:*")))
    rebuilds = "\n".join(line for line in service.log_text().splitlines() if "boards rebuilt" in line)
    assert 0 < rebuilt(service) - before <= boards, f"each board once: {rebuilds}"


def test_a_worker_killed_again_and_again_while_it_projects(service: Service) -> None:
    rng = random.Random(7)
    stop = threading.Event()

    def keep_killing() -> None:
        while not stop.is_set():
            time.sleep(rng.uniform(0.05, 0.4))
            for name, process in service.processes().items():
                if name.startswith("worker"):
                    with contextlib.suppress(Exception):
                        process.send_signal(signal.SIGKILL)

    killer = threading.Thread(target=keep_killing)
    killer.start()
    try:
        for _ in range(10):
            send(service, {f"p{rng.randrange(PAGES)}": rng.randrange(1, 20) for _ in range(10)})
            time.sleep(0.2)
    finally:
        stop.set()
        killer.join()
    wait_for_right_boards(service, within_s=30)


def test_a_redis_that_hangs_fails_no_read_and_boards_are_right_soon_after(service: Service) -> None:
    headers = headers_of(service)
    eventually(lambda: read(service, headers)["source"] == "redis")
    limits = itertools.count(PAGES)

    def typical_s(sources: set[str]) -> float:
        """Read the board twenty times; the median of the times. Each with another limit, so that none is cached."""
        times: list[float] = []
        for limit in itertools.islice(limits, 20):
            began = time.monotonic()
            assert read(service, headers, limit=limit)["source"] in sources
            times.append(time.monotonic() - began)
        return median(times)

    with_redis_s = typical_s({"redis"})
    valkey = service.processes()["valkey"]
    valkey.suspend()
    try:
        send(service, {"p0": 1000})
        # Some reads probe Redis, the others do not wait for it.
        assert typical_s({"snapshot", "postgres"}) < 5 * with_redis_s + redis.TIMEOUT_S / 2
    finally:
        valkey.resume()
    eventually(lambda: [row["page"]["external_id"] for row in read(service, headers)["items"][:1]] == ["p0"])
    wait_for_right_boards(service)


def newer(board: dict[str, Any], version: int) -> dict[str, Any] | None:
    """The board, if it was read from Redis at a later version."""
    return board if board["source"] == "redis" and board["version"] > version else None


def read_later(service: Service, headers: dict[str, str]) -> dict[str, Any]:
    """The board of a space that was made after the backup."""
    path = "/api/v1/leaderboards?scope=space:later&window=all&metric=views"
    board: dict[str, Any] = service.get(path, headers=headers).json()
    return board


def test_a_restore_under_a_running_service_takes_the_boards_along(service: Service, tmp_path: Path) -> None:
    headers = headers_of(service)
    wait_for_right_boards(service)
    before = read(service, headers)
    file = tmp_path / "before.backup"
    assert plaudit("backup", str(file), data_dir=service.data_dir).returncode == 0
    body = {"space": "later", "title": "t", "url": "/later"}
    requests.put(f"{service.url}/api/v1/pages/later", json=body, headers=headers, timeout=10)
    send(service, {"later": 500, "p1": 1500})
    eventually(lambda: read(service, headers)["items"][0]["page"]["external_id"] != "p0")
    after = read(service, headers)
    restored = plaudit("restore", str(file), "--yes", data_dir=service.data_dir)
    assert restored.returncode == 0, restored.stderr
    assert requests.post(f"{service.url}/api/v1/pages/p2/views", headers=headers, timeout=10).status_code == 202
    # A process may answer from its cache for a second. A version that was published before is never published again.
    now = eventually(lambda: newer(read(service, headers), after["version"]))
    members = {row["page"]["external_id"]: row["value"] for row in now["items"]}
    then = {row["page"]["external_id"]: row["value"] for row in before["items"]}
    assert {**members, "p2": 0} == {**then, "p2": 0}
    eventually(lambda: read_later(service, headers)["total"] == 0)  # by the restore, or by a worker's next sweep
    wait_for_right_boards(service)
