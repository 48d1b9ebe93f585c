"""Real servers for every test: local ones, or those that DATABASE_URL and REDIS_URL name (PLAUDIT_TEST_CITUS_URL)."""

import contextlib
import gc
import json
import math
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import pytest
from argon2 import PasswordHasher
from flask import Flask
from flask.testing import FlaskClient
from psycopg import sql
from sqlalchemy import Engine
from sqlalchemy.engine import make_url
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from app.http.services import services_of
from app.run import data_folder
from app.run.data_folder import Addresses
from app.run.local_servers import LocalServers, started
from app.settings import Settings
from app.web import connect, create_app, install_services
from migrations.run import migrate
from tenants import db, logs, passwords, platform_calls, registry
from tenants import redis as tenants_redis
from tenants.db import owner_tx, utcnow
from tenants.engines import make_engine
from tenants.redis_cluster import GuardedCluster
from tests import citus, recorded_sql, secrets_seen
from tests.contract import conformity
from tests.secrets_seen import LOG_FOLDER, LOGS
from tests.servers import suites
from tests.service import PREPARED_IN, Service, copy_prepared, running_service


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--servers", choices=list(suites.SERVERS), help="run on these servers: see make test-servers")


def pytest_sessionstart(session: pytest.Session) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what runs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)  # what tests start inherits it
    if is_first_process():
        shutil.rmtree(LOGS, ignore_errors=True)
        os.environ[PREPARED_IN] = str(make_reachable_folder())  # the other processes inherit it


def pytest_collection() -> None:
    gc.disable()  # modules are loaded, which stay: there is hardly any garbage to find


def pytest_collection_finish() -> None:
    """Spare every later search for garbage what is here to stay: libraries, modules and tests."""
    gc.freeze()
    gc.enable()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """No password, secret, token or key is in any log line of the whole run."""
    secrets_seen.save()
    if is_first_process():
        shutil.rmtree(os.environ.pop(PREPARED_IN), ignore_errors=True)
    if is_first_process() and (leaked := secrets_seen.leaks(LOGS)):
        sys.stderr.write(
            f"\n{len(leaked)} secrets are in the logs below {LOGS}: {[secret[:12] + '…' for secret in leaked]}\n"
        )
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


# The slowest files start first, so that no pytest process is still busy with one when the others are done.
SLOW = [
    # Not slow on a new database: they go over whatever other tests left.
    "tests/workers/test_run.py",
    "tests/workers/test_jobs.py",
    "tests/workers/test_schedule.py",
    "tests/analytics/test_maintenance.py",
    # With all tests that share its service.
    "tests/browser/test_dashboard.py",
    "tests/faults/test_live.py",
    "tests/faults/test_cut_connections.py",
    "tests/analytics/boards/test_model.py",
    "tests/faults/test_neighbours.py",
    "tests/faults/test_up.py",
    "tests/faults/test_killed_up.py",
    "tests/faults/test_boards.py",
    "tests/faults/test_terminal.py",
    "tests/faults/test_scores.py",
    "tests/faults/test_ingest.py",
    "tests/attacks/test_exports.py",
    "tests/app/run/test_server_roles.py",
    "tests/app/run/test_backups.py",
    "tests/analytics/ingest/test_group_commit.py",
    "tests/analytics/ingest/test_imports.py",
    "tests/app/live/test_server.py",
    "tests/app/live/test_admission.py",
    "tests/browser/test_nginx.py",
    "tests/analytics/test_metrics.py",
    "tests/app/api/test_logins.py",
    "tests/app/http/test_fast_reads.py",
]
# Tests that share one of these session fixtures: each set runs in one pytest process, which starts it once. Those of
# the demo are two sets: as one, they would still run when all others are done.
SHARED_BY = [
    (
        "demo_service",
        {
            "tests/browser/test_dashboard.py",
            "tests/browser/test_dashboard_admin.py",
            "tests/browser/test_dashboard_people.py",
            "tests/browser/test_quests.py",
            "tests/browser/test_script.py",
            "tests/browser/test_single_page.py",
            "tests/browser/test_widgets.py",
        },
    ),
    (
        "demo_service",
        {
            "tests/app/api/test_oauth.py",
            "tests/attacks/test_raw_requests.py",
            "tests/faults/test_revocation.py",
            "tests/faults/test_up.py::test_a_folder_in_use_is_reported_in_one_line",
            "tests/faults/test_up.py::test_it_starts_again_on_the_same_data_after_a_stop_and_after_a_kill",
            "tests/loadtests/test_run.py",
        },
    ),
    (
        "running_servers",
        {
            "tests/app/run/test_local_servers.py",
            "tests/app/run/test_probes.py",
            "tests/app/run/test_server_roles.py",
            "tests/app/run/test_server_settings.py",
            "tests/app/run/test_server_user.py",
        },
    ),
]
# Their tests share no service, so they may run in several pytest processes.
INDEPENDENT_TESTS = {"tests/faults/test_up.py", "tests/faults/test_killed_up.py"}
# Names that a module imports to start Plaudit's processes or a browser.
STARTERS = {"Browser", "PLAUDIT", "Live", "Service", "copy_prepared", "plaudit", "running_service", "servers_of"}
# Fixtures that do so.
STARTING = {"on_ours", "on_ours_empty", "processes", "web"}
# What a whole run has in its temporary folders, with room to spare.
MEMORY_BYTES = 8 * 2**30
REDIS_TIMEOUT_S = 10.0


