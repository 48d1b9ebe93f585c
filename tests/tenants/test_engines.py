"""Connections: given up when they do not answer, when the server accepts no writes, and while it is away."""

import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, OperationalError

from app.settings import Settings
from tenants import engines
from tenants.engines import Away, Breaker, breaker_of, make_engine
from tenants.pipelines import Driver
from tests.outages import read_only, silent_pooler
from tests.service import eventually


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


class Waiting:
    """A thread that calls something which waits, and the error that ends it."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._error: DBAPIError | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._call()
        except DBAPIError as error:
            self._error = error

    def error(self) -> DBAPIError:
        self._thread.join(60)
        assert self._error is not None
        return self._error


def sleeping(url: str) -> list[Any]:
    with psycopg.connect(url) as server:
        asked = "SELECT pid FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)' AND state = 'active'"
        return server.execute(asked).fetchall()


def test_an_open_breaker_ends_what_waits_for_an_answer_and_refuses_connections(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "ALIVE_S", 600)
    url, breaker = settings.database_url or "", Breaker()
    engine = make_engine(url, pool_size=2, breaker=breaker)
    assert breaker_of(engine) is breaker
    with engine.connect():
        pass  # it is idle from now on
    waiting = Waiting(lambda: engine.connect().exec_driver_sql("SELECT pg_sleep(600)"))
    ((pid,),) = eventually(lambda: sleeping(url))
    breaker.open()
    assert not breaker.is_open, "PostgreSQL answered a moment ago"
    monkeypatch.setattr(engines, "ALIVE_S", 0)
    breaker.open()
    assert waiting.error().connection_invalidated
    with pytest.raises(OperationalError, match="the database is away"):
        engine.connect()
    breaker.close()
    with engine.connect() as connection:
        connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
    engine.dispose()


def test_an_open_breaker_ends_who_is_connecting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "CONNECT_TIMEOUT_S", 600)
    breaker = Breaker()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        engine = make_engine(f"postgresql://x@127.0.0.1:{silent.getsockname()[1]}/x", pool_size=1, breaker=breaker)
        waiting = Waiting(engine.connect)
        with silent.accept()[0]:
            breaker.open()
            assert "the database is away" in str(waiting.error())


def test_who_has_connected_while_the_breaker_opened_is_refused(settings: Settings) -> None:
    breaker = Breaker()
    breaker.open()
    address = make_url(settings.database_url or "").render_as_string(hide_password=False)
    driver = Driver.connect_while(lambda: None, conninfo=address)
    with pytest.raises(Away):
        breaker.admit(driver)
    assert driver.closed
