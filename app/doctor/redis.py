"""Redis: the server with the boards, or each primary of their cluster; and that of the queue if it is another one."""

import statistics
import time
from collections.abc import Iterable, Iterator
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from app.doctor.findings import Finding, ok, problem, size, warn
from app.doctor.installation import Installation
from tenants.redis import RedisUnavailable
from tenants.redis_cluster import ClusterClient

ABOUT = "Redis"
MIN_VERSIONS = {"redis": (6, 2), "valkey": (7, 2)}
PINGS = 20
SLOW_MS, VERY_SLOW_MS = 5.0, 100.0
MAX_MEMORY_SHARE = 0.9


def reachable(installation: Installation) -> Iterable[Finding]:
    try:
        found = list(servers(installation))
    except RedisUnavailable:
        yield _unreachable("No node of the cluster of the boards can be reached, or knows the others")
        found = [("queue", installation.queue)]
    for name, client in found:
        try:
            client.ping()
        except (RedisError, OSError) as error:
            yield _unreachable(f"The server of the {name} cannot be reached ({type(error).__name__})")


def _unreachable(what: str) -> Finding:
    return problem(
        ABOUT,
        what,
        why="board reads fall back to snapshots and PostgreSQL, and workers have no queue",
        advice="start it, or check REDIS_URL and PLAUDIT_QUEUE_REDIS_URL",
    )


def cluster(installation: Installation) -> Iterable[Finding]:
    """How many nodes the boards' cluster has, and whether they have all slots."""
    if not isinstance(installation.boards, ClusterClient):
        return
    nodes = installation.boards.nodes
    what = f"The boards are on a cluster of {len(nodes.primaries(updated=True))} primaries"
    if nodes.has_all_slots:
        yield ok(ABOUT, f"{what} and {nodes.replicas} replicas")
    else:
        yield problem(
            ABOUT,
            f"{what}, which do not have all slots",
            why="boards of the others are read from snapshots and PostgreSQL, and no board is written",
            advice="redis-cli --cluster fix",
        )


def version(client: "Redis") -> tuple[str, str]:
    """Whether it is redis or valkey, and its version. (Valkey also reports the Redis that it is compatible with.)"""
    info: dict[str, Any] = client.info("server")
    if "valkey_version" in info:
        return "valkey", str(info["valkey_version"])
    return "redis", str(info["redis_version"])


def supported_version(installation: Installation) -> Iterable[Finding]:
    for name, client in servers(installation):
        kind, number = version(client)
        if tuple(map(int, number.split(".")[:2])) < MIN_VERSIONS[kind]:
            needed = " or ".join(f"{k.title()} {major}.{minor}" for k, (major, minor) in MIN_VERSIONS.items())
            yield problem(
                ABOUT,
                f"The server of the {name} is {kind.title()} {number}",
                why=f"Plaudit needs {needed}, or newer",
                advice="upgrade it; nothing in it needs a backup",
            )
        else:
            yield ok(ABOUT, f"{kind.title()} {number} for the {name}")


def eviction(installation: Installation) -> Iterable[Finding]:
    for name, client in servers(installation):
        memory: dict[str, Any] = client.info("memory")
        policy, maximum, used = str(memory["maxmemory_policy"]), int(memory["maxmemory"]), int(memory["used_memory"])
        if policy != "noeviction":
            # Without a limit nothing is evicted; and a volatile policy takes only keys that expire anyway.
            evicts_boards = maximum > 0 and policy.startswith("allkeys")
            finding = problem if evicts_boards else warn
            yield finding(
                ABOUT,
                f"The server of the {name} has maxmemory-policy {policy}"
                + (f" at {size(maximum)}" if maximum else ", without a limit so far"),
                why="it may drop boards, limits or jobs silently: a board would be answered with rows missing",
                advice="CONFIG SET maxmemory-policy noeviction, and in its configuration",
            )
        if maximum and used > MAX_MEMORY_SHARE * maximum:
            yield warn(
                ABOUT,
                f"The server of the {name} uses {size(used)} of {size(maximum)}",
                why="when it is full it refuses writes, and boards fall behind",
                advice="raise maxmemory",
            )
        elif policy == "noeviction":
            yield ok(ABOUT, f"The server of the {name} evicts nothing; it uses {size(used)}")


def latency(installation: Installation) -> Iterable[Finding]:
    for name, client in servers(installation):
        took_ms = []
        for _ in range(PINGS):
            began = time.perf_counter()
            client.ping()
            took_ms.append((time.perf_counter() - began) * 1000)
        median_ms = statistics.median(took_ms)
        what = f"The server of the {name} answers in {median_ms:.1f} ms"
        if median_ms > SLOW_MS:
            finding = problem if median_ms > VERY_SLOW_MS else warn
            yield finding(
                ABOUT,
                what,
                why="every board read waits for it, and after 0.25 s it counts as unavailable",
                advice="put it nearer, or see what keeps it busy (SLOWLOG GET)",
            )
        else:
            yield ok(ABOUT, what)


def servers(installation: Installation) -> Iterator[tuple[str, "Redis"]]:
    """Each server once, with the name of what it is for."""
    settings = installation.settings
    if settings.queue_redis_url in {None, settings.redis_url}:
        yield "boards and queue", installation.boards
        return
    if isinstance(installation.boards, ClusterClient):
        for node in installation.boards.nodes.primaries():
            yield f"boards at {node.server}", node.redis
    else:
        yield "boards", installation.boards
    yield "queue", installation.queue
