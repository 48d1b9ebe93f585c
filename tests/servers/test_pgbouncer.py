"""A node behind PgBouncer in transaction mode, with the settings of docs/operating.md."""

import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from rq import Queue
from rq.serializers import JSONSerializer

from tenants.queue import QUEUE
from tests.servers.nodes import Client, Node, Process, Traffic, counted, shared_env
from tests.servers.postgres import ONE_CONNECTION, PgBouncer, Postgres
from tests.servers.redis_cluster import RedisServer
from tests.service import eventually, plaudit

# For all processes of a node: fewer than its API alone may open.
POOL_SIZE = 8


@dataclass
class Site:
    node: Node
    client: Client
    postgres: Postgres
    bouncer: PgBouncer
    worker: Process


@pytest.fixture(scope="module")
def site(folder: Path, postgres: Postgres, redis: RedisServer) -> Iterator[Site]:
    """A node, and the only worker on a connection of its own."""
    with PgBouncer(folder / "pgbouncer", postgres, pool_size=POOL_SIZE) as bouncer:
        env = shared_env(database=bouncer.url(), redis=redis.url)
        with (
            Node(folder / "node", env, "--demo", "--no-traffic", "--workers", "0") as node,
            Process(
                "worker", data_dir=folder / "worker", env=env | {"DATABASE_URL": bouncer.url(ONE_CONNECTION)}
            ) as worker,
        ):
            client = Client(node.url, node.ready)
            client.prepare()
            yield Site(node, client, postgres, bouncer, worker)


def run(site: Site, *arguments: str, **env: str) -> "subprocess.CompletedProcess[str]":
    return plaudit(*arguments, data_dir=site.node.data_dir, env=site.node.env | env)


def test_a_backup_goes_past_the_pool_and_disturbs_nobody(site: Site, tmp_path: Path) -> None:
    refused = run(site, "backup", str(tmp_path / "refused"))
    assert refused.returncode == 1
    (line,) = refused.stderr.splitlines()
    assert "PLAUDIT_DIRECT_DATABASE_URL" in line
    before = counted(site.postgres)
    with Traffic(site.client) as traffic:
        traffic.wait_for(20)
        written = run(site, "backup", str(tmp_path / "written"), PLAUDIT_DIRECT_DATABASE_URL=site.postgres.url())
        assert written.returncode == 0, written.stderr
        traffic.wait_for(20)
    assert not traffic.refused
    assert counted(site.postgres) - before == traffic.acknowledged


def test_a_restore_goes_past_the_pool_and_is_refused_through_it(site: Site, tmp_path: Path) -> None:
    file, direct = str(tmp_path / "backup"), {"PLAUDIT_DIRECT_DATABASE_URL": site.postgres.url()}
    before = counted(site.postgres)
    assert run(site, "backup", file, **direct).returncode == 0
    assert site.client("POST", "/api/v1/pages/p1/views").status_code == 202
    refused = run(site, "restore", file, "--yes")
    assert refused.returncode == 1
    (line,) = refused.stderr.splitlines()
    assert "PLAUDIT_DIRECT_DATABASE_URL" in line
    assert counted(site.postgres) != before, "nothing was replaced"
    restored = run(site, "restore", file, "--yes", **direct)
    assert restored.returncode == 0, restored.stderr
    assert counted(site.postgres) == before
    eventually(lambda: site.client("POST", "/api/v1/pages/p1/views").status_code == 202)
    eventually(site.node.boards_are_right, every_s=0.5)


def test_a_direct_address_of_another_database_is_refused(site: Site, tmp_path: Path) -> None:
    """The pooler's name of the database is an alias here; what the server says decides."""
    env = site.node.env | {"DATABASE_URL": site.bouncer.url(ONE_CONNECTION)}
    site.postgres.execute("CREATE DATABASE plaudit2 OWNER plaudit")
    written = tmp_path / "written"
    right = env | {"PLAUDIT_DIRECT_DATABASE_URL": site.postgres.url()}
    done = plaudit("backup", str(written), data_dir=site.node.data_dir, env=right)
    assert done.returncode == 0, done.stderr
    said = "PLAUDIT_DIRECT_DATABASE_URL leads to another database (plaudit2) than DATABASE_URL (plaudit)"
    wrong = env | {"PLAUDIT_DIRECT_DATABASE_URL": site.postgres.url("plaudit2")}
    for command in (["backup", str(tmp_path / "refused")], ["restore", str(written), "--yes"], ["migrate"]):
        done = plaudit(*command, data_dir=site.node.data_dir, env=wrong)
        assert (done.returncode, done.stderr) == (1, f"plaudit: {said}\n")
    assert said in plaudit("doctor", data_dir=site.node.data_dir, env=wrong).stdout
    assert not site.postgres.execute("SELECT 1 FROM pg_tables WHERE schemaname = 'public'", database="plaudit2")
    nobody = wrong | {"DATABASE_URL": "postgresql://plaudit@127.0.0.1:1/plaudit", "REDIS_URL": "redis://127.0.0.1:1/0"}
    done = plaudit("restore", str(written), "--yes", data_dir=site.node.data_dir, env=nobody)
    assert done.returncode == 0, "the database that is to be replaced may be gone"


def test_a_worker_with_one_connection_does_all_of_its_work(site: Site, redis: RedisServer) -> None:
    """Projections, snapshots and checks never need a second connection while they have one."""
    assert site.client("PUT", "/api/v1/pages/p2/likes/ann").ok
    eventually(lambda: site.client.board()["source"] == "redis")
    eventually(lambda: "p2" in site.client.values())
    with redis.client() as queue:  # what cron does every minute
        Queue(QUEUE, connection=queue, serializer=JSONSerializer).enqueue("workers.jobs.refresh_snapshots")
    eventually(lambda: site.postgres.execute("SELECT 1 FROM leaderboard_snapshots LIMIT 1", database="plaudit"))
    through_one = site.node.env | {"DATABASE_URL": site.bouncer.url(ONE_CONNECTION)}
    for command in ("rebuild", "check"):
        done = plaudit(command, data_dir=site.node.data_dir, env=through_one)
        assert done.returncode == 0, done.stderr
    assert "failed" not in site.worker.log_text()


def test_without_postgres_requests_are_answered_within_seconds_and_recover(site: Site) -> None:
    assert site.client("POST", "/api/v1/pages/p1/views").status_code == 202
    site.postgres.stop()
    try:
        for _ in range(5):
            began = time.monotonic()
            answer = site.client("POST", "/api/v1/pages/p1/views", timeout_s=60)
            assert time.monotonic() - began < 8
            assert answer.status_code == 503
            assert "Retry-After" in answer.headers
        assert site.node.get("/health/ready").status_code == 503
    finally:
        site.postgres.start()
    eventually(lambda: site.node.get("/health/ready").ok, within_s=30)
    eventually(lambda: site.client("POST", "/api/v1/pages/p1/views").status_code == 202, within_s=10)
    eventually(site.node.boards_are_right, every_s=0.5)
