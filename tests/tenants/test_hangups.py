"""SIGHUP: every process of ours goes on, and logs one line."""

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from app.run.data_folder import Addresses
from app.run.ports import reserve_port
from app.settings import Settings
from tests.service import PLAUDIT, ROOT, eventually


@pytest.mark.parametrize("command", ["web", "live", "worker", "cron"])
def test_a_hangup_ends_no_process_and_is_one_line(
    command: str, settings: Settings, addresses: Addresses, tmp_path: Path
) -> None:
    env = os.environ | {
        "DATABASE_URL": addresses.database_url,
        "PLAUDIT_SERVICE_DATABASE_URL": addresses.service_database_url,
        "REDIS_URL": addresses.redis_url,
        "PLAUDIT_SECRET_KEY": settings.secret_key or "",
        "PROMETHEUS_MULTIPROC_DIR": str(tmp_path),
        "PLAUDIT_WEB_PROCESSES": "1",
        "LOG_FORMAT": "json",
    }
    port = ["--port", str(reserve_port())] if command in {"web", "live"} else []
    log = tmp_path / "log"
    with log.open("wb") as stream:
        process = psutil.Popen([*PLAUDIT, command, *port], stdout=stream, stderr=subprocess.STDOUT, cwd=ROOT, env=env)
    try:
        eventually(lambda: f"{command}.started" in log.read_text() or process.poll() is not None)
        children = eventually(process.children) if port else []
        for each in [process, *children]:  # as a terminal does that is closed
            each.send_signal(signal.SIGHUP)
        eventually(lambda: "SIGHUP is ignored" in log.read_text() or process.poll() is not None)
        process.send_signal(signal.SIGHUP)
        eventually(lambda: log.read_text().count("SIGHUP is ignored") == 2 or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        assert process.children() == children
    finally:
        process.terminate()
        process.wait(60)
    assert log.read_text().count("SIGHUP") == 2
