"""Nodes that share their servers must share their secret and their public address; one that differs is not ready."""

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import requests

from app.run.ports import reserve_port
from tests.servers.nodes import Process, shared_env
from tests.servers.postgres import Postgres
from tests.servers.redis_cluster import RedisServer
from tests.service import ROOT, eventually, own_servers_env, plaudit

# `plaudit up` gives up sooner.
IMPATIENT = "from app.run import supervisor; supervisor.READY_WITHIN_S = 15.0; from app.cli import main; main()"
PUBLIC_URL = {"PLAUDIT_PUBLIC_URL": "https://plaudit.example"}


class Web(Process):
    """`plaudit web` with one process."""

    def __init__(self, data_dir: Path, env: dict[str, str]) -> None:
        port = reserve_port()
        self.url = f"http://127.0.0.1:{port}"
        super().__init__("web", "--port", str(port), data_dir=data_dir, env=env | {"PLAUDIT_WEB_PROCESSES": "1"})

    def ready(self) -> dict[str, Any]:
        """What it says of itself, once it answers."""
        found: dict[str, Any] = eventually(lambda: requests.get(f"{self.url}/health/ready", timeout=5).json())
        return found

    def is_ready(self) -> bool:
        return bool(self.ready()["status"] == "ok")


@pytest.fixture
def env(folder: Path, postgres: Postgres, redis: RedisServer) -> dict[str, str]:
    shared = shared_env(database=postgres.url(), redis=redis.url, **PUBLIC_URL)
    migrated = plaudit("migrate", data_dir=folder / "commands", env=shared)
    assert migrated.returncode == 0, migrated.stderr
    return shared


def test_a_node_that_differs_is_not_ready_until_the_others_are_gone(folder: Path, env: dict[str, str]) -> None:
    secret = {"PLAUDIT_SECRET_KEY": shared_env(database="", redis="")["PLAUDIT_SECRET_KEY"]}
    address = {"PLAUDIT_PUBLIC_URL": "https://other.example"}
    with ExitStack() as others:
        others.enter_context(first := Web(folder / "first", env))
        eventually(first.is_ready)
        others.enter_context(same := Web(folder / "same", env))
        others.enter_context(moved := Web(folder / "moved", env | address))
        with Web(folder / "different", env | secret) as different:
            assert "PLAUDIT_PUBLIC_URL" in moved.ready()["checks"]["settings"]
            assert "PLAUDIT_SECRET_KEY" in different.ready()["checks"]["settings"]
            answer = requests.get(f"{different.url}/api/v1/spaces", timeout=5)
            assert (answer.status_code, answer.json()["code"]) == (503, "settings_differ")
            eventually(same.is_ready)
            assert first.is_ready()
            others.close()
            eventually(different.is_ready)


@pytest.mark.parametrize("other", ["secret", "login"])
def test_up_says_in_one_line_why_it_is_not_ready_and_fills_no_log(
    folder: Path, env: dict[str, str], postgres: Postgres, other: str
) -> None:
    """Its own probes of /health/ready would be the reason for lines at which it probes again."""
    if other == "secret":
        different = {"PLAUDIT_SECRET_KEY": shared_env(database="", redis="")["PLAUDIT_SECRET_KEY"]}
        reason = "settings: PLAUDIT_SECRET_KEY is not"
    else:
        postgres.execute("CREATE ROLE locked NOLOGIN")
        different = {"PLAUDIT_SERVICE_DATABASE_URL": postgres.url().replace("plaudit@", "locked@", 1)}
        reason = "database: unavailable"
    with Web(folder / f"before-{other}", env) as before:
        eventually(before.is_ready)
        command = [sys.executable, "-c", IMPATIENT, "up", "--json", "--data-dir", str(folder / f"late-{other}")]
        done = subprocess.run(
            [*command, "--port", str(reserve_port())],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            env=own_servers_env() | env | different,
        )
    lines = done.stderr.splitlines()
    assert done.returncode == 1
    assert lines[-1].startswith(f"plaudit: Not ready after 15 s: {reason}")
    assert not [line for line in lines if "/health/" in line]
    assert len(lines) < 60, "each process says once what is wrong"