class ByService(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Which tests run in one of pytest's processes, one after the other: those that share something costly."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        for number, (fixture, users) in enumerate(SHARED_BY):
            if {file, nodeid} & users:
                return f"{fixture} {number}"
        return nodeid if file in INDEPENDENT_TESTS else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByService:
    return ByService(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {name: number for number, name in enumerate(SLOW)}
    items.sort(key=lambda item: place.get(item.nodeid.partition("::")[0], len(SLOW)))
    for item in items:
        assert isinstance(item, pytest.Function)
        if STARTERS & vars(item.module).keys() or STARTING & {*item.fixturenames}:
            item.add_marker("processes")
        for fixture in {*item.fixturenames} & {fixture for fixture, _ in SHARED_BY}:
            listed = set().union(*(users for shared, users in SHARED_BY if shared == fixture))
            assert {item.nodeid, item.nodeid.partition("::")[0]} & listed, f"{item.nodeid} belongs to {fixture}"


def is_first_process() -> bool:
    """Whether this is the only pytest process, or the one that controls the others."""
    return "PYTEST_XDIST_WORKER" not in os.environ


@pytest.fixture(scope="session", autouse=True)
def log_file() -> Path:
    """Every log line of this process, as JSON. (The services that tests start write theirs beside it.)"""
    LOG_FOLDER.mkdir(parents=True, exist_ok=True)
    file = LOG_FOLDER / "tests.jsonl"
    stream = file.open("w", buffering=1)  # never closed: a thread may log until the process ends
    logs.configure(service="tests", log_format="json", stream=stream)
    return file


@pytest.fixture(scope="session", autouse=True)
def watched_sql() -> None:
    recorded_sql.watch()


@pytest.fixture(autouse=True)
def _statements_keep_the_rules(watched_sql: None) -> Iterator[None]:
    """Whatever a test has our code execute is a statement of one tenant: see tests/rules/test_sql.py."""
    yield
    assert recorded_sql.take() == []


@pytest.fixture(autouse=True)
def _answers_keep_the_contract() -> Iterator[None]:
    """Whatever a test is answered is what the OpenAPI document says: see tests/contract/conformity.py."""
    yield
    assert conformity.take() == []


@pytest.fixture
def logged(log_file: Path) -> Callable[[], list[dict[str, Any]]]:
    """The lines logged since the test began."""
    began = log_file.stat().st_size

    def lines() -> list[dict[str, Any]]:
        with log_file.open() as stream:
            stream.seek(began)
            return [json.loads(line) for line in stream]

    return lines


@pytest.fixture(scope="session")
def servers(request: pytest.FixtureRequest) -> Iterator[Addresses]:
    """A PostgreSQL and a Redis for this run."""
    if kind := request.config.getoption("--servers"):
        with reachable_folder() as folder, suites.SERVERS[kind](folder) as addresses:
            yield addresses
        return
    database_url, redis_url = os.environ.pop("DATABASE_URL", citus.URL), os.environ.pop("REDIS_URL", None)
    if redis_url is None:
        os.environ.pop("PLAUDIT_QUEUE_REDIS_URL", None)  # it would be emptied
    if database_url and redis_url:
        yield Addresses(database_url, "", redis_url)
        return
    with reachable_folder() as folder, data_folder.lock_servers(copy_prepared(folder / "data"), "command") as lock:
        local = LocalServers(folder / "data", lock, durable=False)
        with started(local, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
            own = local.addresses
            with psycopg.connect(local.logins.superuser_url) as server:
                # A database for this run, dropped at its end whoever is still connected.
                server.execute("ALTER ROLE plaudit CREATEDB; GRANT pg_signal_backend TO plaudit")
            yield Addresses(
                database_url=database_url or own.database_url,
                service_database_url="" if database_url else own.service_database_url,
                redis_url=redis_url or own.redis_url,
            )


@pytest.fixture(scope="session")
def addresses(servers: Addresses) -> Iterator[Addresses]:
    """A fresh, migrated database and an empty Redis."""
    with fresh_database(servers) as fresh:
        for url in {fresh.redis_url, queue_url(fresh)}:
            client = tenants_redis.make_client(url, timeout_s=5)
            client.flushdb()
            client.close()
        yield fresh
        db.dispose()


@contextlib.contextmanager
def fresh_database(servers: Addresses) -> Iterator[Addresses]:
    """The servers' addresses with a migrated database of its own, empty and dropped at the end of the block."""
    name = f"plaudit_test_{secrets.token_hex(6)}"
    if servers.database_url == citus.URL:
        with citus.new_database(name) as url:
            citus.distribute(url)
            yield replace(servers, database_url=url)
        return
    # The prepared server has an empty, migrated database to copy; a configured one may not.
    template = " TEMPLATE plaudit" if servers.service_database_url else ""
    with psycopg.connect(servers.database_url, autocommit=True) as server:
        server.execute(sql.SQL("CREATE DATABASE {}" + template).format(sql.Identifier(name)))
    fresh = Addresses(
        database_url=_renamed(servers.database_url, name),
        service_database_url=_renamed(servers.service_database_url, name) if servers.service_database_url else "",
        redis_url=servers.redis_url,
    )
    if not template:
        engine = make_engine(fresh.database_url, pool_size=1)
        migrate(engine, service_url=None)
        engine.dispose()
    try:
        yield fresh
    finally:
        with psycopg.connect(servers.database_url, autocommit=True) as server:
            server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture(scope="session")
def settings(addresses: Addresses) -> Settings:
    return replace(
        Settings.from_env({"PLAUDIT_SECRET_KEY": "test-secret-key-" * 4}),
        database_url=addresses.database_url,
        service_database_url=addresses.service_database_url or None,
        redis_url=addresses.redis_url,
        queue_redis_url=queue_url(addresses),
    )


def queue_url(addresses: Addresses) -> str:
    """The queue's Redis: that of the boards, unless it has one of its own."""
    return os.environ.get("PLAUDIT_QUEUE_REDIS_URL") or addresses.redis_url


@pytest.fixture(scope="session", autouse=True)
def quick_passwords() -> Iterator[None]:
    """argon2id with its smallest parameters: hundreds of tests log a user in. (Whole services use the real ones.)"""
    cheapest = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passwords, "_hasher", cheapest)
        yield


@pytest.fixture(scope="session", autouse=True)
def patient_probe() -> Iterator[None]:
    """On a busy machine PostgreSQL may answer late. (Tests of one that hangs set the real time.)"""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(platform_calls, "PROBE_WITHIN_S", 10.0)
        yield


@pytest.fixture(scope="session")
def built_app(settings: Settings) -> Flask:
    """One application for all tests: its routes and its contract take long to build, and have no state."""
    flask = create_watched_app(settings)
    flask.after_request(conformity.watch)
    flask.test_client().get("/health/live")  # from now on Flask refuses new routes, which would affect other tests
    return flask


def create_watched_app(settings: Settings) -> Flask:
    flask = create_app(settings)
    flask.after_request(secrets_seen.watch)
    return flask


@pytest.fixture
def app(built_app: Flask, settings: Settings) -> Iterator[Flask]:
    """The application, with keys, caches and a Redis client of this test's own. (For new routes: `own_app`.)"""
    reconnect(settings)
    install_services(built_app, settings)
    clear_rate_limits()
    yield built_app
    services_of(built_app).boards.close()


@pytest.fixture
def own_app(settings: Settings) -> Iterator[Flask]:
    """An application of this test's own, to which it can add routes."""
    flask = create_watched_app(settings)
    clear_rate_limits()
    yield flask
    services_of(flask).boards.close()


_engine_of_tests: list[Engine] = []


def reconnect(settings: Settings) -> None:
    """Connect this process to the tests' servers, whatever the test before did.

    The database's engine stays if the test before did not replace it: its pool and its compiled statements are costly
    and have no state. Redis gets a new client, whose breaker is closed, and which waits longer than a request may: on a
    busy machine an answer may be late. (Tests of a Redis that hangs have clients or processes of their own.)
    """
    if not _engine_of_tests or db.owner_engine() is not _engine_of_tests[0]:
        connect(settings)
        _engine_of_tests[:] = [db.owner_engine()]
    tenants_redis.configure(
        boards_url=settings.redis_url or "", queue_url=settings.queue_redis_url or "", boards_timeout_s=REDIS_TIMEOUT_S
    )


def clear_rate_limits() -> None:
    """Attempts of another test must not limit this one."""
    with contextlib.suppress(tenants_redis.RedisUnavailable), tenants_redis.boards().client() as redis:
        for key in redis.scan_iter("lim*", count=10_000):
            redis.delete(key)


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    return app.test_client()


@pytest.fixture
def connected(app: Flask) -> None:
    """The database and Redis, for tests of the domain."""


@contextlib.contextmanager
def redis_unavailable() -> Iterator[None]:
    """Neither the boards' nor the queue's Redis is available: their breakers are open and stay open."""
    with pytest.MonkeyPatch.context() as patch:
        for guarded in (tenants_redis.boards(), tenants_redis.queue()):
            if isinstance(guarded, GuardedCluster):
                patch.setattr(guarded.redis.nodes, "_owners", [])
                patch.setattr(guarded.redis.nodes, "_update_due_at", math.inf)
            patch.setattr(guarded, "_down_since", 0.0)
            patch.setattr(guarded, "_next_probe_at", math.inf)
        yield


@pytest.fixture
def no_redis(connected: None) -> Iterator[None]:
    """Redis is unavailable from here on. (For a part of a test: `redis_unavailable`.)"""
    with redis_unavailable():
        yield


@pytest.fixture
def tenant(connected: None) -> str:
    """A tenant of this test's own."""
    return make_tenant()


@pytest.fixture
def other_tenant(connected: None) -> str:
    return make_tenant()


@pytest.fixture(scope="session")
def demo_service() -> Iterator[Service]:
    """A whole Plaudit with the demo tenant, shared by tests that undo what they change."""
    with reachable_folder() as folder, running_service(folder / "data", "--demo", "--no-traffic") as running:
        yield running


def make_tenant() -> str:
    tenant_id = f"t{secrets.token_hex(6)}"
    with owner_tx() as tx:
        registry.create(tx, tenant_id, name=f"Tenant {tenant_id}", now=utcnow())
    return tenant_id


def make_reachable_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="plaudit-test-", dir=memory()))
    folder.chmod(0o711)
    return folder


@cache
def memory() -> Path | None:
    """A file system in memory, if there is one with room: a server's thousands of files are made sooner there."""
    folder = Path("/dev/shm")
    return folder if os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > MEMORY_BYTES else None


@contextlib.contextmanager
def reachable_folder() -> Iterator[Path]:
    """A folder the servers' user can reach even when root runs the tests (pytest's own are closed to others)."""
    folder = make_reachable_folder()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _renamed(url: str, database: str) -> str:
    return make_url(url).set(database=database).render_as_string(hide_password=False)
