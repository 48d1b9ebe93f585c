"""Transactions of the group commit, which requests of several tenants share; and busy statements in one round trip.

Role and tenant are set as in `tenants.db`. The timeouts are shorter where tenants share: one tenant's locked row must
not block the others.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.pq.abc import PGresult
from sqlalchemy import PoolProxiedConnection

from tenants import pipelines
from tenants.db import (
    SERVICE_ROLE,
    STATEMENT_TIMEOUT_MS,
    TRIP_STATEMENT_TIMEOUT_MS,
    TRIP_WITHIN_S,
    Tx,
    current_tx,
    refuse_inside_another,
    run_together,
    service_connection,
    service_engine,
    set_role,
    set_tenant,
)
from tenants.pipelines import BEGIN, COMMIT, Driver, NoAnswer, Statement
from tenants.waiting import require_may_wait

# For a transaction in one round trip that may wait for locks: a little longer than the server lets a statement take.
APART_WITHIN_S = STATEMENT_TIMEOUT_MS / 1000 + 2.0


@contextmanager
def shared_tx(first: str, *, shared: bool) -> Iterator[Callable[[str], Tx]]:
    """One transaction for the write requests of several tenants: `enter(tenant_id)` switches to that tenant.

    The caller runs what `after_commit` registered. The first tenant is set when the transaction opens.
    """
    opening = (*set_role(SERVICE_ROLE, shared=shared), set_tenant(first))
    with service_connection(opening) as connection, Tx(connection, first) as tx:

        def enter(tenant_id: str) -> Tx:
            if tenant_id != tx.tenant_id:
                tx.expunge_all()
                run_together(connection, set_tenant(tenant_id))
                tx.tenant_id = tenant_id
            return tx

        yield enter
        tx.flush()


# For each tenant a statement, and a value for each `%s`.
Calls = Sequence[tuple[str, str, Sequence[Any]]]


def run_in_one_trip(calls: Calls, *, shared: bool) -> list[Any]:
    """Run one statement for each tenant in one transaction and one round trip; returns each statement's row, or None.

    Nothing is sent again after an error: the server may have executed what it did not answer.
    """
    with _driver() as driver:
        within_s = TRIP_WITHIN_S if shared else APART_WITHIN_S
        return first_rows(driver, pipelines.run(driver, statements_of(calls, shared=shared), within_s=within_s))


def read_together(calls: Calls) -> list[list[Any]]:
    """All rows of one statement for each tenant, in one round trip. None of them waits for a lock."""
    if not calls:
        return []
    with _driver() as driver:
        opening = set_role(SERVICE_ROLE, statement_timeout_ms=TRIP_STATEMENT_TIMEOUT_MS)
        answers = pipelines.run(driver, _transaction(opening, calls), within_s=TRIP_WITHIN_S)
        return rows_of_calls(driver, answers)


def statements_of(calls: Calls, *, shared: bool) -> list[Statement]:
    """A transaction with these calls, from BEGIN to COMMIT."""
    return _transaction(set_role(SERVICE_ROLE, shared=shared), calls)


def _transaction(opening: Sequence[Statement], calls: Calls) -> list[Statement]:
    statements = [BEGIN, *opening]
    for tenant_id, statement, parameters in calls:
        statements += (set_tenant(tenant_id), pipelines.bound(statement, parameters))
    return [*statements, COMMIT]


def rows_of_calls(driver: Driver, answers: Sequence[PGresult]) -> list[list[Any]]:
    """What `statements_of` were answered: the rows of each call."""
    first = len(set_role(SERVICE_ROLE)) + 2
    return [pipelines.rows(driver, answer) for answer in answers[first:-1:2]]


def first_rows(driver: Driver, answers: Sequence[PGresult]) -> list[Any]:
    """The first row of each call, or None."""
    return [next(iter(rows), None) for rows in rows_of_calls(driver, answers)]


def call_definer(tenant_id: str, statement: str, parameters: Sequence[Any]) -> Any:
    """Call a function that runs as the owner (SECURITY DEFINER) in a tenant, alone in its transaction; returns its row.

    The role is set by set_config(), which Citus does not forward: there too the function's statements run as the owner.
    Alone, since rows that one role has changed in a transaction cannot be changed by another one in it.
    """
    as_service = pipelines.bound("SELECT set_config('role', %s, true)", [SERVICE_ROLE])
    opening = (as_service, *set_role(SERVICE_ROLE)[1:], set_tenant(tenant_id))
    with _driver() as driver:
        statements = (BEGIN, *opening, pipelines.bound(statement, parameters), COMMIT)
        answers = pipelines.run(driver, statements, within_s=APART_WITHIN_S)
        return next(iter(pipelines.rows(driver, answers[-2])), None)


def read_one(tenant_id: str, statement: str, parameters: Sequence[Any]) -> Any:
    """The only row that a statement on a tenant's rows returns, or None: in one round trip, for busy reads.

    Inside an open transaction of the tenant it is a part of it: a request uses one connection only.
    """
    tx = current_tx()
    if tx is not None and tx.tenant_id == tenant_id:
        return tx.raw.exec_driver_sql(statement, tuple(parameters)).one_or_none()
    return next(iter(read_together([(tenant_id, statement, parameters)])[0]), None)


@contextmanager
def _driver() -> Iterator[Driver]:
    """A connection of the service's pool, as the driver has it."""
    refuse_inside_another()
    pooled = _check_out()
    driver: Driver = pooled.driver_connection  # type: ignore[assignment]
    try:
        yield driver
    except psycopg.Error as error:
        if isinstance(error, NoAnswer):
            service_engine().dispose()  # its other connections would wait as long
        raise pipelines.as_dbapi_error(error, is_disconnect=driver.closed) from None
    finally:
        if driver.closed:
            pooled.invalidate()
        pooled.close()


def take_out() -> Driver:
    """A connection out of the pool, for good: the pool opens another one in its place."""
    pooled = _check_out()
    driver: Driver = pooled.driver_connection  # type: ignore[assignment]
    pooled.detach()
    return driver


def _check_out() -> PoolProxiedConnection:
    require_may_wait()
    engine = service_engine()
    try:
        pooled = engine.raw_connection()
        while pipelines.has_unread_input(pooled):  # the server sends some when it closes an idle connection
            pooled.invalidate()
            pooled.close()
            pooled = engine.raw_connection()
    except psycopg.Error as error:
        raise pipelines.as_dbapi_error(error, is_disconnect=True) from None
    return pooled
