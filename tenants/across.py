"""Reading over all tenants, for jobs and gauges.

On a Citus such a statement asks every node. While one is lost, it is run tenant by tenant instead, without those whose
rows are there: a lost node stops its own tenants only. So every statement here ends with `OF_ONE`, or the same of
another column.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import structlog
from sqlalchemy import TextClause, text
from sqlalchemy.exc import DBAPIError

from tenants.db import Tx, platform_tx

# Of this tenant; of all, if none is given.
OF_ONE = "(CAST(:tenant AS text) IS NULL OR t.id = CAST(:tenant AS text))"
NODE_LOST = "08006"

log = structlog.get_logger()
OpenTx = Callable[[], AbstractContextManager[Tx]]


def read(statement: TextClause, parameters: Mapping[str, Any] | None = None, *, tx: OpenTx = platform_tx) -> list[Any]:
    """The rows of a statement over all tenants, read in transactions of its own."""
    values = parameters or {}
    try:
        return _read(tx, statement, {**values, "tenant": None})
    except DBAPIError as error:
        if not is_node_lost(error):
            raise
        log.warning("a node of the database is lost", action="database.node.lost")
    return [
        row for tenant_id in _reachable(tx) for row in _read_if_there(tx, statement, {**values, "tenant": tenant_id})
    ]


def live_tenants() -> list[str]:
    """The ids of all tenants that are not deleted, in their order."""
    return [row.id for row in read(_LIVE)]


def every_live_tenant() -> list[str]:
    """The same, or an error while a node is lost: for what must not be decided without its tenants."""
    return [row.id for row in _read(platform_tx, _LIVE, {"tenant": None})]


def deleted_tenants() -> list[str]:
    """The ids of the tenants that are marked as deleted and not purged yet."""
    return [row.id for row in read(_DELETED)]


def is_node_lost(error: DBAPIError) -> bool:
    """Whether another node than ours could not be reached: our own connection still works."""
    return getattr(error.orig, "sqlstate", None) == NODE_LOST and not error.connection_invalidated


def _read(open_tx: OpenTx, statement: TextClause, values: Mapping[str, Any]) -> list[Any]:
    with open_tx() as tx:
        return tx.run(statement, values)


def _read_if_there(open_tx: OpenTx, statement: TextClause, values: Mapping[str, Any]) -> list[Any]:
    try:
        return _read(open_tx, statement, values)
    except DBAPIError as error:
        if is_node_lost(error):
            return []
        raise


def _reachable(open_tx: OpenTx) -> Iterator[str]:
    """The tenants on nodes that answer."""
    for row in _read(open_tx, _ON_EACH_SHARD, {}):
        yield from row.ids.split()


_LIVE = text(f"SELECT t.id FROM tenants t WHERE t.deleted_at IS NULL AND {OF_ONE} ORDER BY t.id")  # noqa: S608  ours
_DELETED = text(f"SELECT t.id FROM tenants t WHERE t.deleted_at IS NOT NULL AND {OF_ONE} ORDER BY t.id")  # noqa: S608
_ON_EACH_SHARD = text("""
    SELECT result AS ids FROM run_command_on_shards('tenants', 'SELECT string_agg(id, '' '' ORDER BY id) FROM %s')
    WHERE success AND result <> '' ORDER BY shardid
""")
