"""The environment, read once and typed. An invalid value stops the start with a one-line error."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qs, parse_qsl, quote, urlencode, urlsplit

from tenants.redis_addresses import ClusterAddress, is_cluster
from tenants.security_events import ADDRESSES, Addresses

LogFormat = Literal["json", "console"]
DEFAULT_DATA_DIR = Path(".plaudit")
DEFAULT_JOB_CONNECTIONS = 4
# Longer than the proxy of docs/operating.md keeps an idle connection, or leaves out a node that was away.
DEFAULT_DRAIN_S = 8
MAX_DIGITS = 18
# Ours, and those without our prefix.
NAMES = re.compile("PLAUDIT_.*|DATABASE_URL|REDIS_URL|SENTRY_DSN|LOG_FORMAT|PROMETHEUS_MULTIPROC_DIR")


class SettingsError(Exception):
    """A value of the environment that cannot be used; the message says which, and what it must be."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    database_url: str | None
    # The owner past a pooler, for what needs a connection of its own: backups, restores, migrations.
    direct_database_url: str | None
    service_database_url: str | None
    # Connections of a process for requests or jobs, if set.
    database_pool: int | None
    redis_url: str | None
    queue_redis_url: str | None
    host: str
    port: int
    live_port: int
    # Whether it was set: otherwise any free port is used.
    has_live_port: bool
    public_url: str
    # Whether it was set: then there may be a proxy in front of this machine.
    has_public_url: bool
    live_url: str
    proxy_hops: int
    data_dir: Path
    secret_key: str | None
    metrics_token: str | None
    metrics_dir: Path | None
    # Where workers and cron serve the metrics of their machine; None: nowhere.
    metrics_port: int | None
    # Sent with each request of the demo's own traffic, so that these requests are not logged.
    demo_secret: str | None
    sentry_dsn: str | None
    log_format: LogFormat | None
    # How much of a caller's address security events have.
    log_addresses: Addresses
    allows_colours: bool
    web_processes: int
    # Requests that a process handles at once.
    web_threads: int
    # How long `web` and `live` go on after SIGTERM, and say that they are not ready.
    drain_s: int

    @property
    def request_connections(self) -> int:
        """The pool of a process that answers requests: few of them need a connection at the same moment."""
        return self.database_pool or self.web_threads // 2 + 1

    @property
    def job_connections(self) -> int:
        """The pool of a worker, cron or command, which uses one connection at a time."""
        return self.database_pool or DEFAULT_JOB_CONNECTIONS

    @property
    def may_be_behind_proxy(self) -> bool:
        """Then every request comes from loopback, and not every proxy adds X-Forwarded-For."""
        return bool(self.proxy_hops) or self.has_public_url

    @property
    def all_web_threads(self) -> int:
        """With threads for requests that wait: enough that one tenant's waiting requests leave room for others'."""
        return 5 * self.web_threads

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> "Settings":
        env = os.environ if env is None else env
        _require_text(env)
        port = _integer(env, "PLAUDIT_PORT", 8000, minimum=1, maximum=65535)
        live_port = _integer(env, "PLAUDIT_LIVE_PORT", port + 1, minimum=1, maximum=65535)
        public_url = _url(env, "PLAUDIT_PUBLIC_URL", {"http", "https"}) or f"http://127.0.0.1:{port}"
        proxy_hops = _integer(env, "PLAUDIT_PROXY_HOPS", 0, minimum=0, maximum=10)
        # Without a proxy nobody would send new connections elsewhere.
        drain_s = DEFAULT_DRAIN_S if proxy_hops or env.get("PLAUDIT_PUBLIC_URL") else 0
        redis_url = _redis_url(env)
        metrics_dir = env.get("PROMETHEUS_MULTIPROC_DIR")
        return cls(
            database_url=_database_url(env, "DATABASE_URL"),
            direct_database_url=_direct_database_url(env),
            service_database_url=_database_url(env, "PLAUDIT_SERVICE_DATABASE_URL"),
            database_pool=_integer(env, "PLAUDIT_DATABASE_POOL", 0, minimum=1, maximum=1_000) or None,
            redis_url=redis_url,
            queue_redis_url=_queue_redis_url(env, redis_url),
            host=_host(env),
            port=port,
            live_port=live_port,
            has_live_port=bool(env.get("PLAUDIT_LIVE_PORT")),
            public_url=public_url.rstrip("/"),
            has_public_url=bool(env.get("PLAUDIT_PUBLIC_URL")),
            live_url=_live_url(env, public_url, live_port),
            proxy_hops=proxy_hops,
            data_dir=Path(env.get("PLAUDIT_DATA_DIR") or DEFAULT_DATA_DIR),
            secret_key=_secret(env),
            metrics_token=env.get("PLAUDIT_METRICS_TOKEN") or None,
            metrics_dir=Path(metrics_dir) if metrics_dir else None,
            metrics_port=_integer(env, "PLAUDIT_METRICS_PORT", 0, minimum=1, maximum=65535) or None,
            demo_secret=env.get("PLAUDIT_DEMO_SECRET") or None,
            sentry_dsn=_sentry_dsn(env),
            log_format=_log_format(env),
            log_addresses=_log_addresses(env),
            allows_colours="NO_COLOR" not in env,
            web_processes=_integer(env, "PLAUDIT_WEB_PROCESSES", 2, minimum=1, maximum=64),
            web_threads=_integer(env, "PLAUDIT_WEB_THREADS", 32, minimum=1, maximum=512),
            drain_s=_integer(env, "PLAUDIT_DRAIN_S", drain_s, minimum=0, maximum=300),
        )


