"""One Redis server, which may become unavailable at any moment, behind a circuit breaker.

Its client has short timeouts and no retries. After a failure this process does not try the server again for a second,
so that an outage does not slow requests down. An outage is one critical line of each process, whichever clients notice
it, and its end one line.
"""

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import structlog
from redis import Redis
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection
from redis.exceptions import AskError, RedisError, TryAgainError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from tenants.errors import Unavailable
from tenants.waiting import require_may_wait

CONNECT_TIMEOUT_S = 0.2
TIMEOUT_S = 0.25
PROBE_EVERY_S = 1.0
MAX_IDLE_CONNECTIONS = 64

Command = Sequence[Any]

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
        # Facts that callers found out since a server failed, or a connection to one was lost. Either replaces the set,
        # so what somebody was about to add then is not in the new one.
        self.known_since: set[str] = set()
        self._since = 0.0
        # The servers that have failed, and when they last did.
        self._failed_at: dict[str, float] = {}
        # All that have failed since its beginning.
        self._servers: set[str] = set()
        self._lock = threading.Lock()

    def failed(self, server: str, error: Exception, *, client: str, now: float) -> None:
        with self._lock:
            self.known_since = set()
            self._failed_at[server] = now
            is_first, self.is_on = not self.is_on, True
            self._since = now if is_first else self._since
            self._servers = {server} if is_first else {*self._servers, server}
        if is_first:
            data = {"redis": client, "server": server, "error": type(error).__name__}
            log.critical("Redis is not available", action="redis.outage", data=data)

    def forget(self) -> None:
        """A connection was lost: the server may have been restarted since, or may have hung."""
        self.known_since = set()

    def worked(self, server: str, *, now: float) -> None:
        """Just after a failure this says nothing: calls of other threads were already on their way."""
        with self._lock:
            if now - self._failed_at.get(server, now) < PROBE_EVERY_S / 2:
                return
            del self._failed_at[server]
            self.is_on = bool(self._failed_at)
            is_over, since, servers = not self.is_on, self._since, self._servers
        if is_over:
            self._log_end(servers, now - since)

    def left(self, server: str, *, now: float) -> None:
        """A node that is no longer a primary of its cluster: nobody waits for it."""
        with self._lock:
            if self._failed_at.pop(server, None) is None:
                return
            self.is_on = bool(self._failed_at)
            is_over, since, servers = not self.is_on, self._since, self._servers
        if is_over:
            self._log_end(servers, now - since)

    @staticmethod
    def _log_end(servers: set[str], outage_s: float) -> None:
        data = {"server": ", ".join(sorted(servers)), "outage_s": round(outage_s, 1)}
        log.info("Redis is available again", action="redis.recovered", data=data)


@dataclass(frozen=True)
class Sent:
    """Commands on their way to a server."""

    commands: Sequence[Command]
    connection: "AbstractConnection"
    # Whether the connection was used before: then the server may have closed it since.
    is_used: bool


@dataclass(eq=False)
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
        with self.client():
            connection, is_used = self._take_connection()
            try:
                answers = _exchange(connection, commands)
            except RedisConnectionError:
                if not is_used:
                    raise
                self._forget_connections()
                answers = _exchange(connection, commands)
            self._put_back(connection)
            return answers

    def send(self, commands: Sequence[Command]) -> Sent:
        """Send commands, and leave their answers for later: for a caller who asks several servers at once."""
        require_may_wait()
        if not self._may_try():
            raise RedisUnavailable
        with self._noting_failure():
            connection, is_used = self._take_connection()
            try:
                _send(connection, commands)
            except RedisConnectionError:
                if not is_used:
                    raise
                self._forget_connections()
                _send(connection, commands)
                is_used = False
        return Sent(commands, connection, is_used)

    def receive(self, sent: Sent, *, until: float | None = None) -> list[Any]:
        """The answers to what was sent; one that says to ask elsewhere is in its place as an error, and not raised.

        `until`: by when the server must have begun to answer, if that is sooner than the client's timeout.
        """
        with self._noting_failure():
            try:
                answers = _receive(sent, until)
            except RedisConnectionError:
                if not sent.is_used:
                    raise
                self._forget_connections()
                _send(sent.connection, sent.commands)
                answers = _receive(sent, until)
        self._put_back(sent.connection)
        self._worked()
        return answers

    @property
    def is_down(self) -> bool:
        """Whether it failed when it was last tried."""
        return self._down_since is not None

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
        self.outage.failed(self.server, error, client=self.name, now=now)

    def _worked(self) -> None:
        if self._down_since is not None:
            with self._lock:
                self._down_since = None
        if self.outage.is_on:
            self.outage.worked(self.server, now=time.monotonic())

    @property
    def away_s(self) -> float:
        """How long ago it failed, if it has not worked since."""
        since = self._down_since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def partly_away_s(self) -> float:
        """For how long some servers have been away, of which others may still be used: see GuardedCluster."""
        return 0.0

    @contextmanager
    def _noting_failure(self) -> Iterator[None]:
        try:
            yield
        except (RedisError, OSError) as error:
            self.note_failure(error)
            raise RedisUnavailable from error

    def _take_connection(self) -> tuple["AbstractConnection", bool]:
        """A connection, and whether it was used before: then the server may have closed it since."""
        try:
            return self._idle.pop(), True
        except IndexError:
            pool = self.redis.connection_pool
            return pool.connection_class(**pool.connection_kwargs), False

    def _forget_connections(self) -> None:
        """The server has closed one of them. The others are as old."""
        self._idle.clear()
        self.outage.forget()

    def _put_back(self, connection: "AbstractConnection") -> None:
        if len(self._idle) < MAX_IDLE_CONNECTIONS:
            self._idle.append(connection)
        else:
            connection.disconnect()  # type: ignore[no-untyped-call]

    @property
    def server(self) -> str:
        """The server's address, without the number of a database."""
        options = self.redis.connection_pool.connection_kwargs
        return str(options["path"]) if "path" in options else f"{options.get('host')}:{options.get('port')}"


def _receive(sent: Sent, until: float | None) -> list[Any]:
    connection = sent.connection
    try:
        if until is not None and not connection.can_read(max(0.0, until - time.monotonic())):
            _raise_timeout()
        return [_answer(connection) for _ in sent.commands]
    except BaseException:
        connection.disconnect()  # type: ignore[no-untyped-call]
        raise


def _raise_timeout() -> NoReturn:
    raise RedisTimeoutError


def _answer(connection: "AbstractConnection") -> Any:
    try:
        return connection.read_response()
    except (AskError, TryAgainError) as error:
        return error


def _exchange(connection: "AbstractConnection", commands: Sequence[Command]) -> list[Any]:
    try:
        _send(connection, commands)
        return [connection.read_response() for _ in commands]
    except BaseException:
        connection.disconnect()  # type: ignore[no-untyped-call]  # the next command would take what is still to come for its own answer
        raise


def _send(connection: "AbstractConnection", commands: Sequence[Command]) -> None:
    connection.send_packed_command(connection.pack_commands(commands))  # type: ignore[no-untyped-call]


def make_client(url: str, *, timeout_s: float = TIMEOUT_S) -> "Redis":
    # By default redis-py retries a timeout ten times.
    return Redis.from_url(
        url,
        socket_timeout=timeout_s,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
        health_check_interval=0,
    )
