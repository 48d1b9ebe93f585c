"""Connections to PostgreSQL, and pools of them. What transactions are opened on them is in `tenants.db`.

A connection that does not answer in time, or leads to a server that accepts no writes, is closed; its caller gets an
error of SQLAlchemy's that says so (`connection_invalidated`).
"""

import time
from math import inf
from typing import Any, Literal

import psycopg
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import ExceptionContext, make_url

from tenants import pipelines
from tenants.pipelines import READ_ONLY, Driver, NoAnswer, Statement

CONNECT_TIMEOUT_S = 2
# Then nobody else waits for a new connection, for a moment: one request may try several times.
CONNECT_AGAIN_AFTER_S = 1.0
# A machine that is gone, or a network that delivers nothing any more: nobody acknowledges what was sent, nor the
# kernel's probes while an answer is waited for. (A server that is there and does not answer is given up by the deadline
# of whoever waits: `Driver.answer_within_s`.)
LOST_AFTER_MS = 15_000
PROBES = {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3}
POOL_TIMEOUT_S = 1.5


def make_engine(
    url: str, *, pool_size: int, isolation_level: Literal["READ COMMITTED", "AUTOCOMMIT"] = "READ COMMITTED"
) -> Engine:
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
    event.listen(engine, "do_connect", _Connects())
    event.listen(engine, "handle_error", _drop_if_read_only)
    return engine


class _Connects:
    """Opens the connections of an engine. Each leads to a server: a pooler also accepts clients while it has none."""

    _CHECK = (Statement(b"SELECT 1"),)

    def __init__(self) -> None:
        self._not_before = -inf

    def __call__(self, _dialect: object, _record: object, _arguments: object, options: dict[str, Any]) -> Driver:
        if time.monotonic() < self._not_before:
            raise NoAnswer("no answer a moment ago")
        try:
            driver = Driver.connect(**options)
            pipelines.run(driver, self._CHECK, within_s=CONNECT_TIMEOUT_S)
        except (NoAnswer, psycopg.errors.ConnectionTimeout):
            self._not_before = time.monotonic() + CONNECT_AGAIN_AFTER_S
            raise
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
