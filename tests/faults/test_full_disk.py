"""A full disk: reads go on, writes are refused, none of our processes ends, and all is well once there is space."""

import contextlib
import os
import resource
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
import psycopg
import pytest
import requests
from redis import Redis
from redis.exceptions import ResponseError
from sqlalchemy.engine import make_url

from analytics.boards import projection
from app.run.data_folder import Addresses, read_secrets, read_state
from app.run.ports import reserve_port
from app.run.server_files import wheel_binaries
from app.run.server_roles import SUPERUSER_LOGIN
from app.settings import Settings
from tenants.db import utcnow
from tests.app.conftest import with_settings
from tests.people import client_of
from tests.secrets_seen import LOG_FOLDER
from tests.service import PLAUDIT, ROOT, Service, eventually, running_service
from tests.small_disk import SmallDisk, small_disk

# What PostgreSQL needs at first are 65.
MEGABYTES = 300


@pytest.fixture(scope="module")
def disk() -> Iterator[SmallDisk]:
    with small_disk(MEGABYTES) as mounted:
        yield mounted


@pytest.fixture(scope="module")
def service(disk: SmallDisk) -> Iterator[Service]:
    (disk.folder / "tmp").mkdir()
    env = {"TMPDIR": str(disk.folder / "tmp")}
    with running_service(disk.folder / "data", "--demo", "--no-traffic", env=env) as running:
        keep_catalogs_as_they_are(running)
        yield running


def keep_catalogs_as_they_are(service: Service) -> None:
    """A vacuum of PostgreSQL's own tables deletes a file that the next login writes: without space, no login works."""
    state = read_state(service.data_dir)
    assert state is not None
    address = make_url(state["addresses"]["database_url"])
    password = read_secrets(service.data_dir)["superuser_password"]
    owner = address.set(username=SUPERUSER_LOGIN, password=password)
    with psycopg.connect(owner.render_as_string(hide_password=False), autocommit=True) as server:
        server.execute("ALTER SYSTEM SET autovacuum = off")
        server.execute("SELECT pg_reload_conf()")


class Caller:
    """The calls of a site, each another one than before, so that no answer is kept."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._headers = {"Authorization": f"Bearer {service.token()}"}
        self._calls = 0

    def call(self, method: str, path: str, **options: object) -> requests.Response:
        url = self._service.url + path
        return requests.request(method, url, headers=self._headers, timeout=20, **options)  # type: ignore[arg-type]

    def reads(self) -> list[requests.Response]:
        self._calls += 1
        limit = 1 + self._calls % 90
        paths = (
            f"/api/v1/leaderboards?scope=tenant&window=7d&metric=views&limit={limit}",
            f"/api/v1/pages?limit={limit}",
            f"/api/v1/pages/p{self._calls % 3}",
            f"/api/v1/pages/p{self._calls % 3}/stats",
            "/api/v1/settings",
        )
        return [self.call("GET", path) for path in paths]

    def writes(self) -> list[requests.Response]:
        self._calls += 1
        events = [{"type": "view", "page": f"p{number % 3}", "user": uuid.uuid4().hex} for number in range(500)]
        page = {"space": "s", "title": "t" * 200, "url": f"https://w.example/{uuid.uuid4().hex}"}
        return [
            self.call("POST", "/api/v1/events", json={"events": events}),
            self.call("POST", f"/api/v1/pages/p{self._calls % 3}/views", json={"user": uuid.uuid4().hex}),
            self.call("PUT", f"/api/v1/pages/p{self._calls % 3}/likes/{uuid.uuid4().hex}"),
            self.call("PUT", f"/api/v1/pages/{uuid.uuid4().hex}", json=page),
        ]


@pytest.fixture(scope="module")
def caller(service: Service) -> Caller:
    caller = Caller(service)
    for number in range(3):
        page = {"space": "s", "title": "t", "url": f"https://w.example/{number}"}
        assert caller.call("PUT", f"/api/v1/pages/p{number}", json=page).status_code == 201
    return caller


def ours(service: Service) -> set[psutil.Process]:
    """All processes but PostgreSQL's, which come and go."""
    found = set()
    for process in service.everything():
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.name() != "postgres":
                found.add(process)
    return found


