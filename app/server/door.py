"""Decides which requests are let in: nearly all, or, during overload, as many as the process works on at once.

Threads that wait for a commit or a lock cost nothing, so a process may have many. But once every thread waits for the
interpreter before it begins, or requests wait for a thread, requests arrive faster than the process answers them, and
each request that is let in slows down the others. Then it is better to refuse the excess at once, on the event loop,
where a refusal costs next to nothing, and not in a thread after it has waited. That is what a `Door` does.

Calls that the loop answers without a thread have doors too: single writes share a commit, and reads a round trip to
Redis. A `QueueDoor` limits those that wait for it, once they have waited too long for some time. Reads whose answers
are in memory wait for nothing: to refuse one would cost as much as to answer it.

If one tenant has most of the requests under way, only its requests are limited: others do not notice its flood. If one
caller has most of them, only that caller's are: other callers of its tenant do not notice it either. A caller whose
name nobody has verified yet is counted by network (`FastLane.caller_of`).
"""

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable

from app.server.overload import Overload, RefusalLog, UnderWay
from tenants.shares import Caller

# A thread begins within this time in a process that keeps up.
LATE_AFTER_S = 0.02
# A call that the loop answers without a thread is answered within this time.
LATE_ANSWER_AFTER_S = 0.1
# Fewer requests under way are never refused: callers with many connections are usual.
MIN_LIMIT = 32
# Probes and scrapes, each with a thread and often a query. They are usually one at a time for each caller.
MAX_FOR_OPERATORS = 8


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
        self._inside = UnderWay()
        self._for_operators = 0
        self._begun: deque[tuple[Ticket, float]] = deque()
        self._left: deque[Ticket] = deque()
        self._overload = Overload()
        self._refusals = RefusalLog()

    def enter(self, caller: Caller, *, always: bool = False) -> Ticket | None:
        """None: it must be refused."""
        now = time.monotonic()
        self._catch_up()
        oldest = next(iter(self._waiting), None)
        if oldest is not None and now - oldest.at > LATE_AFTER_S:
            self._overload.see_late(now)
        if self._inside.count >= self._limit(caller, now) and not always:
            self._refusals.note(now, under_way=self._inside.count)
            return None
        self._inside.add(caller)
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
        if not self._overload.is_on(now) or self._inside.are_mostly_of_others(caller):
            return self._most
        return self._working

    def _catch_up(self) -> None:
        while self._begun:
            ticket, at = self._begun.popleft()
            self._waiting.pop(ticket, None)
            if at - ticket.at > LATE_AFTER_S:
                self._overload.see_late(at)
            else:
                self._overload.see_in_time()
        while self._left:
            ticket = self._left.popleft()
            self._waiting.pop(ticket, None)
            if ticket.caller is None:
                self._for_operators -= 1
                continue
            self._inside.remove(ticket.caller)


class QueueDoor:
    """For calls that wait on the loop until many of them are answered together."""

    def __init__(self, *, together: int) -> None:
        """`together`: how many are answered at once. During overload, so many are let in while others are answered."""
        self._working = 2 * together
        self._inside = UnderWay()
        self._overload = Overload()
        # When the first entered, or the last one was answered.
        self._moved_at = 0.0
        self._refusals = RefusalLog()

    def is_open_to(self, caller_of: Callable[[], Caller]) -> bool:
        """Whether one more is let in. `caller_of` is called only if that depends on the caller."""
        if self._inside.count < self._working:
            return True
        now = time.monotonic()
        if now - self._moved_at > LATE_ANSWER_AFTER_S:
            self._overload.see_late(now)
        if not self._overload.is_on(now) or self._inside.are_mostly_of_others(caller_of()):
            return True
        self._overload.see_excess(now)
        self._refusals.note(now, under_way=self._inside.count)
        return False

    def enter(self, caller: Caller) -> float:
        """Returns what `leave` needs."""
        now = time.monotonic()
        if not self._inside.count:
            self._moved_at = now
        self._inside.add(caller)
        return now

    def leave(self, caller: Caller, entered_at: float) -> None:
        """Record that it was answered, or passed to a thread."""
        self._inside.remove(caller)
        self._moved_at = now = time.monotonic()
        if now - entered_at > LATE_ANSWER_AFTER_S:
            self._overload.see_late(now)
        else:
            self._overload.see_in_time()
