"""A board's version never goes back, for a connection or a reader over HTTP, whatever happens to Redis under load."""

import contextlib
import itertools
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Self

import psutil
import psycopg
import pytest
import requests
from redis import Redis
from rq import Queue
from rq.serializers import JSONSerializer

from app.http.answer_cache import MAX_AGE_S
from app.run.data_folder import read_state
from loadtests.watchers import Watcher, Watchers
from tenants.queue import QUEUE
from tests.conftest import reachable_folder
from tests.service import Service, eventually, running_service, wait_for_right_boards

PAGES = 12
WRITERS = 3
BOARDS = {metric: f"/api/v1/leaderboards?scope=tenant&window=7d&metric={metric}" for metric in ("views", "likes")}
RANK = "/api/v1/leaderboards/rank?scope=tenant&window=7d&metric=views&member=p0&around=2"


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """Its boards have snapshots of some time ago, as every board has."""
    with reachable_folder() as folder, running_service(folder / "data", "--demo", "--no-traffic") as running:
        headers = headers_of(running)
        pages = [
            {"external_id": f"p{number}", "space": "s", "title": "t", "url": f"/{number}"} for number in range(PAGES)
        ]
        assert running.post("/api/v1/pages", json={"pages": pages}, headers=headers).status_code == 200
        events = [{"type": kind, "page": "p0", "user": "ann"} for kind in ("view", "like")]
        assert running.post("/api/v1/events", json={"events": events}, headers=headers).status_code == 202
        for path in BOARDS.values():
            eventually(lambda path=path: running.get(path, headers=headers).json()["total"] == 1)  # type: ignore[misc]
        client = Redis.from_url(addresses(running)["redis_url"])
        Queue(QUEUE, connection=client, serializer=JSONSerializer).enqueue("workers.jobs.refresh_snapshots")
        eventually(lambda: snapshots_of(running) >= len(BOARDS))
        yield running


def headers_of(service: Service) -> dict[str, str]:
    return {"Authorization": f"Bearer {service.token()}"}


def addresses(service: Service) -> dict[str, str]:
    state = read_state(service.data_dir)
    assert state is not None
    found: dict[str, str] = state["addresses"]
    return found


def snapshots_of(service: Service) -> int:
    with psycopg.connect(addresses(service)["database_url"]) as owner:
        counted = owner.execute(
            "SELECT count(*) FROM leaderboard_snapshots WHERE tenant_id = 'demo' AND scope = 'tenant'"
            " AND time_window = '7d' AND metric IN ('views', 'likes') AND total > 0"
        ).fetchone()
    return int(counted[0]) if counted is not None else 0


