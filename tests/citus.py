"""Databases on a Citus, where PLAUDIT_TEST_CITUS_URL names one: a superuser's database on a coordinator with workers.

The tests' databases are created on the coordinator and on every worker, migrated and distributed.
"""

import contextlib
import os
from collections.abc import Iterator
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy.engine import make_url

from migrations import distribution
from migrations.run import migrate
from tenants.engines import make_engine
from tests.service import eventually

# For a test that looks at the server's own locks, statistics or connections, which another node has here.
not_on_citus = pytest.mark.skipif("PLAUDIT_TEST_CITUS_URL" in os.environ, reason="it watches the server itself")
URL = os.environ.get("PLAUDIT_TEST_CITUS_URL")
# A table has so many parts: few, since every part is created and dropped for every database.
SHARDS = 4


@contextlib.contextmanager
def new_database(name: str) -> Iterator[str]:
    """The address of a new database that has no schema, on all nodes; dropped at the end of the block."""
    assert URL is not None
    with psycopg.connect(URL, autocommit=True) as coordinator:
        nodes = coordinator.execute("SELECT nodename, nodeport, groupid FROM pg_dist_node ORDER BY groupid").fetchall()
    assert nodes[0][2] == 0, "the coordinator is in its own list of nodes: citus_set_coordinator_host()"
    urls = [make_url(URL).set(host=host, port=port).render_as_string(hide_password=False) for host, port, _ in nodes]
    try:
        with psycopg.connect(URL, autocommit=True) as alone:
            # Nodes are given the roles when they are added: two databases at once would be refused.
            alone.execute("SELECT pg_advisory_lock(1)")
            _create(name, urls, nodes)
        yield make_url(URL).set(database=name).render_as_string(hide_password=False)
    finally:
        for url in urls:
            with psycopg.connect(url, autocommit=True) as server:
                eventually(partial(_drop, server, name), every_s=0.5)


def _create(name: str, urls: list[str], nodes: list[tuple[Any, ...]]) -> None:
    """A database on every node, which the coordinator's knows of."""
    assert URL is not None
    for url in urls:
        with psycopg.connect(url, autocommit=True) as server:
            server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        with psycopg.connect(url, dbname=name) as node:
            node.execute("CREATE EXTENSION citus")
    with psycopg.connect(URL, dbname=name, autocommit=True) as coordinator:
        coordinator.execute(
            sql.SQL("ALTER DATABASE {} SET citus.shard_count = {}").format(sql.Identifier(name), SHARDS)
        )
        coordinator.execute("SELECT citus_set_coordinator_host(%s, %s)", nodes[0][:2])
        for host, port, _ in nodes[1:]:
            coordinator.execute("SELECT citus_add_node(%s, %s)", (host, port))


def _drop(server: "psycopg.Connection[Any]", name: str) -> bool:
    """Whether the database is gone: Citus connects to it now and then, and may be back in the moment of the drop."""
    with contextlib.suppress(psycopg.errors.ObjectInUse):
        server.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
        return True
    return False


def distribute(url: str) -> None:
    engine = make_engine(url, pool_size=1)
    migrate(engine, service_url=None)
    list(distribution.distribute(engine))
    engine.dispose()
