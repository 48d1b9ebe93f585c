"""Which faults a seed gives, and when. Pure: the same seed, minutes and kinds give the same schedule.

Kinds come from a shuffled deck, so that each had its turn before one comes again.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

FIRST_AFTER_S = 10.0
# From the beginning of a fault to that of the next.
GAP_S = (12.0, 17.0)
LONG_GAP_S = (24.0, 30.0)
# A fault that lasts.
LASTS_S = (2.0, 6.0)

# Between which processes the network faults are: who connects, and to whom.
LINKS = (
    "client-web",
    "client-live",
    "web-postgres",
    "web-redis",
    "worker-postgres",
    "worker-redis",
    "live-postgres",
    "live-redis",
)


class Kind(StrEnum):
    KILL_WEB_WORKER = "kill web worker"
    KILL_WEB_PARENT = "kill web parent"
    KILL_LIVE = "kill live"
    KILL_LIVE_WORKER = "kill live worker"
    KILL_WORKER = "kill worker"
    KILL_CRON = "kill cron"
    KILL_VALKEY = "kill valkey"
    KILL_BACKEND = "kill backend"
    KILL_POSTMASTER = "kill postmaster"
    KILL_UP = "kill up"
    STOP_WEB_WORKER = "stop web worker"
    STOP_WEB_PARENT = "stop web parent"
    STOP_LIVE = "stop live"
    STOP_WORKER = "stop worker"
    STOP_VALKEY = "stop valkey"
    STOP_BACKEND = "stop backend"
    STOP_POSTMASTER = "stop postmaster"
    STOP_UP = "stop up"
    DELAY = "delay"
    BLACKHOLE = "blackhole"
    RESET = "reset"
    CUT = "cut"
    FLUSHALL = "flushall"
    TERMINATE = "terminate backends"
    SHUTDOWN_IN_RECOVERY = "shutdown in recovery"
    LOCK_TABLE = "lock table"
    ROLLING_RESTART = "rolling restart"
    MIGRATION = "migration"
    CLIENT_CLOCK = "client clock"
    NODE_CLOCK = "node clock"
    DISK_FULL = "disk full"

    @property
    def is_network(self) -> bool:
        return self in {Kind.DELAY, Kind.BLACKHOLE, Kind.RESET, Kind.CUT}

    @property
    def is_long(self) -> bool:
        """Whether a node is away for many seconds."""
        return self in {Kind.KILL_UP, Kind.ROLLING_RESTART, Kind.DISK_FULL, Kind.SHUTDOWN_IN_RECOVERY}


@dataclass(frozen=True)
class Fault:
    at_s: float
    kind: Kind
    lasts_s: float
    # Chooses a victim among several, an amount, and whatever else is left open: from 0 to 1.
    choice: float
    link: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.link}".strip()


def schedule(seed: int, minutes: float, kinds: Sequence[Kind]) -> list[Fault]:
    """The faults of a run, by time."""
    rng = random.Random(f"faults {seed}")
    faults: list[Fault] = []
    deck: list[Kind] = []
    links: list[str] = []
    at_s = FIRST_AFTER_S
    while at_s < minutes * 60 - LASTS_S[1]:
        if not deck:
            deck = rng.sample(kinds, len(kinds))
        if not links:
            links = rng.sample(LINKS, len(LINKS))
        kind = deck.pop()
        link = links.pop() if kind.is_network else ""
        faults.append(Fault(round(at_s, 2), kind, round(rng.uniform(*LASTS_S), 2), round(rng.random(), 4), link))
        at_s += rng.uniform(*(LONG_GAP_S if kind.is_long else GAP_S))
    return faults
