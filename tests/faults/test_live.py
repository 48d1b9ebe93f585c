"""Live under faults: readers that do not read, a Redis that is away or restarted, several processes."""

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest
import requests
from flask.testing import FlaskClient

from analytics.boards import projection
from app.http.services import services_of
from app.run.data_folder import Addresses
from app.run.ports import reserve_port
from app.settings import Settings
from loadtests.watchers import Watcher, Watchers
from tenants import tickets
from tenants.db import tenant_tx, utcnow
from tests.conftest import reachable_folder
from tests.live import Live, ticket_for
from tests.people import Caller, client_of, use_ticket
from tests.service import (
    PLAUDIT,
    ROOT,
    Service,
    eventually,
    own_servers_env,
    running_service,
    wait_for_right_boards,
)

BOARD = {"op": "subscribe", "scope": "tenant", "window": "7d", "metric": "likes"}
CLIENTS = 1_000


@pytest.fixture
def wiki(client: FlaskClient, tenant: str) -> Caller:
    app = client_of(client, tenant)
    app("PUT", "/api/v1/pages/a", json={"space": "docs", "title": "A", "url": "/a"})
    return app


def like(wiki: Caller, user: str, page: str = "a") -> None:
    assert wiki("PUT", f"/api/v1/pages/{page}/likes/{user}").status_code == 200
    projection.project_all(wiki.tenant, now=utcnow)


def many_tickets(wiki: Caller, count: int) -> Iterator[str]:
    """As they are made by the API, some at a time, and just before they are used."""
    holder = use_ticket(wiki.http, ticket_for(wiki))
    for start in range(0, count, 50):
        with tenant_tx(wiki.tenant) as tx:
            issued = [
                tickets.issue(tx, holder, signer=services_of(wiki.http.application).signer, now=utcnow())[0]
                for _ in range(min(50, count - start))
            ]
        yield from issued


def connections(live: Live) -> float:
    lines = requests.get(f"{live.url}/metrics", timeout=5).text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("plaudit_live_connections{"))


def make_long_board(wiki: Caller) -> None:
    """A hundred rows of some 500 bytes."""
    names = [f"p{number}" for number in range(100)]
    pages = [{"external_id": name, "space": "docs", "title": "long " * 90, "url": f"/{name}"} for name in names]
    assert wiki("POST", "/api/v1/pages", json={"pages": pages}).status_code == 200
    likes = [{"type": "like", "page": name, "user": "ann"} for name in names]
    assert wiki("POST", "/api/v1/events", json={"events": likes}).status_code == 202
    projection.project_all(wiki.tenant, now=utcnow)


