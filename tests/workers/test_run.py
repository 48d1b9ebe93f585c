"""Jobs run on a real RQ worker, and a restart of Redis under it is survived."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
import requests
from rq import Queue
from rq.registry import StartedJobRegistry
from rq.serializers import JSONSerializer

from analytics import outbox
from analytics.boards import projection
from analytics.outbox import Kind
from app.run import data_folder
from app.run.local_servers import LocalServers
from app.run.ports import reserve_port
from app.settings import Settings
from tenants import queue as tenants_queue
from tenants import redis as tenants_redis
from tenants.db import tenant_tx, utcnow
from tenants.redis_addresses import shown
from tests.conftest import reachable_folder
from tests.secrets_seen import LOG_FOLDER
from tests.service import ROOT, eventually
from tests.tenants.test_redis import refused_address
from tests.workers.conftest import delete, is_there
from workers import run


@pytest.fixture
def workers_env(settings: Settings) -> dict[str, str]:
    env = dict(os.environ) | {"DATABASE_URL": settings.database_url or "", "REDIS_URL": settings.redis_url or ""}
    if settings.service_database_url:
        env["PLAUDIT_SERVICE_DATABASE_URL"] = settings.service_database_url
    return env


@pytest.fixture
def processes() -> Iterator[list["subprocess.Popen[bytes]"]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            pytest.fail(f"{process.args!r} did not stop on SIGTERM")


LOG = LOG_FOLDER / "workers.txt"


def start(name: str, env: dict[str, str]) -> "subprocess.Popen[bytes]":
    with LOG.open("a") as log:
        return subprocess.Popen([sys.executable, "-m", "workers", name], cwd=ROOT, env=env, stdout=log)


@pytest.mark.parametrize("name", ["worker", "cron"])
@pytest.mark.parametrize("wrong", ["password", "database"])
def test_an_address_that_redis_refuses_ends_a_process_with_one_line(
    name: str, wrong: str, workers_env: dict[str, str]
) -> None:
    if not urlsplit(workers_env["REDIS_URL"]).password:
        pytest.skip("the operator's server asks for no password")
    env = workers_env | {"REDIS_URL": refused_address(workers_env["REDIS_URL"], wrong)}
    command = [sys.executable, "-m", "workers", name]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("plaudit: Redis refuses the login or the database (")
    assert line.endswith("): check REDIS_URL")
    assert "not-the-password" not in line


def test_cron_enqueues_and_a_worker_runs_and_both_serve_the_machines_metrics(
    tenant: str, workers_env: dict[str, str], processes: list["subprocess.Popen[bytes]"]
) -> None:
    port = reserve_port()
    workers_env["PLAUDIT_METRICS_PORT"] = str(port)

    def scrape() -> str:
        return requests.get(f"http://127.0.0.1:{port}/metrics", timeout=10).text

    processes += [start("worker", workers_env)]
    eventually(scrape)
    processes += [start("cron", workers_env)]
    delete(tenant)
    eventually(lambda: not is_there(tenant), within_s=90)
    assert "plaudit_queue_depth" in scrape()
    queue = shown(run.queue_url(Settings.from_env(workers_env)))
    for name in ("worker", "cron"):
        assert f'"{name}.started","message":"started","data":{{"queue":"{queue}"}}' in LOG.read_text()
    processes[0].kill()
    processes[0].wait()
    assert "plaudit_queue_depth" in eventually(scrape), "the other process listens now"


def test_a_worker_that_starts_does_what_a_killed_one_was_to_do(
    tenant: str, queue: Queue, workers_env: dict[str, str], processes: list["subprocess.Popen[bytes]"]
) -> None:
    """Without cron, and so without a sweep."""
    with tenants_redis.queue().client() as client:
        client.set(tenants_redis.key("wake", tenant), "1", ex=600)
    with tenant_tx(tenant) as tx:
        outbox.mark_stale(tx, Kind.PAGE, [1])
    queue.empty()  # type: ignore[no-untyped-call]
    processes += [start("worker", workers_env)]
    eventually(lambda: tenant not in projection.stale_tenants(now=utcnow()))


def test_a_restart_of_redis_is_survived(
    tenant: str,
    other_tenant: str,
    settings: Settings,
    workers_env: dict[str, str],
    processes: list["subprocess.Popen[bytes]"],
) -> None:
    with reachable_folder() as folder, data_folder.lock_servers(data_folder.prepare(folder), "command") as lock:
        servers = LocalServers(folder, lock)
        server, redis_url = servers.valkey(), servers.addresses.redis_url
        redis = server.start(stdout=subprocess.DEVNULL)
        tenants_redis.configure(boards_url=redis_url, queue_url=redis_url)
        eventually(lambda: tenants_redis.make_client(redis_url).ping())
        processes += [start("worker", workers_env | {"REDIS_URL": redis_url})]

        delete(tenant)
        tenants_queue.enqueue("workers.jobs.purge_deleted_tenants")
        # With its job, which also purges whatever other tests have deleted, and would log that it cannot.
        eventually(lambda: not is_there(tenant) and not _started_jobs(redis_url))

        began = LOG.stat().st_size
        redis.kill()
        redis.wait()
        eventually(lambda: "redis.outage" in LOG.read_text()[began:])
        time.sleep(1)  # RQ tries again meanwhile, which is not logged
        redis = server.start(stdout=subprocess.DEVNULL)
        eventually(lambda: tenants_redis.make_client(redis_url).ping())
        delete(other_tenant)
        # The first may find the connection to the old server; in life the schedule asks again.
        purge, sweep = "workers.jobs.purge_deleted_tenants", "workers.jobs.sweep"
        eventually(lambda: _enqueued(purge) and not is_there(other_tenant), within_s=30, every_s=1)
        assert processes[0].poll() is None, "the same worker did it"
        eventually(lambda: _enqueued(sweep) and "redis.recovered" in LOG.read_text()[began:], every_s=1)
        lines = [json.loads(line) for line in LOG.read_text()[began:].splitlines()]
        told = [
            (line["level"], line["action"]) for line in lines if line["level"] != "info" or "redis" in line["action"]
        ]
        assert told == [("critical", "redis.outage"), ("info", "redis.recovered")], "one line each, whatever RQ says"
        for process in processes:
            process.terminate()
            process.wait(10)
        server.stop(redis)


def _started_jobs(redis_url: str) -> int:
    registry = StartedJobRegistry(
        tenants_queue.QUEUE, connection=tenants_redis.make_client(redis_url), serializer=JSONSerializer
    )
    return int(registry.count)


def _enqueued(job: str) -> bool:
    try:
        tenants_queue.enqueue(job)
    except tenants_redis.RedisUnavailable:
        return False
    return True
