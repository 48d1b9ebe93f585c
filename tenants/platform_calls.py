"""Single statements as the platform role, on connections beside the pool of requests.

For what must never wait until a request returns its connection: a process that is overloaded still has to learn of
revocations. A call is one transaction in one round trip, as `tenants.group_tx.run_in_one_trip`: role and timeout are
set until its end, so PgBouncer in transaction mode works.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from tenants import engines, pipelines
from tenants.across import NODE_LOST
from tenants.db import PLATFORM_ROLE, service_engine
from tenants.engines import breaker_of, make_engine
from tenants.pipelines import BEGIN, COMMIT, Driver, NoAnswer, Statement
from tenants.waiting import require_may_wait

STATEMENT_TIMEOUT_MS = 300
# A connection that hangs, or a pooler that has no server for it, is given up.
ANSWER_WITHIN_S = 1.0
# A probe gives up sooner, since requests wait for what it finds. A server that is only slow has ended its statement by
# then.
PROBE_WITHIN_S = 0.4
_OPENING = (
    Statement(f"SET LOCAL ROLE {PLATFORM_ROLE}".encode()),
    Statement(f"SET LOCAL statement_timeout = {STATEMENT_TIMEOUT_MS}".encode()),
)
_NOT_DURABLE = Statement(b"SET LOCAL synchronous_commit = off")


class CallFailed(Exception):
    """PostgreSQL could not be reached, or refused the statement. The message names no values."""


class ConnectionLost(CallFailed):
    """There is no connection, or there was one until now: the next may lead to another server, or a restored one."""


class NotAnswered(ConnectionLost):
    """The server, or a pooler before it, did not answer a statement in time."""


class NodeLost(CallFailed):
    """On a Citus: the server answers, and cannot reach another node that has rows of the statement."""


class PlatformCalls:
    """Up to `max_connections` connections of this process, opened when they are needed.

    They end when PostgreSQL is away, as those of requests do.
    """

    _is_probe = False
    _connect_within_s: Callable[[], float] | None = None

    def __init__(self, *, max_connections: int) -> None:
        self._max_connections = max_connections
        self._engine: Engine | None = None
        self._of: tuple[int, Engine] | None = None

    def run(
        self, statement: str, values: Sequence[Any] = (), *, durable: bool = True, within_s: float = ANSWER_WITHIN_S
    ) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows. What is not `durable` may be lost if the server crashes."""
        require_may_wait()
        opening = _OPENING if durable else (*_OPENING, _NOT_DURABLE)
        try:
            pooled = self._connected_engine().raw_connection()
        except (psycopg.Error, SQLAlchemyError) as error:
            raise ConnectionLost(type(error).__name__) from None
        driver: Driver = pooled.driver_connection  # type: ignore[assignment]
        try:
            statements = (BEGIN, *opening, pipelines.bound(statement, values), COMMIT)
            answers = pipelines.run(driver, statements, within_s=within_s)
            return pipelines.rows(driver, answers[-2])
        except psycopg.Error as error:
            message = f"{type(error).__name__} {error.sqlstate or ''}".strip()
            raise _kind_of(error, is_lost=driver.closed)(message) from None
        finally:
            if driver.closed:
                pooled.invalidate()
            pooled.close()

    def close(self) -> None:
        if self._engine is not None and self._of is not None and self._of[0] == os.getpid():
            self._engine.dispose()
        self._engine = None

    def _connected_engine(self) -> Engine:
        """The engine for the service's address; never that of the process which this one was forked from."""
        service = service_engine()
        if self._engine is None or self._of != (os.getpid(), service):
            self.close()
            self._engine = make_engine(
                service.url.render_as_string(hide_password=False),
                pool_size=self._max_connections,
                isolation_level="AUTOCOMMIT",
                breaker=None if self._is_probe else breaker_of(service),  # a probe is never told to wait
                connect_within_s=self._connect_within_s,
            )
            self._of = os.getpid(), service
        return self._engine


class Probe(PlatformCalls):
    """A connection whose calls show whether PostgreSQL is away: they open and close the breaker of requests.

    A connection may also be lost alone, with its backend or its pooler. So PostgreSQL is away if it does not answer in
    time, or if the next connection is lost too. A login may take longer than an answer, so it gets more time after each
    failure.
    """

    _is_probe = True

    def __init__(self) -> None:
        super().__init__(max_connections=1)
        # Calls that failed since the last one that was answered.
        self.failures = 0

    def probe(self, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Run a statement, which is answered at once by a server that works. Raises as `run` does."""
        breaker, is_lost = breaker_of(service_engine()), False
        try:
            return self.run(statement, values, within_s=PROBE_WITHIN_S)
        except ConnectionLost as error:
            is_lost = True
            if breaker is not None and (self.failures or isinstance(error, NotAnswered)):
                breaker.open()
            raise
        finally:
            self.failures = self.failures + 1 if is_lost else 0
            if breaker is not None and not is_lost:  # also if it refuses the statement
                breaker.close()

    def _connect_within_s(self) -> float:
        return float(min(engines.CONNECT_TIMEOUT_S, PROBE_WITHIN_S * 2 ** min(self.failures, 10)))


def _kind_of(error: psycopg.Error, *, is_lost: bool) -> type[CallFailed]:
    if is_lost:
        return NotAnswered if isinstance(error, NoAnswer) else ConnectionLost
    return NodeLost if error.sqlstate == NODE_LOST else CallFailed
