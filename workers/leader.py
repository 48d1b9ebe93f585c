"""Which of several cron processes leads: the one whose transaction holds an advisory lock.

A lock of a transaction and not of a session, which would stay behind in PgBouncer's transaction mode. The transaction
stays open, without a snapshot, so it keeps no dead row from being removed. A statement in it every `BEAT_S` shows that
the connection lives. If none comes for `LOST_AFTER_S`, PostgreSQL ends the session and with it the lock: also if the
machine lost its power or its network, of which PostgreSQL would hear nothing for hours.

While PostgreSQL cannot be reached nobody leads. A leader that has just lost its lock may still enqueue a job that the
next one enqueues too: every job is safe to run twice, or at once.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from math import inf

import psycopg
import structlog
from sqlalchemy import PoolProxiedConnection
from sqlalchemy.exc import SQLAlchemyError

from tenants import pipelines
from tenants.db import service_engine
from tenants.engines import make_engine
from tenants.pipelines import BEGIN, ROLLBACK, Driver, Statement
from tenants.queue import CRON_LEADER

LOCK = 7_526_103_843
BEAT_S = 0.5
LOST_AFTER_S = 5.0
# The server's, and ours for a server that does not answer.
MAX_ANSWER_S = 2.0

# Not a SELECT: libpq's pipeline mode leaves the last query's portal open, and with it a snapshot.
_BEAT = Statement(f"SET LOCAL application_name = '{CRON_LEADER}'".encode())
_TRY_LOCK = Statement(b"SELECT pg_try_advisory_xact_lock(%d) AS is_locked" % LOCK)
_OPENING = (
    BEGIN,
    Statement(b"SET LOCAL statement_timeout = %d" % (MAX_ANSWER_S * 1000)),
    Statement(b"SET LOCAL idle_in_transaction_session_timeout = %d" % (LOST_AFTER_S * 1000)),
)

log = structlog.get_logger()


class Leadership:
    """Tries to lead, and to go on leading, in a thread of its own, on a connection of its own."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._beat_at = -inf
        self._is_failing = False

    def is_held(self) -> bool:
        """Whether this process leads. Not while PostgreSQL does not answer."""
        return time.monotonic() - self._beat_at < LOST_AFTER_S

    @contextlib.contextmanager
    def contend(self) -> Iterator[None]:
        """Lead as soon as nobody else does, until the end of the block."""
        thread = threading.Thread(target=self._run, name="leader", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            thread.join(MAX_ANSWER_S)

    def _run(self) -> None:
        address = service_engine().url.render_as_string(hide_password=False)
        engine = make_engine(address, pool_size=1, isolation_level="AUTOCOMMIT")
        while not self._stopping.is_set():
            try:
                with contextlib.closing(engine.raw_connection()) as pooled:
                    self._lead(pooled)
            except Exception as error:  # noqa: BLE001  whatever it is, the next attempt may succeed
                if not self._is_failing:
                    self._log(error)
                self._is_failing = True
            self._beat_at = -inf
            self._stopping.wait(BEAT_S)
        engine.dispose()

    def _log(self, error: Exception) -> None:
        data = {"error": type(error).__name__}
        if not isinstance(error, psycopg.Error | SQLAlchemyError):
            log.error("cron cannot lead", action="cron.failed", data=data, exc_info=error)
        elif self._beat_at > -inf:
            log.warning("cron leads no more", action="cron.lost", data=data)
        else:
            log.warning("cron cannot lead", action="cron.failed", data=data)

    def _lead(self, pooled: PoolProxiedConnection) -> None:
        """Until the connection is lost or this process stops; not at all if another one leads."""
        driver: Driver = pooled.driver_connection  # type: ignore[assignment]
        try:
            *_, locked, _ = pipelines.run(driver, (*_OPENING, _TRY_LOCK, _BEAT), within_s=MAX_ANSWER_S)
            self._is_failing = False
            if pipelines.rows(driver, locked)[0].is_locked:
                log.info("cron leads", action="cron.leads", data={"host": socket.gethostname(), "pid": os.getpid()})
                while not self._stopping.is_set():
                    began = time.monotonic()
                    pipelines.run(driver, (_BEAT,), within_s=MAX_ANSWER_S)
                    self._beat_at = began
                    self._stopping.wait(BEAT_S)
            pipelines.run(driver, (ROLLBACK,), within_s=MAX_ANSWER_S)
        finally:
            if driver.closed:
                pooled.invalidate()