class Load:
    """Writers, and readers of every kind, each of which records the versions that it was given in their order."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.headers = headers_of(service)
        self.seen: dict[str, list[int]] = {}
        self.read_from: set[str] = set()
        self.statuses: set[int] = set()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._watchers = Watchers()
        self._stream = requests.Session()

    def __enter__(self) -> Self:
        self._watchers.__enter__()
        port = int(self.service.ready["live_url"].rsplit(":", 1)[1])
        for top in ({}, {"top": 10}):
            watcher = Watcher(port, f"/ws/leaderboards?ticket={self._ticket()}")
            for metric in BOARDS:
                watcher.send({"op": "subscribe", "scope": "tenant", "window": "7d", "metric": metric, **top})
            self._watchers.add(watcher)
        topics = "&".join(f"topic=tenant:7d:{metric}" for metric in BOARDS)
        path = f"/api/v1/live/events?{topics}&top=10&ticket={self._ticket()}"
        answer = self._stream.get(f"http://127.0.0.1:{port}{path}", stream=True, timeout=30)
        assert answer.status_code == 200
        self._start(lambda: self._follow_stream(answer))
        for number in range(WRITERS):
            self._start(partial(self._write, number))
        for name, path in [*BOARDS.items(), ("rank", RANK)]:
            self._start(partial(self._read, f"{name}, plain", path, conditional=False))
            self._start(partial(self._read, f"{name}, with its ETag", path, conditional=True))
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._stream.close()
        self._watchers.__exit__()
        for number, watcher in enumerate(self._watchers.all):
            for message in watcher.messages():
                if "version" in message:
                    self._record(f"socket {number}, {message['topic']}", int(str(message["version"])))

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _ticket(self) -> str:
        return str(self.service.post("/api/v1/live/tickets", headers=self.headers).json()["ticket"])

    def _record(self, reader: str, version: int) -> None:
        self.seen.setdefault(reader, []).append(version)

    def _follow_stream(self, answer: requests.Response) -> None:
        with contextlib.suppress(requests.RequestException):
            for line in answer.iter_lines(chunk_size=1):
                if line.startswith(b"data: ") and "version" in (message := json.loads(line[6:])):
                    self._record(f"stream, {message['topic']}", message["version"])
                if self._stop.is_set():
                    return

    def _write(self, writer: int) -> None:
        with requests.Session() as session:
            for number in itertools.count():
                if self._stop.wait(0.02):
                    return
                with contextlib.suppress(requests.RequestException):
                    page = f"{self.service.url}/api/v1/pages/p{number % PAGES}"
                    session.post(f"{page}/views", headers=self.headers, timeout=10)
                    session.put(f"{page}/likes/u{writer}-{number}", headers=self.headers, timeout=10)

    def _read(self, reader: str, path: str, *, conditional: bool) -> None:
        """On one connection, as a browser does."""
        tag: dict[str, str] = {}
        with requests.Session() as session:
            while not self._stop.wait(0.02):
                answer = session.get(self.service.url + path, headers=self.headers | tag, timeout=10)
                self.statuses.add(answer.status_code)
                if answer.status_code == 200:
                    body: dict[str, Any] = answer.json()
                    self._record(reader, body["version"])
                    self.read_from.add(body["source"])
                    if conditional:
                        tag = {"If-None-Match": answer.headers["ETag"]}

    def wait_for_changes(self, count: int = 3) -> None:
        """Until every reader over HTTP has seen some changes more."""
        before = {reader: len(set(versions)) for reader, versions in self.seen.items()}
        eventually(
            lambda: (
                len(self.seen) >= 2 * (len(BOARDS) + 1)
                and all(len(set(seen)) >= before.get(reader, 0) + count for reader, seen in self.seen.items())
            )
        )

    def went_back(self) -> dict[str, list[tuple[int, int]]]:
        """For each reader the versions that came after newer ones."""
        back = {
            reader: [(before, after) for before, after in itertools.pairwise(versions) if after < before]
            for reader, versions in self.seen.items()
        }
        return {reader: pairs for reader, pairs in back.items() if pairs}


def check_after(service: Service, fault: Callable[[], None]) -> None:
    with Load(service) as load:
        load.wait_for_changes()
        load.read_from.clear()
        fault()
        eventually(lambda: "redis" in load.read_from)
        load.wait_for_changes()
    assert load.went_back() == {}
    assert {200, 304} <= load.statuses <= {200, 304, 503}
    kinds = {reader.partition(",")[0] for reader in load.seen}
    assert kinds == {*BOARDS, "rank", "socket 0", "socket 1", "stream"}
    wait_for_right_boards(service)


def test_an_emptied_redis_takes_no_version_back(service: Service) -> None:
    def empty_again_and_again() -> None:  # a rebuild of few pages takes a moment only
        client = Redis.from_url(addresses(service)["redis_url"])
        for _ in range(15):
            client.flushall()
            time.sleep(0.1)

    check_after(service, empty_again_and_again)


def test_a_killed_redis_takes_no_version_back(service: Service) -> None:
    check_after(service, lambda: service.processes()["valkey"].send_signal(signal.SIGKILL))


def test_no_reader_is_told_that_nothing_changed_by_an_outdated_snapshot(service: Service) -> None:
    """A 304 is judged by the version that PostgreSQL had some time before: answers are kept for a second."""
    headers, path = headers_of(service), BOARDS["views"]
    wait_for_right_boards(service)
    valkey = service.processes()["valkey"]
    valkey.suspend()
    try:
        eventually(lambda: service.get(path, headers=headers).json()["source"] != "redis")
        first = service.get(path, headers=headers)
        before = version_in_postgres(service)
        service.post("/api/v1/pages/p0/views", headers=headers)
        eventually(lambda: version_in_postgres(service) > before)
        time.sleep(2 * MAX_AGE_S)
        again = service.get(path, headers=headers | {"If-None-Match": first.headers["ETag"]})
        assert again.status_code == 200, first.json()["source"]
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):  # `up` has replaced it
            valkey.resume()

    def says_that_nothing_changed_since_then() -> bool:
        current = service.get(path, headers=headers)
        again = service.get(path, headers=headers | {"If-None-Match": current.headers["ETag"]})
        return current.json()["version"] > before and again.status_code == 304

    eventually(says_that_nothing_changed_since_then)


def version_in_postgres(service: Service) -> int:
    with psycopg.connect(addresses(service)["database_url"]) as owner:
        found = owner.execute(
            "SELECT version FROM boards WHERE tenant_id = 'demo' AND scope = 'tenant' AND time_window = '7d'"
            " AND metric = 'views'"
        ).fetchone()
    assert found is not None
    return int(found[0])


def test_a_redis_that_hangs_takes_no_version_back(service: Service) -> None:
    def hang() -> None:
        valkey = service.processes()["valkey"]
        valkey.suspend()
        try:
            time.sleep(6)
        finally:
            valkey.resume()

    check_after(service, hang)
