"""Statements beside the pool of requests: as the platform role, one transaction each, again after a lost connection."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from sqlalchemy.exc import OperationalError

from app.run.ports import reserve_port
from app.settings import Settings
from app.web import connect
from tenants import platform_calls
from tenants.db import PLATFORM_ROLE, owner_tx, service_engine
from tenants.engines import breaker_of
from tenants.platform_calls import (
    STATEMENT_TIMEOUT_MS,
    CallFailed,
    ConnectionLost,
    NodeLost,
    PlatformCalls,
    Probe,
)
from tests.outages import silent_pooler, slow_logins


@pytest.fixture
def calls(connected: None) -> Iterator[PlatformCalls]:
    calls = PlatformCalls(max_connections=1)
    yield calls
    calls.close()


def test_a_call_runs_as_the_platform_role_and_keeps_no_state(calls: PlatformCalls) -> None:
    asked = "SELECT current_user, current_setting('synchronous_commit'), %s"
    assert calls.run(asked, [7], durable=False) == [(PLATFORM_ROLE, "off", 7)]
    assert calls.run(asked, [8]) == [(PLATFORM_ROLE, "on", 8)]


def test_a_refused_statement_says_why_without_its_values(calls: PlatformCalls) -> None:
    with pytest.raises(CallFailed, match=r"^\w+ 22P02$"):
        calls.run("SELECT CAST(%s AS integer)", ["a secret"])
    with pytest.raises(CallFailed, match="InsufficientPrivilege 42501"):
        calls.run("DELETE FROM credential_changes")
    assert calls.run("SELECT 1") == [(1,)], "and the connection is usable"


def test_a_node_that_the_server_cannot_reach_is_told_from_the_server_itself(calls: PlatformCalls) -> None:
    with pytest.raises(NodeLost, match="ConnectionFailure 08006"):
        calls.run("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '08006'; END $$")
    assert calls.run("SELECT 1") == [(1,)], "and the connection is usable"


def test_a_statement_has_a_bound(calls: PlatformCalls) -> None:
    with pytest.raises(CallFailed, match="QueryCanceled"):
        calls.run("SELECT pg_sleep(%s)", [STATEMENT_TIMEOUT_MS])


def run_for_a_minute(calls: PlatformCalls) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        calls.run("SELECT 1")


def test_a_lost_connection_fails_one_call_and_is_replaced(calls: PlatformCalls) -> None:
    ((backend,),) = calls.run("SELECT pg_backend_pid()")
    with owner_tx() as tx:
        tx.raw.exec_driver_sql(f"SELECT pg_terminate_backend({backend})")
    with pytest.raises(ConnectionLost):
        run_for_a_minute(calls)
    assert calls.run("SELECT 1") == [(1,)]


def test_a_probe_that_loses_its_connection_tries_another_before_requests_are_refused(connected: None) -> None:
    probe = Probe()
    ((backend,),) = probe.probe("SELECT pg_backend_pid()", [])
    with owner_tx() as tx:
        tx.raw.exec_driver_sql(f"SELECT pg_terminate_backend({backend}, 60000)")
    with pytest.raises(ConnectionLost):
        probe.probe("SELECT 1", [])
    assert not is_away()
    assert probe.probe("SELECT 1", []) == [(1,)]
    probe.close()


def test_requests_are_refused_while_a_probe_cannot_connect(settings: Settings) -> None:
    connect(replace(settings, service_database_url=f"postgresql://x@127.0.0.1:{reserve_port()}/x"))
    probe = Probe()
    for _ in range(2):
        with pytest.raises(ConnectionLost):
            probe.probe("SELECT 1", [])
    assert is_away()
    with pytest.raises(OperationalError, match="the database is away"):
        service_engine().connect()
    connect(settings)
    assert not is_away(), "it is another database"
    assert probe.probe("SELECT 1", []) == [(1,)]
    probe.close()


def test_requests_are_refused_while_a_probe_is_not_answered(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform_calls, "PROBE_WITHIN_S", 0.1)
    with silent_pooler() as address:
        connect(replace(settings, service_database_url=address))
        probe = Probe()
        for _ in range(2):
            assert not is_away()
            with pytest.raises(ConnectionLost):
                probe.probe("SELECT 1", [])
        assert is_away()
    connect(settings)


def test_a_login_may_take_longer_than_an_answer(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform_calls, "PROBE_WITHIN_S", 0.2)
    with slow_logins(settings.service_database_url or settings.database_url or "", by_s=0.5) as address:
        connect(replace(settings, service_database_url=address))
        probe = Probe()
        for _ in range(3):
            with contextlib.suppress(ConnectionLost):
                probe.probe("SELECT 1", [])
        assert probe.probe("SELECT 1", []) == [(1,)]
        assert not is_away()
        probe.close()
    connect(settings)


def test_requests_go_on_while_a_server_refuses_what_is_probed(connected: None) -> None:
    probe = Probe()
    with pytest.raises(CallFailed, match="QueryCanceled"):
        probe.probe("SELECT pg_sleep(%s)", [STATEMENT_TIMEOUT_MS])
    assert not is_away()
    probe.close()


def is_away() -> bool:
    breaker = breaker_of(service_engine())
    assert breaker is not None
    return breaker.is_open
