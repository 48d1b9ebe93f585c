"""Exports that nobody reads take little memory, few threads, and no place for ever."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest
import requests
from flask.testing import FlaskClient

from app.run.ports import reserve_port
from app.settings import Settings
from tests.app.http.test_exports import EXPORT, fill
from tests.people import Caller, client_of
from tests.secrets_seen import LOG_FOLDER, SEEN
from tests.service import ROOT, eventually


@pytest.fixture
def web(settings: Settings, connected: None) -> Iterator[tuple[str, int]]:
    """A real API process that cuts off stalled readers after two seconds; its address and its pid."""
    port = reserve_port()
    env = dict(os.environ) | {
        "DATABASE_URL": settings.database_url or "",
        "PLAUDIT_SERVICE_DATABASE_URL": settings.service_database_url or "",
        "REDIS_URL": settings.redis_url or "",
        "PLAUDIT_SECRET_KEY": settings.secret_key or "",
        "PLAUDIT_PORT": str(port),
        "PLAUDIT_WEB_PROCESSES": "1",
        "PLAUDIT_WEB_THREADS": "8",
    }
    code = "import app.server.connection as c; c.MAX_STALLED_S = 2; from app.cli import main; main()"
    with (LOG_FOLDER / "exports.txt").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", code, "web", "--port", str(port)], cwd=ROOT, env=env, stdout=log, stderr=log
        )
    try:
        url = f"http://127.0.0.1:{port}"
        eventually(lambda: requests.get(f"{url}/health/live", timeout=2).ok)
        yield url, process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(15)


def token_from(url: str, caller: Caller) -> str:
    """A token as this process signs it."""
    auth, grant = (caller.id, caller.secret), {"grant_type": "client_credentials"}
    token = str(requests.post(f"{url}/oauth/token", data=grant, auth=auth, timeout=5).json()["access_token"])
    SEEN.add(token)
    return token


def open_unread(stack: contextlib.ExitStack, url: str, path: str, token: str) -> None:
    """Ask for something and read nothing of the answer. (A short one, as of a busy service, ends the connection.)"""
    reader = stack.enter_context(socket.socket())
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.connect(("127.0.0.1", int(url.rpartition(":")[2])))
    head = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\r\n"
    reader.sendall(head.encode())


def open_connections(pid: int, port: int) -> int:
    """Those that the process still serves."""
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    connections = [one for process in processes for one in process.net_connections("tcp")]
    return sum(one.status == psutil.CONN_ESTABLISHED and one.laddr.port == port for one in connections)


def rss_mb(pid: int) -> float:
    process = psutil.Process(pid)
    return sum(one.memory_info().rss for one in (process, *process.children(recursive=True))) / 2**20


def test_a_stalled_reader_of_any_answer_is_cut_off(web: tuple[str, int], client: FlaskClient, tenant: str) -> None:
    url, pid = web
    fill(tenant)
    token = token_from(url, client_of(client, tenant))
    path = "/api/v1/leaderboards?scope=tenant&window=all&metric=views&limit=1000"
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            open_unread(stack, url, path, token)
        eventually(lambda: open_connections(pid, int(url.rpartition(":")[2])) > 0)
        eventually(lambda: open_connections(pid, int(url.rpartition(":")[2])) == 0, within_s=60, every_s=0.5)


def test_stalled_readers_take_little_memory_and_few_threads_and_are_cut_off(
    web: tuple[str, int], client: FlaskClient, tenant: str
) -> None:
    url, pid = web
    fill(tenant)
    token = token_from(url, client_of(client, tenant))
    headers = {"Authorization": f"Bearer {token}"}

    def status() -> int:
        return requests.get(f"{url}{EXPORT}", headers=headers, timeout=10, stream=True).status_code

    with contextlib.ExitStack() as stack:
        before = rss_mb(pid)
        for _ in range(12):
            open_unread(stack, url, EXPORT, token)
        eventually(lambda: status() == 429, every_s=0.5)
        assert requests.get(f"{url}/health/live", timeout=5).ok, "threads are left for others"
        memory_mb = []

        def is_cut_off() -> bool:
            memory_mb.append(rss_mb(pid))
            # Asked seldom: a tenant's exports are limited by the minute too, which would be waited for.
            return len(memory_mb) % 10 == 0 and status() == 200

        eventually(is_cut_off, every_s=0.1)
        assert max(memory_mb) - before < 60
