"""Transactions of the group commit, which requests of several tenants share; and busy statements in one round trip.

Role and tenant are set as in `tenants.db`. The timeouts are shorter where tenants share: one tenant's locked row must
not block the others.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from psycopg import ClientCursor
from psycopg.rows import namedtuple_row

from tenants.db import SERVICE_ROLE, Tx, current_tx, service_connection, service_driver, set_role, set_tenant


@contextmanager
def shared_tx(first: str, *, shared: bool) -> Iterator[Callable[[str], Tx]]:
    """One transaction for the write requests of several tenants: `enter(tenant_id)` switches to that tenant.

    The caller runs what `after_commit` registered. The first tenant is set when the transaction opens.
    """
    opening = set_role(SERVICE_ROLE, shared=shared) + set_tenant(first)
    with service_connection(opening) as connection, Tx(connection, first) as tx:

        def enter(tenant_id: str) -> Tx:
            if tenant_id != tx.tenant_id:
                tx.expunge_all()
                connection.exec_driver_sql(set_tenant(tenant_id))
                tx.tenant_id = tenant_id
            return tx

        yield enter
        tx.flush()


def run_in_one_trip(calls: Sequence[tuple[str, str, Sequence[Any]]], *, shared: bool) -> list[Any]:
    """Run one statement for each tenant in one transaction and one round trip; returns each statement's row, or None.

    The server runs a message of several statements as one transaction, so there is neither a BEGIN nor a COMMIT; values
    are sent as literals. Nothing is sent again after an error: the server may have executed a message that it did not
    answer.
    """
    statements = (f"{set_tenant(tenant_id)} {statement}" for tenant_id, statement, _ in calls)
    values = [value for _, _, parameters in calls for value in parameters]
    with service_driver() as driver:
        cursor = ClientCursor(driver, row_factory=namedtuple_row)
        cursor.execute(set_role(SERVICE_ROLE, shared=shared) + ";".join(statements), values)
        return [result.fetchone() for result in cursor.results() if result.description]


def read_one(tenant_id: str, statement: str, parameters: Sequence[Any]) -> Any:
    """The only row that a statement on a tenant's rows returns, or None: in one round trip, for busy reads.

    Inside an open transaction of the tenant it is a part of it: a request uses one connection only.
    """
    tx = current_tx()
    if tx is not None and tx.tenant_id == tenant_id:
        return tx.raw.exec_driver_sql(statement, tuple(parameters)).one_or_none()
    return run_in_one_trip([(tenant_id, statement, parameters)], shared=False)[0]
