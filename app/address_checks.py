"""Whether the drivers can use a server's address. Nothing is connected; what they say of passwords is not repeated."""

from psycopg.conninfo import make_conninfo
from redis import ConnectionPool
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.engine import make_url

from tenants.redis_addresses import ClusterAddress, is_cluster


def is_for_postgresql(url: str) -> bool:
    """Also whether libpq knows all options in its query."""
    try:
        _, options = PGDialect_psycopg().create_connect_args(make_url(url))  # type: ignore[no-untyped-call]
        make_conninfo(**options)
    except Exception:  # noqa: BLE001  each of the libraries has errors of its own
        return False
    return True


def is_for_redis(url: str) -> bool:
    """Also of a cluster. A connection that is not opened checks its options."""
    try:
        if is_cluster(url):
            address = ClusterAddress.parse(url)
            urls = [address.url_of(*node) for node in address.nodes]
            hosts = [host for host, _ in address.nodes]
        else:
            urls, hosts = [url], []
        for each in urls:
            ConnectionPool.from_url(each).make_connection()
        for host in hosts:
            host.encode("idna")
    except Exception:  # noqa: BLE001  as above
        return False
    return True