def write_to_log(service: Service, megabytes: int) -> int:
    """Fill PostgreSQL's log of what it writes; returns how much of its file's 16 megabytes is used."""
    state = read_state(service.data_dir)
    assert state is not None
    with psycopg.connect(state["addresses"]["database_url"], autocommit=True) as owner:
        owner.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', %s))", [megabytes * 1_000_000])
        found = owner.execute("SELECT (pg_walfile_name_offset(pg_current_wal_insert_lsn())).file_offset").fetchone()
    assert found is not None
    return int(found[0]) // 1_000_000


def is_well(caller: Caller) -> bool:
    return all(answer.ok for answer in [*caller.reads(), *caller.writes()])


def test_a_full_disk_refuses_writes_and_no_read(service: Service, disk: SmallDisk, caller: Caller) -> None:
    before = ours(service)
    assert is_well(caller)
    eventually(lambda: write_to_log(service, 1) < 4, every_s=0)  # the rest of the file is there already
    disk.fill()
    try:
        refused: set[str] = set()
        rounds_read = 0
        until = time.monotonic() + 60
        while len(refused) < 4 and time.monotonic() < until:
            read, written = caller.reads(), dict(zip(("batch", "view", "like", "page"), caller.writes(), strict=True))
            if "PANIC" in service.log_text():  # also its log has no space: see below
                break
            assert [answer.status_code for answer in read] == [200] * 5
            rounds_read += 1
            for name, answer in written.items():
                if not answer.ok:  # there may be room for some more rows
                    assert (answer.status_code, answer.json()["code"]) == (503, "database_unavailable"), answer.text
                    assert int(answer.headers["Retry-After"]) >= 1
                    refused.add(name)
        assert "batch" in refused
        assert rounds_read
    finally:
        disk.free()
    eventually(lambda: is_well(caller))
    assert ours(service) == before
    assert "metrics.unwritten" not in service.log_text()


def test_a_web_process_that_starts_on_a_full_disk_serves(service: Service, disk: SmallDisk, caller: Caller) -> None:
    web = service.processes()["web"]
    before = set(web.children())
    disk.fill()
    try:
        min(before, key=lambda process: process.pid).kill()
        eventually(lambda: (new := set(web.children()) - before) and all(one.num_threads() > 1 for one in new))
        assert eventually(lambda: [answer.status_code for answer in caller.reads()] == [200] * 5)
        assert caller.call("GET", "/metrics").status_code == 200
    finally:
        disk.free()
    eventually(lambda: is_well(caller))


