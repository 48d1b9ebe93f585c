"""Connections to PostgreSQL, and pools of them. What transactions are opened on them is in `tenants.db`.

A connection that does not answer in time, or leads to a server that accepts no writes, is closed; its caller gets an
error of SQLAlchemy's that says so (`connection_invalidated`).

In a process that answers requests nobody waits for a server that is away: the engine has a `Breaker`, which the reader
of the credential feed opens and closes (`tenants.credential_feed`), since it asks ten times a second anyway.
"""

import threading
import time
from collections.abc import Callable
from math import inf
from typing import Any, Literal
from weakref import WeakKeyDictionary, WeakSet

import psycopg
import structlog
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import ExceptionContext, make_url

from tenants import pipelines
from tenants.pipelines import READ_ONLY, Driver, NoAnswer, Statement

CONNECT_TIMEOUT_S = 2.0
# Then nobody else waits for a new connection, for a moment: one request may try several times.
CONNECT_AGAIN_AFTER_S = 1.0
# A machine that is gone, or a network that delivers nothing any more: nobody acknowledges what was sent, nor the
# kernel's probes while an answer is waited for. (A server that is there and does not answer is given up by the deadline
# of whoever waits: `Driver.answer_within_s`.)
LOST_AFTER_MS = 15_000
PROBES = {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3}
POOL_TIMEOUT_S = 1.5
# A server that answered within this time is there, whatever a probe has found: its connection may be stuck alone, wait
# for its turn at a pooler, or be one too many. A little less than a probe waits.
ALIVE_S = 0.3

log = structlog.get_logger()


class Away(NoAnswer):
    """PostgreSQL does not answer this process at the moment. Nothing was sent."""


class Breaker:
    """Whether connections may be opened and waited for. While it is open, both end at once with an error.

    The pool's idle connections end too, so none of them costs anybody a timeout later.
    """

    def __init__(self) -> None:
        self._is_open = False
        self._lock = threading.Lock()
        self._drivers: WeakSet[Driver] = WeakSet()

    @property
    def is_open(self) -> bool:
        return self._is_open

    def admit(self, driver: Driver) -> None:
        """Count this new connection among those that end when it opens."""
        with self._lock:
            if not self._is_open:
                self._drivers.add(driver)
                return
        driver.close()
        raise Away("the database is away")

    def open(self) -> None:
        """PostgreSQL is away: let nobody wait for it. Unless it has answered somebody just now."""
        with self._lock:
            drivers = [*self._drivers]
            if any(time.monotonic() - driver.answered_at < ALIVE_S for driver in drivers):
                return
            was_open, self._is_open = self._is_open, True
        for driver in drivers:
            driver.interrupt()
        if not was_open:
            log.critical("PostgreSQL is away: no request waits for it", action="database.away")

    def close(self) -> None:
        """PostgreSQL answers."""
        if self._is_open:
            self._is_open = False
            log.info("PostgreSQL is back", action="database.back")


def make_engine(
    url: str,
    *,
    pool_size: int,
    isolation_level: Literal["READ COMMITTED", "AUTOCOMMIT"] = "READ COMMITTED",
    breaker: Breaker | None = None,
    connect_within_s: Callable[[], float] | None = None,
) -> Engine:
    """`connect_within_s`: for a caller that tries again and again, and so is never told to wait before it does."""
    address = make_url(url).set(drivername="postgresql+psycopg")
    engine = create_engine(
        address,
        pool_size=pool_size,
        max_overflow=0,
        isolation_level=isolation_level,
        hide_parameters=True,  # values must not appear in logged errors
        pool_timeout=POOL_TIMEOUT_S,
        pool_recycle=1800,
        # `_open` ends every transaction itself; the pool's own ROLLBACK would be superfluous work for each.
        pool_reset_on_return=None if isolation_level == "AUTOCOMMIT" else "rollback",
        # Prepared statements survive neither a migration nor PgBouncer: do not create any.
        connect_args={
            "connect_timeout": CONNECT_TIMEOUT_S,
            "tcp_user_timeout": LOST_AFTER_MS,
            **PROBES,
            "prepare_threshold": None,
            "client_encoding": "utf-8",
        },
    )
    if breaker is not None:
        _breakers[engine] = breaker
    event.listen(engine, "do_connect", _Connects(breaker, connect_within_s))
    event.listen(engine, "handle_error", _drop_if_read_only)
    return engine


def breaker_of(engine: Engine) -> Breaker | None:
    """The breaker that this engine was made with."""
    return _breakers.get(engine)


_breakers: WeakKeyDictionary[Engine, Breaker] = WeakKeyDictionary()


class _Connects:
    """Opens the connections of an engine. Each leads to a server: a pooler also accepts clients while it has none."""

    _CHECK = (Statement(b"SELECT 1"),)

    def __init__(self, breaker: Breaker | None, within_s: Callable[[], float] | None) -> None:
        self._breaker = breaker
        self._within_s = within_s or (lambda: CONNECT_TIMEOUT_S)
        self._pause_s = CONNECT_AGAIN_AFTER_S if within_s is None else 0.0
        self._not_before = -inf

    def __call__(self, _dialect: object, _record: object, _arguments: object, options: dict[str, Any]) -> Driver:
        if time.monotonic() < self._not_before:
            raise NoAnswer("no answer a moment ago")
        try:
            return self._open(options)
        except Away:
            raise
        except (NoAnswer, psycopg.errors.ConnectionTimeout):
            self._not_before = time.monotonic() + self._pause_s
            raise

    def _open(self, options: dict[str, Any]) -> Driver:
        within_s = self._within_s()
        until = time.monotonic() + within_s

        def look() -> None:
            if self._breaker is not None and self._breaker.is_open:
                raise Away("the database is away")
            if time.monotonic() > until:
                raise NoAnswer(f"no answer within {within_s:g} s")

        look()
        driver = Driver.connect_while(look, **options)
        if self._breaker is not None:
            self._breaker.admit(driver)
        pipelines.run(driver, self._CHECK, within_s=within_s)
        return driver


def is_pooled(connection: Connection) -> bool:
    """Whether a pooler is in between. Its clients are told a process id that is not the one of the server's process."""
    driver: Driver = connection.connection.driver_connection  # type: ignore[assignment]
    return driver.info.backend_pid != int(connection.scalar(text("SELECT pg_backend_pid()")) or 0)


def _drop_if_read_only(context: ExceptionContext) -> None:
    """Drop the pool's connections to a read-only server, as `pipelines.run` does: new ones may lead to another."""
    if getattr(context.original_exception, "sqlstate", None) == READ_ONLY:
        context.is_disconnect = True


def disconnect_others(connection: Connection) -> None:
    """End every other session of the database that we may end: of ourselves, and of roles that we are a member of."""
    connection.execute(_DISCONNECT_OTHERS)


_DISCONNECT_OTHERS = text("""
    SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
      AND pg_has_role(current_user, usesysid, 'MEMBER')
""")
