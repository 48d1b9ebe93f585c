"""How a flood by one tenant slows another, compared with the same load sent by forty tenants together.

And how a flood by one caller slows a colleague, another caller of the same tenant; and whether a tenant's only client
gets as much done as forty clients of a tenant together.
"""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import orjson
import psycopg
import requests

from app.run.data_folder import read_state
from loadtests.blast import RequestMaker, Result, blast, request
from loadtests.service import Service, demo, wait_until
from tenants import credentials, db, registry

TENANTS = 40
FLOOD_CONNECTIONS = 44
ROUNDS = 3

Send = Callable[[str, int], bytes]


@dataclass
class Bench:
    service: Service
    database_url: str
    quiet: str
    others: list[str]
    # Callers of one more tenant.
    colleagues: list[str]
    seconds: float

    def measure(self) -> None:
        self._measure_quiet(seconds=1)  # warm up
        print(f"A quiet tenant: views, likes, pages and boards on 4 connections, {ROUNDS} rounds in turn")
        _print("alone", self._measure_quiet(seconds=self.seconds))
        for _ in range(ROUNDS):
            self._compare("batches of 150 actions", _action_batch)
            self._compare("likes", _like, lock="SELECT FROM page_counters WHERE tenant_id = 'bench-1' FOR UPDATE")
            self._compare_colleagues()
            self._compare_single()

    def _compare(self, what: str, send: Send, lock: str = "SELECT") -> None:
        spread = self._measure_during(partial(_flood_request, self.others, send))
        with psycopg.connect(self.database_url) as locking:
            locking.execute(lock)
            flooded = self._measure_during(partial(_flood_request, self.others[:1], send))
        _print(f"during {what} of {TENANTS} tenants", spread)
        by_one = f"during {what} of one" + (", their row locked" if lock != "SELECT" else "")
        _print(by_one, flooded, f"   p99 {flooded.p99_ms / spread.p99_ms:.1f} x")

    def _compare_colleagues(self) -> None:
        """Beside a flood by one caller of the tenant, against the same load by another tenant."""
        quiet, flooding = self.colleagues[:2]
        beside = self._measure_during(partial(_flood_request, self.others[:1], _batch_of_views), token=quiet)
        during = self._measure_during(partial(_flood_request, [flooding], _batch_of_views), token=quiet)
        _print("beside batches of views of another tenant", beside)
        _print("beside those of a colleague", during, f"   p99 {during.p99_ms / beside.p99_ms:.1f} x")

    def _compare_single(self) -> None:
        """A tenant's work by one client, against the same by many, of whom none has half of its share."""
        send = partial(blast, self._port, connections=FLOOD_CONNECTIONS, seconds=self.seconds)
        by_many = send(partial(_flood_request, self.colleagues, _batch_of_views))
        by_one = send(partial(_flood_request, self.colleagues[:1], _batch_of_views))
        _print(f"batches of {len(self.colleagues)} clients of a tenant", by_many)
        _print("of its only client", by_one, f"   {by_one.per_second / by_many.per_second:.2f} x as many")

    def _measure_during(self, flood: RequestMaker, token: str | None = None) -> Result:
        """A quiet caller's figures during the flood, which starts before and ends after the measurement."""
        results: list[Result] = []
        run = partial(blast, self._port, flood, connections=FLOOD_CONNECTIONS, seconds=self.seconds + 2)
        flooding = threading.Thread(target=lambda: results.append(run()))
        flooding.start()
        time.sleep(1)
        measured = self._measure_quiet(seconds=self.seconds, token=token)
        flooding.join()
        print(f"      the flood was answered {results[0].statuses}")
        wait_until(self._is_idle, within_s=120)
        return measured

    def _measure_quiet(self, *, seconds: float, token: str | None = None) -> Result:
        return blast(self._port, partial(_quiet_request, token or self.quiet), connections=4, seconds=seconds)

    def _is_idle(self) -> bool:
        """Whether the database has finished the requests of a flood whose connections are closed."""
        with psycopg.connect(self.database_url) as connection:
            busy = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE usename = 'plaudit_app' AND state <> 'idle'"
            ).fetchone()
        return busy == (0,)

    @property
    def _port(self) -> int:
        return int(self.service.url.rsplit(":", 1)[1])


