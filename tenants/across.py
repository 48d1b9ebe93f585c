"""Reading over all tenants, for jobs and gauges.

On a Citus such a statement asks every node. While one is lost, it is run tenant by tenant instead, without those whose
rows are there: a lost node stops its own tenants only. So every statement here ends with `OF_ONE`, or the same of
another column.

A node that is gone is noticed at once. One that hangs costs a statement's timeout, so it is left alone for a while.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import structlog
from sqlalchemy import TextClause, text
from sqlalchemy.exc import DBAPIError

from tenants.db import Tx, owner_tx, platform_tx
from tenants.pipelines import NoAnswer


def of_one(column: str) -> str:
    """Of this tenant; of all, if none is given. Each table of a subquery needs it, or all nodes are asked."""
    return f"(CAST(:tenant AS text) IS NULL OR {column} = CAST(:tenant AS text))"


OF_ONE = of_one("t.id")
NODE_LOST = "08006"
STATEMENT_TIMED_OUT = "57014"
READ_TIMEOUT_MS = 10_000
# The owner looks through large tables.
OWNER_READ_TIMEOUT_MS = 60_000
# To ask a single node for its tenants.
NODE_TIMEOUT_MS = 2_000
# Within which a node that hung is not asked again.
LEFT_ALONE_S = 30.0

log = structlog.get_logger()
OpenTx = Callable[[], AbstractContextManager[Tx]]
# A node's host and port, and until when it is left alone.
_hung: dict[tuple[str, int], float] = {}


def read(statement: TextClause, parameters: Mapping[str, Any] | None = None, *, tx: OpenTx = platform_tx) -> list[Any]:
    """The rows of a statement over all tenants, read in transactions of its own."""
    values = parameters or {}
    if not _left_alone():
        try:
            return _read(tx, statement, {**values, "tenant": None})
        except DBAPIError as error:
            if not _may_be_of_a_node(error):
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


def _may_be_of_a_node(error: DBAPIError) -> bool:
    """Whether a node is lost; or may hang, since something took too long on a Citus."""
    if is_node_lost(error):
        return True
    is_late = getattr(error.orig, "sqlstate", None) == STATEMENT_TIMED_OUT or isinstance(error.orig, NoAnswer)
    return is_late and bool(_read(platform_tx, _IS_CITUS, {}))


def _left_alone() -> set[tuple[str, int]]:
    """The nodes that hung a moment ago."""
    now = time.monotonic()
    return {node for node, until in _hung.items() if until > now}


def _read(open_tx: OpenTx, statement: TextClause, values: Mapping[str, Any], *, timeout_ms: int = 0) -> list[Any]:
    with open_tx() as tx:
        tx.set_statement_timeout(timeout_ms or (OWNER_READ_TIMEOUT_MS if open_tx is owner_tx else READ_TIMEOUT_MS))
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
    left_alone = _left_alone()
    for node in _read(open_tx, _NODES, {}):
        address = (node.host, node.port)
        if address in left_alone:
            continue
        asked = {"host": node.host, "port": node.port, "tenants": node.tenants}
        try:
            rows = _read(open_tx, _ON_NODE, asked, timeout_ms=NODE_TIMEOUT_MS)
        except DBAPIError as error:
            if not _may_be_of_a_node(error):
                raise
            _hung[address] = time.monotonic() + LEFT_ALONE_S
            log.warning(
                "a node of the database hangs", action="database.node.hangs", data={"node": f"{node.host}:{node.port}"}
            )
            continue
        for row in rows:
            yield from row.ids.split()


_LIVE = text(f"SELECT t.id FROM tenants t WHERE t.deleted_at IS NULL AND {OF_ONE} ORDER BY t.id")  # noqa: S608  ours
_DELETED = text(f"SELECT t.id FROM tenants t WHERE t.deleted_at IS NOT NULL AND {OF_ONE} ORDER BY t.id")  # noqa: S608
_IS_CITUS = text("SELECT oid FROM pg_extension WHERE extname = 'citus'")
# Each node that has tenants, and a statement for it that reads them all.
_NODES = text("""
    SELECT nodename AS host, nodeport AS port,
           string_agg(format('SELECT id FROM %I', 'tenants_' || shardid), ' UNION ALL ' ORDER BY shardid) AS tenants
    FROM pg_dist_shard JOIN pg_dist_placement USING (shardid) JOIN pg_dist_node USING (groupid)
    WHERE logicalrelid = 'tenants'::regclass GROUP BY nodename, nodeport ORDER BY min(shardid)
""")
_ON_NODE = text("""
    SELECT result AS ids FROM master_run_on_worker(
        ARRAY[:host], ARRAY[CAST(:port AS int)],
        ARRAY['SELECT string_agg(id, '' '' ORDER BY id) FROM (' || :tenants || ') every'], false)
    WHERE success AND result <> ''
""")
