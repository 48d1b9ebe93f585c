"""Connections: given up when they do not answer, and when the server accepts no writes."""

import os
import socket
import time
from collections.abc import Callable

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from app.settings import Settings
from tenants import engines
from tenants.engines import make_engine
from tests.outages import read_only, silent_pooler


def test_who_connects_to_a_pooler_without_a_server_waits_for_a_moment_and_others_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engines, "CONNECT_TIMEOUT_S", 0.2)
    monkeypatch.setattr(engines, "CONNECT_AGAIN_AFTER_S", 60)
    with silent_pooler() as address:
        engine = make_engine(address, pool_size=2)
        assert 0.2 <= seconds_until_refused(engine) < 60
        assert seconds_until_refused(engine) < 0.2


def seconds_until_refused(engine: Engine) -> float:
    began = time.monotonic()
    with pytest.raises(DBAPIError, match="no answer"):
        engine.connect()
    return time.monotonic() - began


@pytest.mark.parametrize("run", [lambda c, sql: c.execute(text(sql)), lambda c, sql: c.exec_driver_sql(sql)])
def test_connections_to_a_read_only_server_are_dropped(settings: Settings, run: Callable[..., object]) -> None:
    engine = make_engine(read_only(settings.database_url), pool_size=2)
    with engine.connect() as one, engine.connect() as two:
        pids = {connection.scalar(text("SELECT pg_backend_pid()")) for connection in (one, two)}
    with pytest.raises(DBAPIError) as refused, engine.connect() as connection:
        run(connection, "CREATE TABLE never ()")
    assert refused.value.connection_invalidated
    for _ in range(2):
        with engine.connect() as connection:
            assert connection.scalar(text("SELECT pg_backend_pid()")) not in pids
    engine.dispose()


def test_a_machine_that_is_gone_is_noticed_within_seconds(settings: Settings) -> None:
    engine = make_engine(settings.database_url or "", pool_size=1)
    with engine.connect() as connection, socket.socket(fileno=os.dup(connection.connection.fileno())) as own:
        if own.family == socket.AF_UNIX:
            pytest.skip("it is this machine")
        idle_s, every_s, times = (
            own.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert idle_s + every_s * times <= 15
    engine.dispose()


def test_a_server_without_a_pooler_is_recognised(settings: Settings) -> None:
    engine = make_engine(settings.database_url or "", pool_size=1)
    with engine.connect() as connection:
        assert not engines.is_pooled(connection)
    engine.dispose()
