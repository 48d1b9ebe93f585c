"""Revoking takes effect on the next call in every process, with Redis up, hanging, emptied and down (P3)."""

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import count
from uuid import UUID

import pytest
import requests
from flask import Flask
from redis import Redis

from app.http.services import services_of
from app.run.ports import reserve_port
from app.run.server_files import wheel_binaries
from app.settings import Settings
from tenants import sessions, users
from tenants.credential_feed import MAX_WAIT_S
from tenants.db import tenant_tx, utcnow
from tests.remembering import Remembering
from tests.service import Service, eventually

CALLS = 24  # enough to meet every web process


@pytest.fixture(scope="module")
def service(demo_service: Service) -> Service:
    return demo_service


def log_in(service: Service) -> dict[str, str]:
    body = {"tenant": "demo", "username": service.ready["admin_username"], "password": service.ready["admin_password"]}
    answer = service.post("/api/v1/auth/login", json=body)
    assert answer.status_code == 200, answer.text
    return {"Authorization": f"Bearer {answer.json()['access_token']}"}


def statuses(service: Service, headers: dict[str, str]) -> tuple[set[int], float]:
    """What every process answers (each call on a connection of its own), and the slowest of them."""
    seen, slowest = set(), 0.0
    for _ in range(CALLS):
        began = time.monotonic()
        seen.add(service.get("/api/v1/me", headers=headers).status_code)
        slowest = max(slowest, time.monotonic() - began)
    return seen, slowest


def test_a_logout_counts_at_once_in_every_process(service: Service) -> None:
    headers = log_in(service)
    assert statuses(service, headers)[0] == {200}
    assert requests.post(f"{service.url}/api/v1/auth/logout", headers=headers, timeout=10).status_code == 204
    assert statuses(service, headers)[0] == {401}


def test_it_counts_at_once_while_redis_hangs_and_nobody_waits_long(service: Service) -> None:
    valkey = service.processes()["valkey"]
    headers = log_in(service)
    assert statuses(service, headers)[0] == {200}, "and every process has it in memory"
    valkey.send_signal(signal.SIGSTOP)
    try:
        seen, slowest = statuses(service, headers)
        assert seen == {200}
        assert slowest < 1.5, "half a second for Redis, and slack for a busy machine"
        assert requests.post(f"{service.url}/api/v1/auth/logout", headers=headers, timeout=10).status_code == 204
        assert statuses(service, headers)[0] == {401}
    finally:
        valkey.send_signal(signal.SIGCONT)
    assert statuses(service, headers)[0] == {401}, "and Redis, back again, does not bring it back"


PROCESSES = 4
ROUNDS = 8


@pytest.fixture
def valkey() -> Iterator["subprocess.Popen[bytes]"]:
    """A Redis of this test's own, to stop and to kill."""
    command = [str(wheel_binaries().valkey), "--port", str(reserve_port()), "--save", "", "--bind", "127.0.0.1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            eventually(lambda: Redis(port=port_of(server)).ping())
            yield server
        finally:
            server.kill()


def port_of(valkey: "subprocess.Popen[bytes]") -> int:
    arguments = valkey.args
    assert isinstance(arguments, list)
    return int(arguments[2])


@pytest.fixture
def processes(settings: Settings, valkey: "subprocess.Popen[bytes]") -> Iterator[list[Remembering]]:
    with contextlib.ExitStack() as stack:
        url = f"redis://127.0.0.1:{port_of(valkey)}/0"
        yield [stack.enter_context(Remembering(settings, redis_url=url)) for _ in range(PROCESSES)]


@pytest.fixture
def start_session(app: Flask, tenant: str) -> Callable[[], str]:
    signer = services_of(app).signer
    signer.load()
    numbers = count()

    def start() -> str:
        """Each of another user, who has a limited number of them."""
        with tenant_tx(tenant) as tx:
            user = users.register(tx, username=f"ada_{next(numbers)}", email=None, password_hash="x", now=utcnow())
            tokens = sessions.start(tx, user, signer=signer, ip=None, agent=None, now=utcnow())
        assert isinstance(tokens.session_id, UUID)
        return str(tokens.session_id)

    return start


def stop(valkey: "subprocess.Popen[bytes]") -> None:
    valkey.send_signal(signal.SIGSTOP)


def flush(valkey: "subprocess.Popen[bytes]") -> None:
    Redis(port=port_of(valkey)).flushall()


def kill(valkey: "subprocess.Popen[bytes]") -> None:
    valkey.kill()
    valkey.wait()


@pytest.mark.parametrize("fault", [None, stop, flush, kill], ids=["up", "hanging", "emptied", "down"])
def test_every_process_refuses_a_revoked_session_on_the_next_call(
    processes: list[Remembering],
    valkey: "subprocess.Popen[bytes]",
    tenant: str,
    start_session: Callable[[], str],
    fault: Callable[["subprocess.Popen[bytes]"], None] | None,
) -> None:
    known = [start_session() for _ in range(ROUNDS)]
    if fault is not None:
        fault(valkey)
    for number, session in enumerate(known):
        for process in processes:
            eventually(lambda process=process, session=session: process.remembers(tenant, session))  # type: ignore[misc]
        waited_s = processes[number % PROCESSES].revoke(tenant, session)
        assert [process.is_valid(tenant, session) for process in processes] == [False] * PROCESSES
        assert waited_s < MAX_WAIT_S + 5, "the bound, and slack for a busy machine"


def test_a_process_that_was_stopped_during_a_revocation_refuses_it_when_it_continues(
    processes: list[Remembering], tenant: str, start_session: Callable[[], str]
) -> None:
    session, other = start_session(), start_session()
    for process in processes:
        eventually(lambda process=process: process.remembers(tenant, session))  # type: ignore[misc]
        assert process.is_valid(tenant, other)
    stopped = processes[-1]
    stopped.send_signal(signal.SIGSTOP)
    try:
        waited_s = processes[0].revoke(tenant, session)
        processes[-1].tell("is_valid", tenant, session)  # its first call when it continues
        assert [process.is_valid(tenant, session) for process in processes[:-1]] == [False] * (PROCESSES - 1)
        time.sleep(2)
    finally:
        stopped.send_signal(signal.SIGCONT)
    assert waited_s >= MAX_WAIT_S, "the process that did not acknowledge was waited for"
    assert processes[-1].answer() is False
    eventually(lambda: processes[-1].remembers(tenant, other))  # and it answers from memory again


def test_a_process_that_starts_during_revocations_refuses_them_too(
    processes: list[Remembering], settings: Settings, tenant: str, start_session: Callable[[], str]
) -> None:
    known = [start_session() for _ in range(40)]
    with Remembering(settings, redis_url="redis://127.0.0.1:1/0") as started:
        for number, session in enumerate(known):
            for later in known[number:]:  # it asks for them all the time, and keeps them as soon as it may
                started.tell("is_valid", tenant, later)
            assert [started.answer() for _ in known[number:]] == [True] * len(known[number:])
            processes[0].revoke(tenant, session)
            assert not started.is_valid(tenant, session), number
        last = start_session()
        eventually(lambda: started.remembers(tenant, last))
