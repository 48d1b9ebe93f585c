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
# What a server is for.
BOARDS, QUEUE, BOARDS_AND_QUEUE = "boards", "queue", "boards and queue"
MIN_VERSIONS = {"redis": (6, 2), "valkey": (7, 2)}
PINGS = 20
SLOW_MS, VERY_SLOW_MS = 5.0, 100.0
MAX_MEMORY_SHARE = 0.9


def unreachable(installation: Installation) -> dict[str, Finding]:
    """The servers that do not answer, by the name of what they are for."""
    findings = {}
    try:
        found = list(servers(installation))
    except RedisUnavailable:
        what = "No node of the cluster of the boards can be reached, or knows the others"
        findings[BOARDS] = _unreachable(BOARDS, what)
        found = [(QUEUE, installation.queue)]
    for name, client in found:
        try:
            client.ping()
        except (RedisError, OSError) as error:
            what = f"The server of the {name} cannot be reached ({type(error).__name__})"
            findings[name] = _unreachable(name, what)
    return findings


def _unreachable(name: str, what: str) -> Finding:
    match name:
        case "boards and queue":
            why, variable = f"{_WITHOUT_BOARDS}, and {_WITHOUT_QUEUE}", "REDIS_URL"
        case "queue":
            why, variable = _WITHOUT_QUEUE, "PLAUDIT_QUEUE_REDIS_URL"
        case "boards":
            why, variable = _WITHOUT_BOARDS, "REDIS_URL"
        case _:
            why = "its boards are read from snapshots and PostgreSQL, and no board of the cluster is written meanwhile"
            return problem(ABOUT, what, why=why, advice="start it, or have a replica take its place")
    return problem(ABOUT, what, why=why, advice=f"start it, or check {variable}")


_WITHOUT_BOARDS = "board reads fall back to snapshots and PostgreSQL"
_WITHOUT_QUEUE = "workers have no queue; they, cron and the jobs are not examined"


def has_queue(installation: Installation) -> bool:
    return not installation.unreachable & {QUEUE, BOARDS_AND_QUEUE}


def has_boards(installation: Installation) -> bool:
    """Whether every server that has boards answers."""
    return installation.unreachable <= {QUEUE}


def cluster(installation: Installation) -> Iterable[Finding]:
    """How many nodes the boards' cluster has, and whether they have all slots."""
    if not isinstance(installation.boards, ClusterClient) or BOARDS in installation.unreachable:
        return
    nodes = installation.boards.nodes
    what = f"The boards are on a cluster of {len(nodes.primaries(updated=True))} primaries"
    if nodes.has_all_slots and nodes.replicas:
        yield ok(ABOUT, f"{what} and {nodes.replicas} replicas")
    elif nodes.has_all_slots:
        yield warn(
            ABOUT,
            f"{what} without replicas",
            why="nothing is lost with a node, but until it is back its boards are read from snapshots and PostgreSQL",
            advice="give each primary a replica, if boards must stay as quick meanwhile",
        )
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
    """Each server once that is not known to be away, with the name of what it is for."""
    return ((name, client) for name, client in _named(installation) if name not in installation.unreachable)


def _named(installation: Installation) -> Iterator[tuple[str, "Redis"]]:
    settings = installation.settings
    if settings.queue_redis_url in {None, settings.redis_url}:
        yield BOARDS_AND_QUEUE, installation.boards
        return
    if not isinstance(installation.boards, ClusterClient):
        yield BOARDS, installation.boards
    elif BOARDS not in installation.unreachable:
        for node in installation.boards.nodes.primaries():
            yield f"{BOARDS} at {node.server}", node.redis
    yield QUEUE, installation.queue
