"""The connection to PostgreSQL is cut at every trip, on every route: 503 or success, never 500, nothing half done.

Each trip of a request is cut once, somewhere; those that commit at each place, since it decides whether they did.
"""

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import psycopg
import pytest
from flask import Flask
from psycopg import sql
from sqlalchemy.exc import DBAPIError
from werkzeug.test import TestResponse

from app.http.services import services_of
from app.live.server import create_live_app
from app.settings import Settings
from app.web import connect, install_services
from tenants import ceilings, db, liveness
from tenants.db import tenant_tx
from tests.app.server.served import OverHttp, served
from tests.attacks.test_other_tenants import routes
from tests.conftest import clear_rate_limits, make_tenant, reconnect, redis_unavailable
from tests.cutting import Cut, CuttingProxy, How, Trip, Where, cutting_proxy
from tests.faults.cut_cases import CASES, Call, Scene
from tests.service import eventually

pytestmark = pytest.mark.long

MAX_TRIPS = 60
WALKS_IN_A_SCENE = 10
# There is nothing at the address, or another server has it.
REFUSED = {
    "GET /static/<path:filename>",
    "GET /ws/leaderboards",
    "GET /ws/scoreboard/top10",
    "GET /api/v1/live/events",
}
# A call that was carried out although nobody was told so: what the same call is answered then. (With an Idempotency-Key
# it is answered as the first would have been.)
REPEATED = {
    "POST /api/v1/auth/logout": 401,
    "POST /dashboard/logout": 401,
    "POST /api/v1/auth/password": 403,
    "POST /api/v1/auth/register": 409,
    "POST /api/v1/auth/refresh": 401,
    "POST /api/v1/auth/reset": 401,
    "POST /api/v1/rewards/failed/<uuid:reward_id>/retry": 409,
    "DELETE /api/v1/quest-templates/<uuid:template_id>": 404,
    "DELETE /api/v1/quest-categories/<tag>": 404,
}
# Each call makes something new, such as a secret that is shown once, or says when it was called last.
NEW_EACH_TIME = {
    "POST /oauth/token",
    "POST /api/v1/auth/login",
    "POST /dashboard/login",
    "POST /api/v1/auth/refresh",  # the token that is used again ends the session
    "POST /api/v1/users/<user>/password-reset",
    "POST /api/v1/live/tickets",
    "POST /api/v1/clients",
    "POST /api/v1/clients/<client_id>/rotate",
    "POST /api/v1/keys",
    "POST /api/v1/keys/<key_id>/signing-secret",
    "POST /api/v1/tokens",
    "POST /api/v1/quest-templates",
    "PUT /api/v1/quest-templates/<uuid:template_id>",
    "POST /api/v1/beacon",
}
# What the fast lane answers, if there is no Idempotency-Key. Calls are told apart by their own ids.
FAST = [
    "POST /api/v1/pages/<external_id>/views",
    "POST /api/v1/scores/update",
    "PATCH /api/v1/scores",
    "POST /api/v1/events",
    "PUT /api/v1/pages/<external_id>/like",
    "DELETE /api/v1/pages/<external_id>/like",
    "PUT /api/v1/pages/<external_id>/likes/<user>",
    "DELETE /api/v1/pages/<external_id>/likes/<user>",
]
BOARDS = [route for route in CASES if "leaderboards" in route or "/embed/" in route or route.endswith("/stats")]
# As often as processes read them; no part of a request's effect.
NOT_EFFECTS = {"credential_changes"}
# Rows of which a repeated call changes the times only.
TIMES = {"page_likes"}
Database = psycopg.Connection[tuple[Any, ...]]


