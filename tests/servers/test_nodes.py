"""Two nodes behind nginx, on the same PostgreSQL and Redis."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import websocket

from tests.live import Socket
from tests.servers.nodes import Client, Node, Traffic, counted, shared_env
from tests.servers.postgres import Postgres
from tests.servers.proxy import Proxy
from tests.servers.redis_cluster import RedisServer
from tests.service import eventually


@dataclass
class Site:
    nodes: list[Node]
    client: Client
    postgres: Postgres


@pytest.fixture(scope="module")
def site(folder: Path, postgres: Postgres, redis: RedisServer) -> Iterator[Site]:
    """The site's client talks to the proxy."""
    proxy = Proxy(folder / "nginx")
    public = {"PLAUDIT_PUBLIC_URL": proxy.url, "PLAUDIT_PROXY_HOPS": "1"}
    env = shared_env(database=postgres.url(), redis=redis.url, **public)
    with (
        Node(folder / "first", env, "--demo", "--no-traffic") as first,
        Node(folder / "second", env) as second,
    ):
        proxy.nodes = [(node.port, node.live_port) for node in (first, second)]
        with proxy:
            client = Client(proxy.url, first.ready)
            client.prepare()
            yield Site([first, second], client, postgres)


def test_a_revocation_at_one_node_holds_for_the_next_call_at_the_other(site: Site) -> None:
    first, second = (Client(node.url, site.nodes[0].ready) for node in site.nodes)
    for here, there in [(first, second), (second, first)] * 3:
        created = here("POST", "/api/v1/clients", json={"name": "short-lived", "scopes": ["stats:read"]}).json()
        other = Client(there.url, created)
        assert other("GET", "/api/v1/spaces").status_code == 200
        assert here("DELETE", f"/api/v1/clients/{created['client_id']}").status_code == 204
        assert other("GET", "/api/v1/spaces").status_code == 401


def cron_leaders(site: Site) -> list[psutil.Process]:
    """The cron processes that lead, whose connections PostgreSQL knows by their ports."""
    ports = site.postgres.execute(
        "SELECT client_port FROM pg_stat_activity JOIN pg_locks USING (pid)"
        " WHERE application_name = 'plaudit cron' AND locktype = 'advisory' AND granted"
    )
    crons = [cron for node in site.nodes if (cron := node.processes().get("cron"))]
    return [cron for cron in crons for each in cron.net_connections() if (each.laddr.port,) in ports]


def another_leader(site: Site, former: psutil.Process) -> bool:
    return [leader.pid for leader in cron_leaders(site)] not in ([], [former.pid])


def test_one_cron_leads_and_the_other_takes_over_when_it_is_killed(site: Site) -> None:
    for _ in range(2):
        (leader,) = eventually(partial(cron_leaders, site))
        leader.kill()
        eventually(partial(another_leader, site, leader))
    assert len(cron_leaders(site)) == 1


def test_a_read_only_server_is_said_to_be_and_writes_are_refused_until_it_is_not(site: Site) -> None:
    """As behind a connection pool that still leads to the former primary."""
    assert site.client("POST", "/api/v1/pages/p1/views").status_code == 202
    site.postgres.set("default_transaction_read_only", "on")
    try:
        for node in site.nodes:
            ready = eventually(partial(unready, node))
            assert "read-only" in ready["checks"]["database"]
        calls = {"/api/v1/pages/p1/views": {}, "/api/v1/events": {"events": [{"type": "view", "page": "p1"}]}}
        for path, body in calls.items():
            answer = site.client("POST", path, json=body)
            assert (answer.status_code, answer.json()["code"]) == (503, "database_unavailable")
            assert "Retry-After" in answer.headers
        assert site.client("GET", "/api/v1/pages/p1").status_code == 200
    finally:
        site.postgres.set("default_transaction_read_only", "off")
    for node in site.nodes:
        eventually(partial(is_ready, node))
    eventually(lambda: site.client("POST", "/api/v1/pages/p1/views").status_code == 202)


# One of each way to PostgreSQL: in one round trip, on the loop or by a thread; in a transaction of several; an owner's.
WRITES: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/api/v1/pages/p1/views", {"id": "lost-1"}),
    ("PUT", "/api/v1/pages/p1/likes/lost", {}),
    ("POST", "/api/v1/events", {"events": [{"type": "view", "page": "p1", "id": "lost-2"}]}),
    ("POST", "/api/v1/events", {"events": [{"type": "action", "action_type": "read", "user": "lost", "id": "lost-3"}]}),
    ("PUT", "/api/v1/pages/lost", {"space": "s", "title": "Lost", "url": "/lost"}),
    ("PUT", "/api/v1/actions/catalog/lost", {"points": 1}),
    ("PATCH", "/api/v1/settings", {"limits": {"live_connections": 99}}),
]