@pytest.fixture(scope="module")
def whole_live(settings: Settings, addresses: Addresses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with Live(settings, addresses, PROMETHEUS_MULTIPROC_DIR=str(tmp_path_factory.mktemp("metrics"))) as running:
        yield running


@pytest.fixture
def live(whole_live: Live) -> Live:
    """Whoever was connected in the test before is gone."""
    eventually(lambda: connections(whole_live) == 0)
    return whole_live


def test_a_thousand_clients_receive_changes_and_one_that_never_reads_delays_nobody(live: Live, wiki: Caller) -> None:
    make_long_board(wiki)
    with Watchers() as watchers:
        for ticket in many_tickets(wiki, CLIENTS):
            watchers.add(Watcher(live.port, f"/ws/leaderboards?ticket={ticket}"))
            watchers.all[-1].send(BOARD)
        # Its own buffer is small and what it asks for is much, so that writing to it soon blocks.
        deaf = Watcher(live.port, f"/ws/leaderboards?ticket={ticket_for(wiki)}", buffer_bytes=4096)
        deaf.send(BOARD | {"top": 100})
        assert watchers.wait_for(1, within_s=20)
        assert connections(live) == CLIENTS + 1
        began = time.monotonic()
        for number in range(2, 8):
            like(wiki, f"u{number}")
            # Less than the ten seconds after which the server gives up the one that never reads.
            assert watchers.wait_for(number, within_s=9), "the others do not wait for who does not read"
        # Each once: after a long silence, as on a busy machine, the newest is sent again.
        versions = {tuple(dict.fromkeys(one["version"] for one in watcher.messages())) for watcher in watchers.all}
        assert len(versions) == 1
        while connections(live) > CLIENTS:
            assert time.monotonic() - began < 60, "who does not read is dropped"
            time.sleep(0.1)
        assert not any(watcher.is_closed for watcher in watchers.all)
        deaf.sock.close()


def test_a_stream_that_nobody_reads_is_dropped(live: Live, wiki: Caller) -> None:
    make_long_board(wiki)
    with Watchers() as watchers, socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", live.port))
        path = f"/api/v1/live/events?topic=tenant:7d:likes&top=100&ticket={ticket_for(wiki)}"
        deaf.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        eventually(lambda: connections(live) == 1)
        reader = Watcher(live.port, f"/ws/leaderboards?ticket={ticket_for(wiki)}")
        reader.send(BOARD)
        watchers.add(reader)
        for number in range(100):
            like(wiki, f"u{number}")
            if connections(live) == 1:
                break
            time.sleep(0.2)
        eventually(lambda: connections(live) == 1, within_s=10)
        version = wiki("GET", "/api/v1/leaderboards?scope=tenant&window=7d&metric=likes").get_json()["version"]
        eventually(lambda: newest(reader, "tenant:7d:likes") == version)


def test_a_client_that_sends_without_end_blocks_no_other(live: Live, wiki: Caller) -> None:
    other = live.follow(wiki, scope="tenant", window="7d", metric="likes")
    other.read_until("subscribed")
    flood = Watcher(live.port, f"/ws/leaderboards?ticket={ticket_for(wiki)}")
    stop = threading.Event()

    def send_on() -> None:
        with contextlib.suppress(OSError):
            while not stop.is_set():
                flood.sock.sendall(b"\x81\x81\0\0\0\0x" * 5000)

    sender = threading.Thread(target=send_on)
    sender.start()
    for _ in range(5):
        time.sleep(0.2)
        other.send(op="ping")
        other.read_until("pong", within_s=3)
    stop.set()
    flood.sock.close()
    sender.join()
    other.close()
    assert "Traceback" not in live.log_text()


def test_without_redis_a_socket_opens_and_receives_changes(
    settings: Settings, addresses: Addresses, wiki: Caller
) -> None:
    with Live(settings, addresses, REDIS_URL=f"redis://127.0.0.1:{reserve_port()}/0") as live:
        used = ticket_for(wiki)
        live.connect(f"/ws/leaderboards?ticket={used}").close()
        assert live.refusal(f"/ws/leaderboards?ticket={used}") == (401, "invalid_ticket")
        follower = live.follow(wiki, scope="tenant", window="7d", metric="likes")
        follower.read_until("subscribed")
        like(wiki, "ann")
        assert follower.read_until("invalidated")["version"] > 0
        follower.close()


@pytest.fixture
def service() -> Iterator[Service]:
    with reachable_folder() as folder, running_service(folder / "data", "--demo", "--no-traffic") as running:
        yield running


@contextlib.contextmanager
def another_live(service: Service) -> Iterator[int]:
    port = reserve_port()
    command = [*PLAUDIT, "live", "--port", str(port), "--data-dir", str(service.data_dir)]
    process = subprocess.Popen(command, cwd=ROOT, env=own_servers_env(), stdout=service.log, stderr=service.log)
    try:
        eventually(lambda: requests.get(f"http://127.0.0.1:{port}/health/live", timeout=1).ok)
        yield port
    finally:
        process.terminate()
        process.wait(10)


SCOPES = ["tenant", "space:s0", "space:s1"]


def test_clients_of_two_processes_have_the_newest_version_after_a_restart_of_redis(service: Service) -> None:
    headers = {"Authorization": f"Bearer {service.token()}"}
    for number in range(6):
        body = {"space": f"s{number % 2}", "title": "t", "url": f"/{number}"}
        requests.put(f"{service.url}/api/v1/pages/p{number}", json=body, headers=headers, timeout=10)
    stop = threading.Event()

    def keep_liking() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            path = f"/api/v1/pages/p{number % 6}/likes/u{number}"
            requests.put(service.url + path, headers=headers, timeout=10)
            time.sleep(0.02)

    own_port = int(service.ready["live_url"].rsplit(":", 1)[1])
    with another_live(service) as other_port, Watchers() as watchers:
        for port in (own_port, other_port) * 10:
            ticket = service.post("/api/v1/live/tickets", headers=headers).json()["ticket"]
            watcher = Watcher(port, f"/ws/leaderboards?ticket={ticket}")
            for scope in SCOPES:
                watcher.send(BOARD | {"scope": scope})
            watchers.add(watcher)
        liking = threading.Thread(target=keep_liking)
        liking.start()
        try:
            assert watchers.wait_for(len(SCOPES) + 3, within_s=60), "subscribed, and sent some changes"
            valkey = service.processes()["valkey"]
            os.kill(valkey.pid, signal.SIGKILL)
            eventually(lambda: all(was_sent(watcher, "resync") for watcher in watchers.all))
        finally:
            stop.set()
            liking.join()
        assert service.processes()["valkey"].pid != valkey.pid

        def behind() -> list[tuple[str, int, int]]:
            now = {scope: version(service, headers, scope) for scope in SCOPES}
            return [
                (scope, seen, now[scope])
                for watcher in watchers.all
                for scope in SCOPES
                if (seen := newest(watcher, f"{scope}:7d:likes")) != now[scope]
            ]

        wait_for_right_boards(service)
        eventually(lambda: not behind())
        for watcher in watchers.all:
            messages = watcher.messages()
            assert [message["seq"] for message in messages] == list(range(1, len(messages) + 1))
            for scope in SCOPES:
                versions = [int(str(one["version"])) for one in messages if one.get("topic") == f"{scope}:7d:likes"]
                assert versions == sorted(versions), "a version never goes back"


def was_sent(watcher: Watcher, kind: str) -> bool:
    return any(message["type"] == kind for message in watcher.messages())


def newest(watcher: Watcher, topic: str) -> int:
    return max((int(str(one["version"])) for one in watcher.messages() if one.get("topic") == topic), default=-1)


def version(service: Service, headers: dict[str, str], scope: str) -> int:
    path = f"/api/v1/leaderboards?scope={scope}&window=7d&metric=likes"
    return int(service.get(path, headers=headers).json()["version"])
