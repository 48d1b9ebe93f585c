"""`plaudit up` that is killed at any moment, and started again at once: nothing that it left is in its way."""

import random
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median

import psutil
import psycopg
import pytest

from app.run.data_folder import read_state
from app.run.ports import reserve_port
from tests.conftest import reachable_folder
from tests.secrets_seen import LOG_FOLDER
from tests.service import PLAUDIT, ROOT, Service, copy_prepared, eventually, own_servers_env, running_service

# A start takes some four seconds. Most of the moments are in it.
MAX_MOMENT_S = 6.0
# What an operator may expect; one start among several may take as long again on a busy machine.
READY_WITHIN_S = 30.0
MAX_READY_S = 60.0


@pytest.fixture
def folder() -> Iterator[Path]:
    with reachable_folder() as path:
        yield copy_prepared(path / "data")


def kill_after(folder: Path, seconds: float, *, recovering: bool) -> None:
    """Start it, and kill it this long after; or this long after PostgreSQL, when it was up, began to recover."""
    with (LOG_FOLDER / "killed.log").open("ab") as log:
        command = [*PLAUDIT, "up", "--data-dir", str(folder), "--port", str(reserve_port()), "--workers", "1"]
        up = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, env=own_servers_env())
    while recovering and up.poll() is None and not kill_backend(folder):
        time.sleep(0.05)
    time.sleep(seconds)
    up.kill()
    up.wait()


def kill_backend(folder: Path) -> bool:
    """Of a PostgreSQL that has much to recover then. Whether it was up, and is recovering now."""
    with suppress(psycopg.OperationalError, TypeError, KeyError):
        url = (read_state(folder) or {})["addresses"]["database_url"]
        with psycopg.connect(url, autocommit=True) as owner:
            name = f"filling_{secrets.token_hex(4)}"
            owner.execute(f"CREATE TABLE {name} AS SELECT repeat('x', 1000) FROM generate_series(1, 100000)")
            psutil.Process(owner.info.backend_pid).kill()
            return True
    return False


def start_and_kill(folder: Path) -> float:
    """How long it takes until it is ready. It is killed a moment later."""
    began = time.monotonic()
    service = Service(folder)
    try:
        assert service.get("/health/ready").json()["status"] == "ok"
        took = time.monotonic() - began
        time.sleep(random.uniform(0, 1))
        return took
    finally:
        service.process.kill()
        service.process.wait()
        service.close()


def test_killed_at_any_moment_it_starts_again(folder: Path) -> None:
    took = times_of_starts(folder, rounds=3)
    assert median(took) < READY_WITHIN_S
    assert max(took) < MAX_READY_S


def times_of_starts(folder: Path, *, rounds: int) -> list[float]:
    """Kill it twice in each round: at some moment, also of a recovery, and soon after it is ready again."""
    took = []
    for number in range(rounds):
        is_recovering = number % 2 == 1
        kill_after(folder, random.uniform(0, 1 if is_recovering else MAX_MOMENT_S), recovering=is_recovering)
        took.append(start_and_kill(folder))
    return took


def test_a_postgresql_that_would_shut_down_for_ever_is_started_again(folder: Path) -> None:
    """It was told to stop when it had just begun to recover: see `app.run.stopping`."""
    with running_service(folder) as service:
        before = eventually(lambda: service.processes()["postgres"])
        assert kill_backend(folder)
        eventually(lambda: not before.children(), every_s=0.001)
        before.send_signal(signal.SIGINT)
        eventually(lambda: is_ready_without(service, before))


def test_a_postgresql_that_stands_still_is_started_again(folder: Path) -> None:
    with running_service(folder) as service:
        before = service.processes()["postgres"]
        before.suspend()
        eventually(lambda: is_ready_without(service, before))
        assert service.log_text().count("does not answer; ending it") == 1


def is_ready_without(service: Service, process: psutil.Process) -> bool:
    running = service.processes()
    is_replaced = {"postgres", "valkey"} <= running.keys() and process not in running.values()
    return is_replaced and service.get("/health/ready").json()["status"] == "ok"