@dataclass
class Stage:
    """An application whose connections are cut, and what it has written."""

    app: Flask
    proxy: CuttingProxy
    # The database behind the proxy, and without it.
    url: str
    direct: Database
    dice: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        self._fingerprint = fingerprint_of(self.direct)
        self._effects: tuple[int, dict[str, Any]] = (0, {})
        self._walks = 0

    def next_scene(self) -> Scene:
        """A tenant that has few rows: all of them are compared after every call."""
        if self._walks % WALKS_IN_A_SCENE == 0:
            self.scene = Scene(self.app.test_client(), make_tenant())
        self._walks += 1
        return self.scene

    def effects(self) -> dict[str, Any]:
        """A digest of the tenant's rows, by table. Nothing is read while no transaction of anybody has written."""
        ((newest,),) = self.direct.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint").fetchall()
        if newest != self._effects[0]:
            rows = self.direct.execute(self._fingerprint, {"tenant": self.scene.tenant}).fetchall()
            self._effects = newest, {table: digest for table, *digest in rows}
        return self._effects[1]

    def forget(self) -> None:
        """Have the next request read everything that processes remember."""
        liveness._answers.drop_all()
        services_of(self.app).boards.drop_of_tenant(self.scene.tenant)
        ceilings._counts.clear()
        ceilings._recent.clear()
        with tenant_tx(self.scene.tenant):
            pass  # on a connection that is not cut yet

    def send(self, route: str, call: Call, key: str | None, over_http: OverHttp | None) -> int:
        """The answer's status. A stream that breaks off counts as 503."""
        headers = {**call.options.get("headers", {}), **({"Idempotency-Key": key} if key else {})}
        if call.by is not None:
            headers["Authorization"] = f"Bearer {call.by.token}"
        if over_http is not None:
            return over_http.open(
                call.path, method=route.split(maxsplit=1)[0], **{**call.options, "headers": headers}
            ).status_code
        network = "127.0.0" if call.path == "/metrics" else f"10.{self.dice.randrange(256)}.{self.dice.randrange(256)}"
        options = {**call.options, "headers": headers, "environ_base": {"REMOTE_ADDR": f"{network}.1"}}
        try:
            answer: TestResponse = self.scene.http.open(call.path, method=route.split(maxsplit=1)[0], **options)
            return answer.status_code
        except DBAPIError:
            assert route in {"GET /api/v1/users/<user>/export", "GET /api/v1/leaderboards/export.csv"}
            return 503


def fingerprint_of(direct: Database) -> sql.Composed:
    tables = direct.execute(
        "SELECT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tenant_id'"
        " WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relnamespace = 'public'::regnamespace"
    )
    return sql.SQL(" UNION ALL ").join(
        sql.SQL("SELECT {}, count(*), sum(hashtextextended(x::text, 0)) FROM {} x WHERE tenant_id = %(tenant)s").format(
            sql.Literal(name), sql.Identifier(name)
        )
        for (name,) in tables
        if name not in NOT_EFFECTS
    )


@pytest.fixture(scope="module")
def stage(built_app: Flask, settings: Settings) -> Iterator[Stage]:
    with contextlib.ExitStack() as stack:
        url = settings.service_database_url or settings.database_url or ""
        proxy, through = stack.enter_context(cutting_proxy(url))
        behind = replace(settings, service_database_url=through)
        connect(behind)
        install_services(built_app, behind)
        direct = stack.enter_context(psycopg.connect(settings.database_url or "", autocommit=True))
        yield Stage(built_app, proxy, through, direct)
        services_of(built_app).boards.close()
    reconnect(settings)


