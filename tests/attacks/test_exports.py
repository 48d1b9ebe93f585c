"""Exports that nobody reads take little memory, few threads, and no place for ever."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import requests
from flask.testing import FlaskClient
from sqlalchemy import text
from werkzeug.test import TestResponse

from analytics.boards import reading
from app.settings import Settings
from tenants.db import owner_tx, utcnow
from tests.people import Caller, client_of, user_of
from tests.secrets_seen import LOG_FOLDER, SEEN
from tests.service import ROOT, eventually, free_port

EXPORT = "/api/v1/leaderboards/export.csv?scope=tenant&window=all&metric=views"
PAGES = 3_000


def fill(tenant: str, pages: int = PAGES) -> None:
    """A board with rows as long as they may be: no Redis has it, so it is read from PostgreSQL."""
    with owner_tx() as tx:
        tx.execute(
            text("""
                WITH made AS (
                    INSERT INTO pages (tenant_id, external_id, space_key, title, url, created_at, updated_at)
                    SELECT :t, 'p' || n, 'eng', repeat('t', 500), 'https://w.example/' || repeat('u', 2000), :now, :now
                    FROM generate_series(1, :pages) n RETURNING id)
                INSERT INTO page_stats (tenant_id, page_id, space_key, is_public, is_shared, page_updated_at,
                    computed_at, likes_1d, likes_7d, likes_30d, likes_all, views_1d, views_7d, views_30d, views_all,
                    score_1d, score_7d, score_30d, score_all)
                SELECT :t, id, 'eng', false, false, :now, :now, 0, 0, 0, 0, 1, 1, 1, id, 0, 0, 0, 0 FROM made
            """),
            {"t": tenant, "pages": pages, "now": utcnow()},
        )


def test_only_so_many_exports_run_at_once(client: FlaskClient, tenant: str, other_tenant: str) -> None:
    fill(tenant, 10)
    one, two = client_of(client, tenant), client_of(client, other_tenant)
    unread = [one("GET", EXPORT, buffered=False) for _ in range(2)]
    refused = one("GET", EXPORT)
    assert (refused.status_code, refused.get_json()["code"]) == (429, "too_many_exports")
    assert int(refused.headers["Retry-After"]) > 0
    unread += [two("GET", EXPORT, buffered=False) for _ in range(2)]
    assert [answer.status_code for answer in unread] == [200] * 4
    third = client_of(client, tenant)
    unread[0].close()
    assert third("GET", EXPORT).text.count("\n") == 11, "a place that was given back is free"
    for answer in unread[1:]:
        answer.close()
    for _ in range(5):
        assert one("HEAD", EXPORT).status_code == 200
    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(reading, "read", lambda *_args, **_kwargs: 1 / 0)
        assert [one("GET", EXPORT).status_code for _ in range(5)] == [500] * 5
    assert one("GET", EXPORT).status_code == 200, "neither HEAD nor an error keeps a place"


def test_who_is_anonymous_takes_no_place_of_the_tenants_own_and_one_for_each_network(
    client: FlaskClient, tenant: str
) -> None:
    own = client_of(client, tenant)
    key = own("POST", "/api/v1/keys", json={"origins": ["https://a.example"]}).get_json()["key"]

    def anonymous(address: str) -> TestResponse:
        path = f"/api/v1/leaderboards/export.csv?scope=public&key={key}"
        return client.get(path, environ_base={"REMOTE_ADDR": address}, buffered=False)

    unread = [anonymous("192.0.2.1"), anonymous("192.0.2.2"), anonymous("2001:db8::1")]
    assert [answer.status_code for answer in unread] == [200] * 3
    assert [anonymous(address).status_code for address in ("192.0.2.1", "2001:db8::2")] == [429, 429]
    unread += [own("GET", EXPORT, buffered=False) for _ in range(2)]
    assert [answer.status_code for answer in unread[3:]] == [200] * 2
    for answer in unread:
        answer.close()
    assert anonymous("192.0.2.1").status_code == 200


def test_an_export_of_a_user_is_one_of_those_at_once(client: FlaskClient, tenant: str) -> None:
    admin, user = client_of(client, tenant), user_of(client, tenant)
    path = f"/api/v1/users/{user.id}/export"
    unread = [admin("GET", EXPORT, buffered=False) for _ in range(2)]
    refused = admin("GET", path)
    assert (refused.status_code, refused.get_json()["code"]) == (429, "too_many_exports")
    for answer in unread:
        answer.close()
    for _ in range(3):
        assert admin("GET", f"/api/v1/users/{tenant}/export").status_code == 404
    assert admin("GET", path).get_json()["profile"]["id"] == user.id


def test_an_export_is_sent_in_small_pieces(client: FlaskClient, tenant: str) -> None:
    fill(tenant, 1_200)
    answer = client_of(client, tenant)("GET", EXPORT, buffered=False)
    pieces = list(answer.iter_encoded())
    assert max(map(len, pieces)) <= 64 * 1024
    assert b"".join(pieces).count(b"\n") == 1_201


def test_an_export_that_fails_half_way_says_so_at_its_end(
    client: FlaskClient, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tenant, 1_200)
    caller, real, asked = client_of(client, tenant), reading.read, []

    def fail_later(*args: Any, **kwargs: Any) -> Any:
        asked.append(kwargs)
        if len(asked) > 1:
            raise ConnectionError
        return real(*args, **kwargs)

    monkeypatch.setattr(reading, "read", fail_later)
    for _ in range(4):
        asked.clear()
        assert caller("GET", EXPORT).text.splitlines()[-1].startswith("# incomplete")


@pytest.fixture
def web(settings: Settings, connected: None) -> Iterator[tuple[str, int]]:
    """A real API process that cuts off stalled readers after two seconds; its address and its pid."""
    port = free_port()
    env = dict(os.environ) | {
        "DATABASE_URL": settings.database_url or "",
        "PLAUDIT_SERVICE_DATABASE_URL": settings.service_database_url or "",
        "REDIS_URL": settings.redis_url or "",
        "PLAUDIT_SECRET_KEY": settings.secret_key or "",
        "PLAUDIT_PORT": str(port),
        "PLAUDIT_WEB_PROCESSES": "1",
        "PLAUDIT_WEB_THREADS": "8",
    }
    code = "import app.http.stalled_readers as s; s.MAX_STALLED_S = 2; from app.cli import main; main()"
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
    """Ask for something and read nothing of the answer."""
    reader = stack.enter_context(socket.socket())
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.connect(("127.0.0.1", int(url.rpartition(":")[2])))
    reader.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode())


def open_connections(pid: int, port: int) -> int:
    """Those that the process still serves."""
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    connections = [one for process in processes for one in process.net_connections("tcp")]
    return sum(one.status == psutil.CONN_ESTABLISHED and one.laddr.port == port for one in connections)


def rss_mb(pid: int) -> float:
    process = psutil.Process(pid)
    return sum(one.memory_info().rss for one in (process, *process.children(recursive=True))) / 2**20


def test_a_reader_who_reads_nothing_of_any_answer_is_cut_off(
    web: tuple[str, int], client: FlaskClient, tenant: str
) -> None:
    url, pid = web
    fill(tenant)
    token = token_from(url, client_of(client, tenant))
    path = "/api/v1/leaderboards?scope=tenant&window=all&metric=views&limit=1000"
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            open_unread(stack, url, path, token)
        eventually(lambda: open_connections(pid, int(url.rpartition(":")[2])) > 0)
        eventually(lambda: open_connections(pid, int(url.rpartition(":")[2])) == 0, within_s=60, every_s=0.5)


def test_readers_who_read_nothing_hold_little_memory_few_threads_and_are_cut_off(
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
        time.sleep(1)
        assert status() == 429
        assert requests.get(f"{url}/health/live", timeout=5).ok, "threads are left for others"
        assert rss_mb(pid) - before < 60
        eventually(lambda: status() == 200, within_s=60, every_s=0.5)
