"""Slots of a process for slow work, such as hashing, shared fairly by those who wait for one.

Each tenant has a queue, and another one for its known callers. A free slot serves known callers and the others
alternately, and within each of the two the tenants in turn. So a flood at one tenant delays a caller of another tenant
by one piece of work, and its own known callers by two, however many wait. Every queue and the total are bounded; if the
total is reached, the newest of the longest queue is refused in favour of a newcomer with a shorter one.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tenants.errors import Unavailable


class NoTurn(Unavailable):
    code = "overloaded"
    title = "Too many passwords are being checked: try again in a moment"

    def __init__(self) -> None:
        super().__init__(retry_after_s=1)


@dataclass(frozen=True, slots=True)
class Party:
    """Who waits in the same queue: a tenant's known callers, or its others. Without a tenant: whoever names none."""

    tenant_id: str = ""
    is_known: bool = False


@dataclass(eq=False, slots=True)
class _Waiter:
    # A lock that another thread releases: the cheapest thing to wait for.
    decided: threading.Lock = field(default_factory=threading.Lock)
    has_slot: bool = False


class Turns:
    """`slots` pieces of work at a time; of those that wait at most `max_of_party` of a queue, and `max_waiting`."""

    def __init__(self, slots: int, *, max_of_party: int, max_waiting: int, wait_s: float) -> None:
        self._free = slots
        self._max_of_party, self._max_waiting, self._wait_s = max_of_party, max_waiting, wait_s
        self._lock = threading.Lock()
        # By whether they are known; of each the tenants in the order in which they are served.
        self._queues: dict[bool, OrderedDict[Party, deque[_Waiter]]] = {True: OrderedDict(), False: OrderedDict()}
        self._waiting = 0
        self._known_are_next = True

    @contextmanager
    def of(self, party: Party) -> Iterator[None]:
        """Use a slot until the end of the block; NoTurn if there is none for this party soon."""
        self._acquire(party)
        try:
            yield
        finally:
            with self._lock:
                self._pass_on()

    def _acquire(self, party: Party) -> None:
        with self._lock:
            if self._free:  # then nobody waits
                self._free -= 1
                return
            waiter = self._join(party)
        waiter.decided.acquire(timeout=self._wait_s)
        with self._lock:
            if waiter.has_slot:
                return
            self._leave(party, waiter)
        raise NoTurn

    def _join(self, party: Party) -> _Waiter:
        of_kind = self._queues[party.is_known]
        length = len(of_kind.get(party, ()))
        if length >= self._max_of_party:
            raise NoTurn
        if self._waiting >= self._max_waiting:
            self._refuse_one(longer_than=length + 1)
        waiter = _Waiter()
        waiter.decided.acquire()
        of_kind.setdefault(party, deque()).append(waiter)
        self._waiting += 1
        return waiter

    def _refuse_one(self, *, longer_than: int) -> None:
        queues = [queue for of_kind in self._queues.values() for queue in of_kind.items()]
        party, longest = max(queues, key=lambda queue: len(queue[1]))
        if len(longest) <= longer_than:
            raise NoTurn
        newest = longest[-1]
        self._leave(party, newest)
        newest.decided.release()

    def _leave(self, party: Party, waiter: _Waiter) -> None:
        """Remove it from its queue, unless it was refused already."""
        queue = self._queues[party.is_known].get(party)
        if queue is None or waiter not in queue:
            return
        queue.remove(waiter)
        self._waiting -= 1
        if not queue:
            del self._queues[party.is_known][party]

    def _pass_on(self) -> None:
        """Give a slot that became free to whoever's turn it is."""
        if not self._waiting:
            self._free += 1
            return
        kind = self._known_are_next if self._queues[self._known_are_next] else not self._known_are_next
        self._known_are_next = not kind
        party, queue = self._queues[kind].popitem(last=False)
        waiter = queue.popleft()
        self._waiting -= 1
        if queue:
            self._queues[kind][party] = queue  # behind the other tenants
        waiter.has_slot = True
        waiter.decided.release()
