"""Redis, which may become unavailable at any moment: this process's clients, and the names of keys.

`boards()` and `queue()` are the two clients. They may be the same server; the boards may also be on a cluster, with a
circuit breaker for each of its nodes (`tenants/redis_cluster.py`). What a caller may rely on is the same.
"""

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tenants import redis_server
from tenants.db import TENANT_ID
from tenants.redis_addresses import ClusterAddress, is_cluster
from tenants.redis_cluster import ClusterClient, GuardedCluster
from tenants.redis_server import PROBE_EVERY_S, TIMEOUT_S, Command, Guarded, Outage, RedisUnavailable

if TYPE_CHECKING:
    from redis import Redis

__all__ = ["PROBE_EVERY_S", "TIMEOUT_S", "Command", "Guarded", "Outage", "RedisUnavailable"]


@dataclass(frozen=True)
class _Clients:
    boards: Guarded
    queue: Guarded


_clients: _Clients | None = None


def configure(*, boards_url: str, queue_url: str, boards_timeout_s: float = TIMEOUT_S) -> None:
    """Set Redis's addresses, once per process. Opens no connection yet."""
    global _clients  # noqa: PLW0603  as in tenants.db
    outage = Outage()
    _clients = _Clients(
        boards=_guarded("boards", boards_url, outage, timeout_s=boards_timeout_s),
        queue=_guarded("queue", queue_url, outage),
    )


def is_configured() -> bool:
    return _clients is not None


def boards() -> Guarded:
    return _configured().boards


def queue() -> Guarded:
    return _configured().queue


def make_client(url: str, *, timeout_s: float = TIMEOUT_S) -> "Redis":
    """A client of a server or a cluster, which opens no connection yet. Commands on a cluster need a key."""
    return _guarded("", url, Outage(), timeout_s=timeout_s).redis


def refusal(**urls: str | None) -> str | None:
    """Which variable's address Redis refuses, in one line; None: none of them. A server that is down may come."""
    from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

    for variable, url in urls.items():
        try:
            if url is not None:
                with contextlib.closing(make_client(url)) as client:
                    on_every_server(client, "PING")
        except RedisError as error:
            if isinstance(error, AuthenticationError | NoPermissionError) or "DB index" in str(error):
                return f"Redis refuses the login or the database ({str(error).strip('.')}): check {variable}"
    return None


def on_every_server(client: "Redis", *command: Any) -> list[Any]:
    """The answers to a command without a key: that of the server, or those of all primaries of a cluster."""
    if isinstance(client, ClusterClient):
        return client.on_every_primary(*command)
    return [client.execute_command(*command)]  # type: ignore[no-untyped-call]


def key(kind: str, tenant_id: str, *parts: str) -> str:
    """The name of a tenant's key. Only the last part may contain a colon, so that names are unique."""
    if tenant_id != "_all" and TENANT_ID.fullmatch(tenant_id) is None:
        raise ValueError(f"not a tenant id: {tenant_id!r}")
    return ":".join((kind, tenant_id, *parts))


def _guarded(name: str, url: str, outage: Outage, *, timeout_s: float = TIMEOUT_S) -> Guarded:
    if is_cluster(url):
        return GuardedCluster.at(ClusterAddress.parse(url), name=name, outage=outage, timeout_s=timeout_s)
    return Guarded(name, redis_server.make_client(url, timeout_s=timeout_s), outage)


def _configured() -> _Clients:
    if _clients is None:
        raise RuntimeError("tenants.redis.configure() has not been called")
    return _clients