def neighbours(seconds: float) -> None:
    with demo() as service:
        state = read_state(service.data_dir)
        assert state is not None
        quiet, *others = [make_tenant(service, state["addresses"], number) for number in range(TENANTS + 1)]
        colleagues = [quiet_one := make_tenant(service, state["addresses"], TENANTS + 1)]
        colleagues += [another_client(service, quiet_one) for _ in range(TENANTS - 1)]
        Bench(service, state["addresses"]["database_url"], quiet, others, colleagues, seconds).measure()


def _print(what: str, result: Result, more: str = "") -> None:
    print(f"  {what:<50}{result}{more}")


def make_tenant(service: Service, addresses: dict[str, str], number: int) -> str:
    """Create a tenant with a page and an action; returns its access token."""
    tenant_id = f"bench-{number}"
    db.configure(service_url=addresses["service_database_url"], owner_url=addresses["database_url"], pool_size=1)
    with db.owner_tx() as tx:
        registry.create(tx, tenant_id, name=tenant_id, now=db.utcnow())
    with db.tenant_tx(tenant_id) as tx:
        created = credentials.create_client(tx, name="Bench", scopes=["admin"], now=db.utcnow())
    db.dispose()
    token = _token(service, created.client.id, created.secret)
    headers = {"Authorization": f"Bearer {token}"}
    limits = {"limits": {"score_updates_per_minute": 10_000}, "integrity": {"points_per_hour": 10**9}}
    for method, path, body in (
        ("PUT", "pages/home", {"space": "s", "title": "t", "url": "/home"}),
        ("PUT", "actions/catalog/post", {"points": 1}),
        ("PATCH", "settings", limits),
    ):
        requests.request(
            method, f"{service.url}/api/v1/{path}", json=body, headers=headers, timeout=10
        ).raise_for_status()
    return token


def another_client(service: Service, token: str) -> str:
    """The access token of a new client of the same tenant."""
    headers = {"Authorization": f"Bearer {token}"}
    wanted = {"name": "Bench", "scopes": ["admin"]}
    made = requests.post(f"{service.url}/api/v1/clients", json=wanted, headers=headers, timeout=10).json()
    return _token(service, made["client_id"], made["client_secret"])


def _token(service: Service, client_id: str, secret: str) -> str:
    grant = {"grant_type": "client_credentials"}
    answer = requests.post(f"{service.url}/oauth/token", data=grant, auth=(client_id, secret), timeout=10)
    return str(answer.json()["access_token"])


def _flood_request(tokens: list[str], send: Send, _process: int, connection: int, number: int) -> bytes:
    return send(tokens[connection % len(tokens)], connection * 100_000 + number)


def _action_batch(token: str, number: int) -> bytes:
    actions = [{"type": "action", "user": f"u{number}-{n}", "action_type": "post"} for n in range(150)]
    return _request("POST", "/api/v1/events", token, orjson.dumps({"events": actions}))


def _batch_of_views(token: str, number: int) -> bytes:
    views = [{"type": "view", "page": "home", "id": f"{os.getpid()}-{number}-{n}"} for n in range(100)]
    return _request("POST", "/api/v1/events", token, orjson.dumps({"events": views}))


def _like(token: str, number: int) -> bytes:
    return _request("PUT", f"/api/v1/pages/home/likes/u{number % 100}", token, b"")


def _quiet_request(token: str, _process: int, connection: int, number: int) -> bytes:
    kind = (connection + number) % 4
    if kind == 0:
        return _request(
            "POST", "/api/v1/pages/home/views", token, b'{"id":"%d-%d-%d"}' % (os.getpid(), connection, number)
        )
    if kind == 1:
        return _request("PUT", f"/api/v1/pages/home/likes/u{connection}-{number}", token)
    path = "/api/v1/pages/home" if kind == 2 else f"/api/v1/leaderboards?limit={number % 50 + 1}"
    return _request("GET", path, token)


def _request(method: str, path: str, token: str, body: bytes = b"") -> bytes:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    return request(method, path, headers=headers, body=body)