def socket_address(host: str, port: int) -> str:
    """Where a process listens, for people: an IPv6 address is in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _require_text(env: Mapping[str, str]) -> None:
    """Bytes that are no UTF-8 are surrogates here, which nothing can print or send."""
    for name, value in env.items():
        if NAMES.fullmatch(name):
            try:
                value.encode()
            except UnicodeEncodeError:
                raise SettingsError(f"{name} must be UTF-8") from None


def _integer(env: Mapping[str, str], name: str, default: int, *, minimum: int, maximum: int) -> int:
    raw = env.get(name)
    if not raw:
        return default
    if not raw.isascii() or not raw.isdigit() or len(raw) > MAX_DIGITS or not minimum <= int(raw) <= maximum:
        raise SettingsError(f"{name} must be a whole number from {minimum} to {maximum}, not {raw[:20]!r}")
    return int(raw)


def _url(env: Mapping[str, str], name: str, schemes: set[str]) -> str | None:
    raw = env.get(name)
    if not raw:
        return None
    problem = f"{name} must be an address that starts with {' or '.join(sorted(s + '://' for s in schemes))}"
    try:
        parts = urlsplit(raw)
        _ = parts.port
        (parts.hostname or "").encode("idna")
    except ValueError:  # also Unicode's
        raise SettingsError(problem) from None
    # The value may contain a password, so the message does not repeat it.
    if parts.scheme.split("+")[0] not in schemes or "://" not in raw or not (parts.netloc or parts.path):
        raise SettingsError(problem)
    return raw


def _database_url(env: Mapping[str, str], name: str) -> str | None:
    """The address of a database. Several hosts are moved to its query, where SQLAlchemy and libpq both read them.

    Of several, only one that accepts writes is connected to, unless the address says otherwise.
    """
    raw = env.get(name)
    if not raw:
        return None
    scheme, separator, rest = raw.partition("://")
    netloc = re.match(r"[^/?#]*", rest)[0]  # type: ignore[index]  # matches always
    login, at, hosts = netloc.rpartition("@")
    several = hosts.split(",")
    if len(several) > 1:
        rest = f"{login}{at}{rest[len(netloc) :]}"
        rest += f"{'&' if '?' in rest else '?'}{_hosts_query(name, several)}"
    url = _url({name: f"{scheme}{separator}{rest}"}, name, {"postgresql", "postgres"}) or ""
    parts = urlsplit(url)
    if not parts.path.strip("/"):
        raise SettingsError(f"{name} must name a database: postgresql://user:password@host:5432/database")
    query = parse_qs(parts.query)
    if len(query.get("host", [])) > 1 and not hosts and "port" not in query:  # as SQLAlchemy writes them
        others = urlencode([(key, value) for key, value in parse_qsl(parts.query) if key != "host"])
        return _database_url({name: f"{raw.partition('?')[0]}?{others}&{_hosts_query(name, query['host'])}"}, name)
    if len(query.get("host", [])) > 1 or len(query.get("port", [])) > 1:
        raise SettingsError(f"{name} must name its hosts and ports once: before the database, or in its query")
    if "password" in query:  # tools would have it on their command line
        raise SettingsError(f"{name} must have its password before the host: postgresql://user:password@host/database")
    if "," in query.get("host", [""])[0] and "target_session_attrs" not in query:
        url += "&target_session_attrs=read-write"
    if query:  # else there is nothing that only the driver knows, and that takes long to load
        from app.address_checks import is_for_postgresql

        if not is_for_postgresql(url):
            raise SettingsError(f"{name} must have options of PostgreSQL in its query, and numbers as ports")
    return url


def _hosts_query(name: str, several: list[str]) -> str:
    """`a:1`, `[::1]:2` as `host=a,::1&port=1,2`."""
    found = [_HOST_AND_PORT.fullmatch(host) for host in several]
    if not all(found):
        raise SettingsError(f"{name} must name its hosts as host:port,host:port, an IPv6 address in brackets")
    hosts = ",".join(match[1] or match[2] for match in found if match)
    ports = ",".join(match[3] or "" for match in found if match)
    return f"host={quote(hosts, safe=':')}&port={quote(ports)}"


_HOST_AND_PORT = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9._~-]+))(?::([0-9]{1,5}))?")


def _direct_database_url(env: Mapping[str, str]) -> str | None:
    url = _database_url(env, "PLAUDIT_DIRECT_DATABASE_URL")
    if url and not env.get("DATABASE_URL"):
        raise SettingsError("PLAUDIT_DIRECT_DATABASE_URL is another way to the database of DATABASE_URL: set that too")
    return url


def _redis_url(env: Mapping[str, str]) -> str | None:
    """A server, or a cluster: `redis+cluster://a:1,b:2`."""
    raw = env.get("REDIS_URL") or ""
    if not is_cluster(raw):
        return _redis_server_url(env, "REDIS_URL")
    try:
        address = ClusterAddress.parse(raw)
    except ValueError:
        raise SettingsError(
            "REDIS_URL must name the nodes of a cluster as redis+cluster://user:password@host:port,host:port"
        ) from None
    for node in address.nodes:
        _redis_server_url({"REDIS_URL": address.url_of(*node)}, "REDIS_URL")
    return raw


def _redis_server_url(env: Mapping[str, str], name: str) -> str | None:
    url = _url(env, name, {"redis", "rediss", "unix"})
    if url is not None and urlsplit(url).query:
        from app.address_checks import is_for_redis

        if not is_for_redis(url):
            raise SettingsError(f"{name} must have options of redis-py in its query")
    return url


def _queue_redis_url(env: Mapping[str, str], redis_url: str | None) -> str | None:
    """That of the boards, unless it is a cluster, which RQ cannot use."""
    if is_cluster(env.get("PLAUDIT_QUEUE_REDIS_URL") or ""):
        raise SettingsError("PLAUDIT_QUEUE_REDIS_URL must be one Redis server, not a cluster: redis://host:6379/0")
    url = _redis_server_url(env, "PLAUDIT_QUEUE_REDIS_URL")
    if url is None and is_cluster(redis_url or ""):
        raise SettingsError(
            "PLAUDIT_QUEUE_REDIS_URL must be set beside a Redis Cluster, to a Redis server for the queue: "
            "redis://host:6379/0"
        )
    return url or redis_url


def _live_url(env: Mapping[str, str], public_url: str, live_port: int) -> str:
    """Where browsers open sockets: as set, else on the public origin (behind a proxy), else on the live port."""
    live_url = _url(env, "PLAUDIT_LIVE_URL", {"http", "https", "ws", "wss"})
    if live_url:
        return live_url.rstrip("/")
    if env.get("PLAUDIT_PUBLIC_URL"):
        return public_url.rstrip("/")
    return f"http://127.0.0.1:{live_port}"


def _host(env: Mapping[str, str]) -> str:
    host = env.get("PLAUDIT_HOST") or "127.0.0.1"
    try:
        host.encode("idna")
    except UnicodeError:
        raise SettingsError("PLAUDIT_HOST must be a host name or an address") from None
    return host


def _sentry_dsn(env: Mapping[str, str]) -> str | None:
    dsn = _url(env, "SENTRY_DSN", {"http", "https"})
    if dsn is not None:
        parts = urlsplit(dsn)
        if not parts.username or not parts.path.rpartition("/")[2].isdecimal():
            raise SettingsError("SENTRY_DSN must be https://key@host/project, with the project's number")
    return dsn


def _secret(env: Mapping[str, str]) -> str | None:
    secret = env.get("PLAUDIT_SECRET_KEY") or None
    if secret is not None and len(secret) < 32:
        raise SettingsError("PLAUDIT_SECRET_KEY must have at least 32 characters")
    return secret


def _log_format(env: Mapping[str, str]) -> LogFormat | None:
    match env.get("LOG_FORMAT") or None:
        case None:
            return None
        case "json":
            return "json"
        case "console":
            return "console"
        case other:
            raise SettingsError(f"LOG_FORMAT must be json or console, not {other!r}")


def _log_addresses(env: Mapping[str, str]) -> Addresses:
    given = env.get("PLAUDIT_LOG_ADDRESSES") or "cut"
    for known in ADDRESSES:
        if given == known:
            return known
    raise SettingsError(f"PLAUDIT_LOG_ADDRESSES must be cut, whole or none, not {given!r}")