@dataclass
class Walk:
    """One route's call, sent again and again while its connections are cut."""

    stage: Stage
    route: str
    has_key: bool = False
    # To send it to a server, which remembers callers and pages, and not to the application itself.
    over_http: OverHttp | None = None

    def __post_init__(self) -> None:
        self.stage.dice.seed(f"{self.route} {self.has_key}")
        self.stage.next_scene()
        self._renew()
        self._expected = self._send(None)
        assert self._expected < 400 or self.route in REFUSED

    def _renew(self) -> None:
        """Another call: the one before was carried out."""
        self._call = CASES[self.route](self.stage.scene)
        self._before = self.stage.effects()

    def _send(self, key: str | None) -> int:
        if self.over_http is None:
            self.stage.forget()
        return self.stage.send(self.route, self._call, key, self.over_http)

    def go(self) -> None:
        self._renew()
        committing = []
        for number in range(MAX_TRIPS):
            trip = self.cut(number, self.stage.dice.choice(list(Where)))
            if trip is None:
                break
            if trip.commits and not self.route.startswith("GET"):
                committing.append(number)
        for number in committing[-2:]:  # those before say who calls
            for where in Where:
                self.cut(number, where)

    def cut(self, number: int, where: Where) -> Trip | None:
        """Send the call and cut it; send it again if it may have been carried out. Returns the trip that was cut."""
        stage, key = self.stage, self.stage.scene.new("key") if self.has_key else None
        cut = Cut(number, where, stage.dice.choice(list(How)), stage.dice.random())
        if self.over_http is None:
            stage.forget()
        stage.proxy.set(cut)
        status = stage.send(self.route, self._call, key, self.over_http)
        trip = stage.proxy.cut_trip
        stage.proxy.set(None)
        said = f"{self.route} is answered {status}: {cut} in {trip}"
        assert status in {self._expected, 503}, said
        if trip is None:
            assert status == self._expected, said
        after = stage.effects()
        if after != self._before and status == 503:
            self._check_that_it_counts_once(key, after, said)
        elif status == 503 and trip is not None and trip.commits:
            # Until the server has noticed that the first one is gone.
            assert eventually(lambda: self._send(key) == self._expected), f"{said}; then it is refused"
        if stage.effects() != self._before:
            self._renew()
        return trip

    def _check_that_it_counts_once(self, key: str | None, after: dict[str, Any], said: str) -> None:
        expected = self._expected if key else REPEATED.get(self.route, self._expected)
        assert self._send(key) == expected, f"{said}; again"
        if self.route not in NEW_EACH_TIME:
            again = self.stage.effects()
            changed = {table for table in after if after[table] != again[table]}
            if not key:  # a like without a time happens now, each time
                changed -= {table for table in TIMES if after[table][0] == again[table][0]}
            assert not changed, f"{said}; again it changes {changed}"


def is_idempotent(app: Flask, route: str) -> bool:
    for rule in app.url_map.iter_rules():
        if any(f"{method} {rule.rule}" == route for method in rule.methods or ()):
            return hasattr(app.view_functions[rule.endpoint], "plaudit_idempotent")
    return False


def test_every_route_has_a_case(built_app: Flask) -> None:
    assert set(CASES) == routes(built_app, open_ones=True) | routes(built_app, open_ones=False)


@pytest.mark.parametrize("route", CASES)
def test_a_cut_connection_is_a_503_and_what_was_committed_counts_once(stage: Stage, route: str) -> None:
    clear_rate_limits()
    Walk(stage, route, has_key=is_idempotent(stage.app, route)).go()


@pytest.mark.parametrize("route", FAST)
def test_calls_without_a_key_count_once_by_their_own_id(stage: Stage, route: str) -> None:
    clear_rate_limits()
    Walk(stage, route).go()


@pytest.mark.parametrize("route", BOARDS)
def test_boards_that_are_read_without_redis(stage: Stage, route: str) -> None:
    with redis_unavailable():
        Walk(stage, route).go()


def test_what_the_event_loop_answers(stage: Stage) -> None:
    """Callers and pages are known, so the commit is cut, or the look-up that is made together with others."""
    with served(stage.app) as url:
        for route in FAST:
            Walk(stage, route, over_http=OverHttp(url)).go()


def test_who_opens_a_stream(stage: Stage, settings: Settings) -> None:
    scene, live = stage.next_scene(), create_live_app(replace(settings, service_database_url=stage.url))
    for number in range(MAX_TRIPS):
        ticket = scene.member("POST", "/api/v1/live/tickets").get_json()["ticket"]
        stage.forget()
        stage.proxy.set(Cut(number, stage.dice.choice(list(Where)), stage.dice.choice(list(How)), stage.dice.random()))
        answer = live.test_client().get(f"/api/v1/live/events?topic=tenant:1d:views&ticket={ticket}")
        answer.close()
        trip = stage.proxy.cut_trip
        stage.proxy.set(None)
        assert answer.status_code in ({200, 503} if trip else {200}), trip
        if trip is None:
            break


def test_a_connection_that_is_cut_as_it_opens(stage: Stage) -> None:
    scene = stage.next_scene()
    for where, how in product(Where, How):
        stage.forget()
        db.dispose()
        stage.proxy.opening = Cut(0, where, how)
        answer = scene.app("GET", "/api/v1/me")
        stage.proxy.opening = None
        assert answer.status_code == 503
        assert scene.app("GET", "/api/v1/me").status_code == 200, "at once"
