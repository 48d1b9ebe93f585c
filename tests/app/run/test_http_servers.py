"""`plaudit web` as a real process, and ports. (`plaudit live`: tests/app/live; ends: tests/faults/test_up.py.)"""

import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import psutil
import pytest
import requests

from app import machine
from app.run import http_servers
from app.run.data_folder import Addresses
from app.run.ports import reserve_port
from app.settings import Settings
from tests.service import PLAUDIT, ROOT, eventually, plaudit


@pytest.fixture
def env(settings: Settings, addresses: Addresses, tmp_path: Path) -> dict[str, str]:
    return os.environ | {
        "DATABASE_URL": addresses.database_url,
        "PLAUDIT_SERVICE_DATABASE_URL": addresses.service_database_url,
        "REDIS_URL": addresses.redis_url,
        "PLAUDIT_SECRET_KEY": settings.secret_key or "",
        "PROMETHEUS_MULTIPROC_DIR": str(tmp_path),
        "PLAUDIT_WEB_PROCESSES": "1",
        "LOG_FORMAT": "json",
    }


def test_the_api_is_served_logs_json_and_ends_when_it_is_asked_to(env: dict[str, str], tmp_path: Path) -> None:
    port, log = reserve_port(), tmp_path / "log"
    with log.open("wb") as stream:
        process = psutil.Popen(
            [*PLAUDIT, "web", "--port", str(port)], stdout=stream, stderr=subprocess.STDOUT, cwd=ROOT, env=env
        )
    try:
        eventually(lambda: requests.get(f"http://127.0.0.1:{port}/health/live", timeout=5).ok)
        assert requests.get(f"http://127.0.0.1:{port}/nothing-here", timeout=60).status_code == 404
        children = process.children()
        assert len(children) == 1
    finally:
        process.terminate()
        status = process.wait(60)
    assert status == 0
    psutil.wait_procs(children, timeout=60)
    assert not any(child.is_running() for child in children)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {line["service"] for line in lines} == {"web"}
    (started,) = [line["data"] for line in lines if line["action"] == "web.started"]
    assert started == {"address": f"127.0.0.1:{port}", "processes": 1}
    assert [line["message"] for line in lines if line.get("action") == "request"] == ["GET '/nothing-here' 404"]


def test_a_draining_process_says_at_once_that_it_is_not_ready_and_answers(env: dict[str, str], tmp_path: Path) -> None:
    port = reserve_port()
    url = f"http://127.0.0.1:{port}"
    with (tmp_path / "log").open("wb") as log:
        command = [*PLAUDIT, "web", "--port", str(port)]
        process = psutil.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, env=env | {"PLAUDIT_DRAIN_S": "300"}
        )
    try:
        eventually(lambda: requests.get(f"{url}/health/ready", timeout=5).ok)
        process.terminate()
        eventually(lambda: requests.get(f"{url}/health/ready", timeout=10).status_code == 503)
        ready = requests.get(f"{url}/health/ready", timeout=10)
        assert ready.json()["checks"] == {"process": "is stopping"}
        assert requests.get(f"{url}/health/live", timeout=60).headers["Connection"] == "close"
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


@pytest.mark.parametrize("command", ["web", "live"])
@pytest.mark.parametrize("host", ["::1", "::"])
def test_addresses_of_ipv6_are_served(command: str, host: str, env: dict[str, str], tmp_path: Path) -> None:
    port = reserve_port()
    with (tmp_path / "log").open("wb") as log:
        process = psutil.Popen(
            [*PLAUDIT, command, "--port", str(port)],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=env | {"PLAUDIT_HOST": host},
        )
    try:
        eventually(lambda: requests.get(f"http://[::1]:{port}/health/live", timeout=5).ok)
        assert host != "::" or requests.get(f"http://127.0.0.1:{port}/health/live", timeout=5).ok
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.parametrize("command", ["web", "live"])
def test_a_port_that_cannot_be_used_is_one_line(command: str, tmp_path: Path) -> None:
    env = {"DATABASE_URL": "postgresql://u@127.0.0.1:1/d", "REDIS_URL": "redis://127.0.0.1:1/0"}
    env["PLAUDIT_SECRET_KEY"] = "x" * 32
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = plaudit(command, "--port", port, data_dir=tmp_path, env=env)
    assert (done.returncode, done.stderr) == (1, f"Cannot listen on 127.0.0.1:{port}: Address already in use\n")
    done = plaudit(command, "--port", port, data_dir=tmp_path, env=env | {"PLAUDIT_HOST": "192.0.2.1"})
    assert done.stderr == f"Cannot listen on 192.0.2.1:{port}: Cannot assign requested address\n"


def test_sockets_are_as_many_as_the_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = []
    for memory in (2**28, 2**29, 2**40):
        monkeypatch.setattr(machine, "machine_memory", lambda memory=memory: memory)
        allowed.append(http_servers._max_live_connections())
    assert allowed[:2] == [512, 1024]
    assert 1024 < allowed[2] <= http_servers.MAX_LIVE_CONNECTIONS
