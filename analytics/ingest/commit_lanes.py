"""Requests that wait for a group commit, in lanes. `analytics.ingest.group_commit` decides what becomes of them."""

import threading
from collections import deque
from dataclasses import dataclass, field

from analytics.ingest.writes import WriteRequest


@dataclass(eq=False)
class Lane:
    """Requests that are committed one batch after the other: of all tenants, or of one tenant apart from the others."""

    tenant_id: str | None = None
    waiting: "deque[Waiting]" = field(default_factory=deque)
    is_led: bool = False
    # How many callers there were at the last commit: in it, or waiting when it was done; and how long it took.
    callers: int = 0
    last_took_s: float = 0.0
    apart_until: float = 0.0
    # While its leader waits for more callers: opened when there are as many as at the last commit.
    is_gathering: bool = False
    enough: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.enough.acquire()

    def add(self, caller: "Waiting") -> None:
        """Under the group's lock."""
        self.waiting.append(caller)
        if self.is_gathering and len(self.waiting) >= self.callers:
            self.is_gathering = False
            self.enough.release()

    def stop_gathering(self) -> None:
        """Under the group's lock, after waiting long enough."""
        if not self.is_gathering:  # there were enough just now
            self.enough.acquire()
        self.is_gathering = False

    @property
    def is_shared(self) -> bool:
        return self.tenant_id is None


@dataclass(slots=True, eq=False)
class Waiting:
    """A request whose caller waits in its thread: until it is done, or until it is its turn to lead the lane.

    The gate is opened once for each turn, and the caller closes it by passing. So no caller is woken twice, and none
    waits for ever. Who is to lead is marked under the group's lock, and does not leave any more, however long it has
    waited.
    """

    request: WriteRequest
    lane: Lane
    leads: bool = False
    is_done: bool = False
    # A bare lock, the cheapest thing to wait for.
    gate: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.gate.acquire()

    def lead(self) -> None:
        """Have the caller lead the lane, with this request first."""
        self.leads = True
        self.gate.release()

    def finish(self) -> None:
        """Let the caller know."""
        self.is_done = True
        self.gate.release()
