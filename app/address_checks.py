"""Whether the drivers know the options in a server's address. Nothing is connected."""

from psycopg.conninfo import make_conninfo
from redis import ConnectionPool
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.engine import make_url


def is_for_postgresql(url: str) -> bool:
    try:
        _, options = PGDialect_psycopg().create_connect_args(make_url(url))  # type: ignore[no-untyped-call]
        make_conninfo(**options)
    except Exception:  # noqa: BLE001  each of the libraries has errors of its own
        return False
    return True


def is_for_redis(url: str) -> bool:
    """Of one server. A connection checks its options before it is opened."""
    try:
        ConnectionPool.from_url(url).make_connection()
    except Exception:  # noqa: BLE001  as above
        return False
    return True
