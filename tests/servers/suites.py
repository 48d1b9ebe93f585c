"""The servers that other tests run on with `pytest --servers=…`, instead of those of the wheels: see the Makefile.

Each of pytest's processes starts its own.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from app.run.data_folder import Addresses
from tests.servers.postgres import PgBouncer, Postgres
from tests.servers.redis_cluster import RedisServer, running_cluster

# Connections to PostgreSQL for each database: fewer than the tests' threads, so that some wait for others.
POOL_SIZE = 4


@contextlib.contextmanager
def pgbouncer(folder: Path) -> Iterator[Addresses]:
    """Debian's PostgreSQL behind PgBouncer in transaction mode, and Debian's Redis."""
    with (
        Postgres(folder / "postgres") as server,
        PgBouncer(folder / "pgbouncer", server, pool_size=POOL_SIZE) as bouncer,
        RedisServer(folder / "redis") as redis,
    ):
        yield Addresses(bouncer.url(), "", redis.url)


@contextlib.contextmanager
def redis_cluster(folder: Path) -> Iterator[Addresses]:
    """Debian's PostgreSQL, a Redis Cluster of three for the boards, and a Redis for the queue."""
    with (
        Postgres(folder / "postgres") as server,
        running_cluster(folder) as cluster,
        RedisServer(folder / "queue") as queue,
    ):
        os.environ["PLAUDIT_QUEUE_REDIS_URL"] = queue.url
        yield Addresses(server.url(), "", cluster.url)
        del os.environ["PLAUDIT_QUEUE_REDIS_URL"]


SERVERS: dict[str, Callable[[Path], AbstractContextManager[Addresses]]] = {
    "pgbouncer": pgbouncer,
    "redis-cluster": redis_cluster,
}