def test_postgres_without_space_for_its_log_answers_again_when_there_is_some(
    service: Service, disk: SmallDisk, caller: Caller
) -> None:
    """It panics then, and again whenever it is started; our processes wait for it."""
    before = ours(service)
    disk.fill()
    try:
        with contextlib.suppress(psycopg.OperationalError):
            for _ in range(2 * MEGABYTES // 8):
                write_to_log(service, 8)
        said = eventually(lambda: [answer for answer in caller.reads() if answer.status_code == 503])
        assert {answer.json()["code"] for answer in said} == {"database_unavailable"}
        eventually(lambda: service.log_text().count("restarting it in 5 s"), within_s=90)  # the longest there is
    finally:
        disk.free()
    freed = time.monotonic()
    eventually(lambda: is_well(caller))
    assert time.monotonic() - freed < 30, "alone it takes some 6 s"
    assert ours(service) == before


def without_files() -> None:
    """No regular file can be written, as if every disk were full: also that of the log."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


@pytest.mark.parametrize("name", ["web", "live", "worker", "cron"])
def test_a_process_that_can_write_no_file_starts_and_works(
    name: str, settings: Settings, addresses: Addresses, tmp_path: Path
) -> None:
    port = reserve_port()
    env = os.environ | {
        "DATABASE_URL": addresses.database_url,
        "PLAUDIT_SERVICE_DATABASE_URL": addresses.service_database_url,
        "REDIS_URL": addresses.redis_url,
        "PLAUDIT_SECRET_KEY": settings.secret_key or "",
        "PROMETHEUS_MULTIPROC_DIR": str(tmp_path),
        "PLAUDIT_METRICS_PORT": str(port),
        "LOG_FORMAT": "json",
    }
    command = (
        [*PLAUDIT, name, "--port", str(port)] if name in {"web", "live"} else [sys.executable, "-m", "workers", name]
    )
    with (LOG_FOLDER / f"full-{name}.log").open("ab") as log:
        process = psutil.Popen(command, stdout=log, stderr=log, cwd=ROOT, env=env, preexec_fn=without_files)
    try:
        get = partial(requests.get, timeout=5)
        eventually(lambda: get(f"http://127.0.0.1:{port}/health/live").ok)
        began = [process, *process.children(recursive=True)]
        for _ in range(50):
            assert get(f"http://127.0.0.1:{port}/nothing-here").status_code == 404
        assert get(f"http://127.0.0.1:{port}/metrics").status_code == 200
        assert [process, *process.children(recursive=True)] == began
        assert all(one.status() != psutil.STATUS_ZOMBIE for one in began)
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
    assert process.returncode is not None


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[Redis]:
    """A Valkey that saves what it has, and refuses writes once it cannot (MISCONF)."""
    dumps, port = tmp_path / "dumps", reserve_port()
    dumps.mkdir()
    options = [
        "--port",
        str(port),
        "--dir",
        str(dumps),
        "--save",
        "3600 1",
        "--bind",
        "127.0.0.1",
        "--loglevel",
        "warning",
    ]
    with (LOG_FOLDER / "full-valkey.log").open("ab") as log:
        server = subprocess.Popen([str(wheel_binaries().valkey), *options], stdout=log, stderr=log)
    client = Redis(port=port)
    try:
        eventually(client.ping)
        yield client
    finally:
        client.close()
        server.kill()
        server.wait()


def has_no_disk(redis: Redis, folder: Path) -> None:
    redis.set("anything", 1)
    shutil.rmtree(folder / "dumps")
    redis.bgsave()
    eventually(lambda: redis.info("persistence")["rdb_last_bgsave_status"] == "err")
    with pytest.raises(ResponseError, match="MISCONF"):
        redis.set("anything", 2)


def has_no_memory(redis: Redis, _folder: Path) -> None:
    redis.config_set("maxmemory", 1)
    with pytest.raises(ResponseError, match="maxmemory"):
        redis.set("anything", 2)


@pytest.mark.parametrize("refuse", [has_no_disk, has_no_memory])
def test_a_redis_that_refuses_writes_costs_no_read_and_no_write(
    refuse: Callable[[Redis, Path], None], own_redis: Redis, settings: Settings, tmp_path: Path, tenant: str
) -> None:
    url = f"redis://127.0.0.1:{own_redis.connection_pool.connection_kwargs['port']}/0"
    site = client_of(with_settings(settings, redis_url=url, queue_redis_url=url), tenant)
    page = {"space": "s", "title": "t", "url": "https://w.example/1"}
    assert site("PUT", "/api/v1/pages/p1", json=page).status_code == 201
    assert site("POST", "/api/v1/pages/p1/views", json={}).status_code == 202
    projection.bring_up_to_date(tenant, now=utcnow)
    board = "/api/v1/leaderboards?scope=tenant&window=7d&metric=views"
    assert site("GET", board).get_json()["source"] == "redis"
    refuse(own_redis, tmp_path)
    for number in range(20):
        assert site("GET", f"{board}&limit={number + 1}").get_json()["items"][0]["value"] >= 1
        for answer in (
            site("GET", "/api/v1/pages"),
            site("GET", "/api/v1/pages/p1/stats"),
            site("POST", "/api/v1/pages/p1/views", json={}),
            site("PUT", f"/api/v1/pages/p1/likes/u{number}"),
            site("POST", "/api/v1/live/tickets"),
        ):
            assert answer.status_code in {200, 201, 202}, answer.text
        projection.bring_up_to_date(tenant, now=utcnow)
    eventually(lambda: site("GET", "/api/v1/pages/p1/stats").get_json()["likes"]["all"] == 20)
