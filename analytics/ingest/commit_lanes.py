"""Requests that wait for a group commit, in lanes. `analytics.ingest.group_commit` decides what becomes of them."""

import threading
from collections import deque
from collections.abc import Callable
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
    """A request that waits: until it is done, or until it is its turn to lead its lane.

    Who is to lead is marked under the group's lock, and does not leave any more, however long it has waited.
    """

    request: WriteRequest
    lane: Lane
    leads: bool = False

    def lead(self) -> None:
        """Have somebody lead the lane, with this request first."""
        raise NotImplementedError

    def finish(self) -> None:
        """Let the caller know."""
        raise NotImplementedError


@dataclass(slots=True, eq=False)
class Blocked(Waiting):
    """Its caller waits in a thread, and leads there.

    The gate is opened once for each turn, and the caller closes it by passing. So no caller is woken twice, and none
    waits for ever.
    """

    is_done: bool = False
    # A bare lock, the cheapest thing to wait for.
    gate: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.gate.acquire()

    def lead(self) -> None:
        self.leads = True
        self.gate.release()

    def finish(self) -> None:
        self.is_done = True
        self.gate.release()


@dataclass(slots=True, eq=False)
class Away(Waiting):
    """Its caller went away and is called when it is done; another thread leads for it."""

    # Has a thread lead for it, and has a thread run something.
    lead_in_thread: Callable[["Away"], None] = field(kw_only=True)
    run_in_thread: Callable[[Callable[[], None]], object] = field(kw_only=True)
    done: Callable[[], None] = field(kw_only=True)
    # When it is refused if it still waits.
    expires_at: float = field(kw_only=True)

    def lead(self) -> None:
        self.leads = True
        self.lead_in_thread(self)

    def finish(self) -> None:
        if self.request.after_commit and self.request.error is None:  # announcements, which wait for other processes
            self.run_in_thread(self._follow_commit)
        else:
            self.done()

    def _follow_commit(self) -> None:
        self.request.run_after_commit()
        self.done()
