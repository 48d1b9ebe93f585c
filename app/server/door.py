"""Decides which requests get a thread: nearly all, or, while threads begin late, as many as a process works on at once.

Threads that wait for a commit or a lock cost nothing, so a process may have many. But once every thread waits for the
interpreter before it begins, or requests wait for a thread, requests arrive faster than the process answers them, and
each request that is let in slows down the others. Then it is better to refuse the excess at once, on the event loop,
where a refusal costs next to nothing, and not in a thread after it has waited.

If one tenant has most of the requests under way, only its requests are limited: others do not notice its flood. If one
caller has most of them, only that caller's are: other callers of its tenant do not notice it either. A caller whose
name nobody has verified yet is counted by network (`FastLane.caller_of`).
"""

import threading
import time
from collections import Counter, OrderedDict, deque
from typing import Any

import structlog

from tenants.shares import Caller

# A thread begins within this time in a process that keeps up.
LATE_AFTER_S = 0.02
# A process is overloaded once threads have begun late for this time, without one in time. A single pause, such as a
# garbage collection, delays only the few threads that were about to begin.
LATE_FOR_S = 0.1
# It stays overloaded until no thread has begun late for this time.
CALM_AFTER_S = 0.5
NOTE_EVERY_S = 60.0
# Fewer requests under way are never refused: callers with many connections are usual.
MIN_LIMIT = 32
# Probes and scrapes, each with a thread and often a query. They are usually one at a time for each caller.
MAX_FOR_OPERATORS = 8

log = structlog.get_logger()


class Ticket:
    """A request that was let in."""

    __slots__ = ("_taken", "at", "caller")

    def __init__(self, caller: Caller | None, at: float) -> None:
        """`caller`: None for health checks and metrics."""
        self.caller = caller
        self.at = at
        self._taken = threading.Lock()

    def take(self) -> bool:
        """Return True to the first caller only. Never waits."""
        return self._taken.acquire(blocking=False)


class Door:
    """Threads call `begin` and `leave`, which only append to a deque. The loop calls the other methods.

    So the loop never waits for a lock, whose owner may itself be waiting for the interpreter.
    """

    def __init__(self, *, working: int, threads: int) -> None:
        """`working`: how many requests are let in during overload; otherwise twice as many as there are threads."""
        self._working = max(working, MIN_LIMIT)
        self._most = 2 * threads
        self._waiting: OrderedDict[Ticket, None] = OrderedDict()
        # Under way: of each tenant, and of each caller.
        self._of_tenants: Counter[str] = Counter()
        self._of_callers: Counter[Caller] = Counter()
        self._count = 0
        self._for_operators = 0
        self._begun: deque[tuple[Ticket, float]] = deque()
        self._left: deque[Ticket] = deque()
        # The first and the last time that a thread was late since one was in time.
        self._late_since: float | None = None
        self._late_at = self._overloaded_at = self._noted_at = -NOTE_EVERY_S
        self._refused = 0

    def enter(self, caller: Caller, *, always: bool = False) -> Ticket | None:
        """None: it must be refused."""
        now = time.monotonic()
        self._catch_up()
        oldest = next(iter(self._waiting), None)
        if oldest is not None and now - oldest.at > LATE_AFTER_S:
            self._see_late(now)
        if self._count >= self._limit(caller, now) and not always:
            self._note(now)
            return None
        self._of_tenants[caller.tenant_id] += 1
        self._of_callers[caller] += 1
        self._count += 1
        return self._let_in(caller, now)

    def enter_for_operators(self) -> Ticket | None:
        """Let in a health check or a request for metrics. They have a small limit of their own. None: refuse it."""
        self._catch_up()
        if self._for_operators >= MAX_FOR_OPERATORS:
            return None
        self._for_operators += 1
        return self._let_in(None, time.monotonic())

    def _let_in(self, caller: Caller | None, now: float) -> Ticket:
        ticket = Ticket(caller, now)
        self._waiting[ticket] = None
        return ticket

    def begin(self, ticket: Ticket) -> bool:
        """Record that this thread works on the request. False: it was withdrawn, and must not be executed."""
        if not ticket.take():
            return False
        self._begun.append((ticket, time.monotonic()))
        return True

    def leave(self, ticket: Ticket) -> None:
        """Record that the request was answered, once for each that was begun."""
        self._left.append(ticket)

    def withdraw(self, ticket: Ticket) -> bool:
        """Record that no thread will execute the request. False: a thread has begun, and answers it."""
        if not ticket.take():
            return False
        self.leave(ticket)
        return True

    def _limit(self, caller: Caller, now: float) -> int:
        if now - self._overloaded_at > CALM_AFTER_S:
            return self._most
        by_others = (
            *(count for tenant, count in self._of_tenants.items() if tenant != caller.tenant_id),
            *(count for each, count in self._of_callers.items() if each != caller),
        )
        return self._most if 2 * max(by_others, default=0) > self._count else self._working

    def _see_late(self, at: float) -> None:
        if self._late_since is None or at - self._late_at > CALM_AFTER_S:
            self._late_since = at
        self._late_at = at
        if at - self._late_since > LATE_FOR_S or at - self._overloaded_at <= CALM_AFTER_S:
            self._overloaded_at = at

    def _catch_up(self) -> None:
        while self._begun:
            ticket, at = self._begun.popleft()
            self._waiting.pop(ticket, None)
            if at - ticket.at > LATE_AFTER_S:
                self._see_late(at)
            else:
                self._late_since = None
        while self._left:
            ticket = self._left.popleft()
            self._waiting.pop(ticket, None)
            if ticket.caller is None:
                self._for_operators -= 1
                continue
            self._count -= 1
            _take_one(self._of_tenants, ticket.caller.tenant_id)
            _take_one(self._of_callers, ticket.caller)

    def _note(self, now: float) -> None:
        """In the log, once a minute at most."""
        self._refused += 1
        if now - self._noted_at > NOTE_EVERY_S:
            data = {"underWay": self._count, "refused": self._refused}
            log.warning("more requests than can be answered", action="requests.refused", data=data)
            self._noted_at, self._refused = now, 0


def _take_one(counts: "Counter[Any]", key: object) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
