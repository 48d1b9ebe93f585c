"""Workers that are started while PostgreSQL cannot be used: they wait for it, and take no job meanwhile."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from rq import Queue
from rq.serializers import JSONSerializer

from tenants.queue import QUEUE
from tests.servers.nodes import Process, shared_env
from tests.servers.postgres import Postgres
from tests.servers.redis_cluster import RedisServer
from tests.service import eventually, plaudit


def test_a_server_that_is_down_and_then_read_only_is_waited_for_before_any_job(
    folder: Path, postgres: Postgres, redis: RedisServer
) -> None:
    env = shared_env(database=postgres.url(), redis=redis.url)
    assert plaudit("migrate", data_dir=folder / "commands", env=env).returncode == 0
    postgres.set("default_transaction_read_only", "on")
    postgres.stop()
    with redis.client() as client, Process("worker", data_dir=folder / "worker", env=env) as worker:
        queue = Queue(QUEUE, connection=client, serializer=JSONSerializer)
        job = queue.enqueue("workers.jobs.purge_deleted_tenants")
        (awaited,) = eventually(lambda: lines(worker))
        assert awaited["level"] == "warning"
        assert "Connection refused" in awaited["data"]["error"]
        postgres.start()
        eventually(lambda: postgres.execute("SHOW default_transaction_read_only") == [("on",)])
        assert [line["action"] for line in lines(worker)] == ["database.awaited"]
        assert job.get_status() == "queued"
        postgres.set("default_transaction_read_only", "off")
        eventually(lambda: job.get_status() == "finished")
        said = [line["action"] for line in lines(worker)]
        assert said[:3] == ["database.awaited", "database.available", "worker.started"], "and then what jobs say"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_that_waits_can_be_stopped(folder: Path, redis: RedisServer, number: signal.Signals) -> None:
    env = shared_env(database="postgresql://plaudit@127.0.0.1:1/plaudit", redis=redis.url)
    with Process("cron", data_dir=folder / number.name, env=env) as cron:
        eventually(lambda: lines(cron))
        cron.process.send_signal(number)
        assert cron.process.wait(30) == 0
    assert len(lines(cron)) == 1


def lines(worker: Process) -> list[dict[str, Any]]:
    return [json.loads(line) for line in worker.log_text().splitlines()]