def test_while_the_synchronous_standby_is_lost_writes_are_refused_in_seconds_and_reads_are_answered(site: Site) -> None:
    def write(call: tuple[str, str, dict[str, Any]]) -> tuple[int, str]:
        method, path, body = call
        answer = site.client(method, path, json=body, timeout_s=30)
        return answer.status_code, answer.json().get("code", "")

    site.postgres.set("synchronous_standby_names", "lost")
    try:
        eventually(lambda: write(WRITES[0])[0] == 503)  # from then on commits wait
        with ThreadPoolExecutor(len(WRITES)) as callers:
            written = callers.map(write, WRITES)
            time.sleep(1)
            assert site.client("GET", "/api/v1/pages/p1").status_code == 200
            assert {*written} <= {(503, "database_unavailable"), (503, "overloaded"), (503, "pages_busy")}
        web = site.nodes[1].processes()["web"]
        web.kill()  # whoever is started now answers too
        web.wait(30)
        assert all(eventually(partial(is_ready, node)) for node in site.nodes)
        assert site.client("GET", "/api/v1/pages/p1").status_code == 200
    finally:
        site.postgres.set("synchronous_standby_names", "")
    eventually(lambda: all(write(call)[0] < 300 for call in WRITES))


def is_ready(node: Node) -> bool:
    return node.get("/health/ready").ok


def unready(node: Node) -> dict[str, dict[str, str]] | None:
    answer = node.get("/health/ready")
    found: dict[str, dict[str, str]] = answer.json()
    return found if answer.status_code == 503 else None


@contextmanager
def stopped(process: psutil.Process) -> Iterator[None]:
    """It and its children hang: the kernel still accepts connections for them."""
    everything = [process, *process.children(recursive=True)]
    for each in everything:
        each.suspend()
    try:
        yield
    finally:
        for each in everything:
            each.resume()


def test_a_node_that_hangs_costs_one_timeout_and_nothing_is_sent_to_it_then(site: Site, folder: Path) -> None:
    proxy = Proxy(folder / "impatient")
    proxy.nodes, proxy.read_timeout_s = [(node.port, node.live_port) for node in site.nodes], 3
    with proxy, stopped(site.nodes[0].processes()["web"]):
        client = Client(proxy.url, site.nodes[0].ready, token=site.client.token)
        # One of them reaches the node that hangs, and is answered by the other.
        reads = [client("GET", "/api/v1/spaces", timeout_s=60) for _ in range(2)]
        assert [read.status_code for read in reads] == [200, 200]
        assert max(read.elapsed.total_seconds() for read in reads) >= proxy.read_timeout_s
        for _ in range(4):
            for method, path in (("GET", "/api/v1/spaces"), ("POST", "/api/v1/pages/p1/views")):
                answer = client(method, path)
                assert answer.ok
                assert answer.elapsed.total_seconds() < proxy.read_timeout_s
    eventually(partial(is_ready, site.nodes[0]))


def is_open(socket: Socket) -> bool:
    """Whether the server has closed this socket; what it sent before is read."""
    try:
        while socket.read(0.05):
            pass
    except websocket.WebSocketTimeoutException:
        return True
    except (websocket.WebSocketConnectionClosedException, OSError):
        return False
    return True


def test_a_killed_node_loses_nothing_and_its_sockets_reconnect_to_the_other(site: Site) -> None:
    before = counted(site.postgres)
    sockets = [site.client.follow() for _ in range(4)]
    assert {len(connections(node)) for node in site.nodes} == {2}, "two at each"
    with Traffic(site.client) as traffic:
        traffic.wait_for(150)
        site.nodes[0].kill()
        eventually(lambda: sum(map(is_open, sockets)) == 2)
        again = [site.client.follow() for _ in range(2)]
        traffic.wait_for(150)
    assert counted(site.postgres) - before == traffic.acknowledged
    version = max(socket.read_until("invalidated")["version"] for socket in again)
    assert site.client.board()["version"] >= version
    eventually(site.nodes[1].boards_are_right, every_s=0.5)


def connections(node: Node) -> list[int]:
    """The connections of the node's sockets."""
    live = node.processes()["live"]
    mine = [each for process in [live, *live.children(recursive=True)] for each in process.net_connections()]
    return [each.raddr.port for each in mine if each.laddr.port == node.live_port and each.status == "ESTABLISHED"]
