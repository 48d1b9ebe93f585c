"""Redis, which may become unavailable at any moment.

`boards()` and `queue()` are this process's two clients (they may be the same server). Both have short timeouts and no
retries, and a circuit breaker: after a failure this process does not try Redis again for a second, so that an outage
does not slow requests down. An outage is one critical line of each process, whichever clients notice it, and its end
one line.
"""

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import structlog
from redis import Redis
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.retry import Retry

from tenants.db import TENANT_ID
from tenants.errors import Unavailable
from tenants.waiting import require_may_wait

CONNECT_TIMEOUT_S = 0.2
TIMEOUT_S = 0.25
PROBE_EVERY_S = 1.0
MAX_IDLE_CONNECTIONS = 64

Command = Sequence[str | int]

log = structlog.get_logger()


class RedisUnavailable(Unavailable):
    """Callers fall back to PostgreSQL; only a caller without a fallback lets it propagate."""

    code = "redis_unavailable"
    title = "The cache is not available"


class Outage:
    """What this process logs of an outage: one line when the first server fails, one when all have worked again.

    Clients of the same server are one here, so that who seldom uses the queue does not keep its outage open.
    """

    def __init__(self) -> None:
        self.is_on = False
        self._since = 0.0
        # The servers that have failed, and when they last did.
        self._failed_at: dict[str, float] = {}
        self._lock = threading.Lock()

    def failed(self, server: str, error: Exception, *, client: str, now: float) -> None:
        with self._lock:
            self._failed_at[server] = now
            is_first, self.is_on = not self.is_on, True
            self._since = now if is_first else self._since
        if is_first:
            data = {"redis": client, "error": type(error).__name__}
            log.critical("Redis is not available", action="redis.outage", data=data)

    def worked(self, server: str, *, now: float) -> None:
        """Just after a failure this says nothing: calls of other threads were already on their way."""
        with self._lock:
            if now - self._failed_at.get(server, now) < PROBE_EVERY_S / 2:
                return
            del self._failed_at[server]
            self.is_on = bool(self._failed_at)
            is_over, since = not self.is_on, self._since
        if is_over:
            data = {"outage_s": round(now - since, 1)}
            log.info("Redis is available again", action="redis.recovered", data=data)


@dataclass
class Guarded:
    """A Redis client with a circuit breaker: `with guarded.client() as redis: …`, or RedisUnavailable."""

    name: str
    redis: "Redis"
    # Shared by the clients of a process.
    outage: Outage = field(default_factory=Outage)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _down_since: float | None = None
    _next_probe_at: float = 0.0
    # Connections for `read`, beside those of the client's pool. (Nothing reads before a fork, which would share them.)
    _idle: "deque[AbstractConnection]" = field(default_factory=deque)

    @contextmanager
    def client(self) -> Iterator["Redis"]:
        require_may_wait()
        if not self._may_try():
            raise RedisUnavailable
        try:
            yield self.redis
        except (RedisError, OSError) as error:
            self.note_failure(error)
            raise RedisUnavailable from error
        self._worked()

    def read(self, *commands: Command) -> list[Any]:
        """The answers to commands that change nothing, in one round trip; or RedisUnavailable.

        For the busiest reads: what the client itself does for each command takes longer than Redis. A connection that
        the server has closed since is replaced, and the commands are sent again.
        """
        with self.client() as client:
            pool = client.connection_pool
            try:
                idle: AbstractConnection | None = self._idle.pop()
            except IndexError:
                idle = None
            connection = idle or pool.connection_class(**pool.connection_kwargs)
            try:
                answers = _exchange(connection, commands)
            except RedisConnectionError:
                if idle is None:
                    raise
                self._idle.clear()  # they are as old
                answers = _exchange(connection, commands)
            if len(self._idle) < MAX_IDLE_CONNECTIONS:
                self._idle.append(connection)
            else:
                connection.disconnect()
            return answers

    def is_up(self) -> bool:
        try:
            with self.client() as redis:
                return bool(redis.ping())
        except RedisUnavailable:
            return False

    def _may_try(self) -> bool:
        """Breaker closed: every caller may. Open: one caller each second, to check whether Redis is back."""
        if self._down_since is None:
            return True
        with self._lock:
            now = time.monotonic()
            if now < self._next_probe_at:
                return False
            self._next_probe_at = now + PROBE_EVERY_S
            return True

    def note_failure(self, error: Exception) -> None:
        """A call failed: of this client, or of another one to the same server."""
        with self._lock:
            now = time.monotonic()
            self._down_since = now if self._down_since is None else self._down_since
            self._next_probe_at = now + PROBE_EVERY_S
        self.outage.failed(self._server, error, client=self.name, now=now)

    def _worked(self) -> None:
        if self._down_since is not None:
            with self._lock:
                self._down_since = None
        if self.outage.is_on:
            self.outage.worked(self._server, now=time.monotonic())

    @property
    def _server(self) -> str:
        """The server's address, without the number of a database."""
        options = self.redis.connection_pool.connection_kwargs
        return f"{options.get('path') or options.get('host')}:{options.get('port')}"


def _exchange(connection: "AbstractConnection", commands: Sequence[Command]) -> list[Any]:
    try:
        connection.send_packed_command(connection.pack_commands(commands))  # type: ignore[no-untyped-call]
        return [connection.read_response() for _ in commands]
    except BaseException:
        connection.disconnect()  # type: ignore[no-untyped-call]  # the next command would take what is still to come for its own answer
        raise


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
        boards=Guarded("boards", make_client(boards_url, timeout_s=boards_timeout_s), outage),
        queue=Guarded("queue", make_client(queue_url), outage),
    )


def is_configured() -> bool:
    return _clients is not None


def boards() -> Guarded:
    return _configured().boards


def queue() -> Guarded:
    return _configured().queue


def make_client(url: str, *, timeout_s: float = TIMEOUT_S) -> "Redis":
    # By default redis-py retries a timeout ten times.
    return Redis.from_url(
        url,
        socket_timeout=timeout_s,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
        health_check_interval=0,
    )


def key(kind: str, tenant_id: str, *parts: str) -> str:
    """The name of a tenant's key. Only the last part may contain a colon, so that names are unique."""
    if tenant_id != "_all" and TENANT_ID.fullmatch(tenant_id) is None:
        raise ValueError(f"not a tenant id: {tenant_id!r}")
    return ":".join((kind, tenant_id, *parts))


def _configured() -> _Clients:
    if _clients is None:
        raise RuntimeError("tenants.redis.configure() has not been called")
    return _clients
