"""When something in a process is overloaded, and whose requests are then too many."""

from collections import Counter
from typing import Any

import structlog

from tenants.shares import Caller

# What has been late for this time, without being in time once, is overloaded. A single pause, such as a garbage
# collection, makes it late only once.
LATE_FOR_S = 0.1
# It stays overloaded until it has not been late, and has had no excess, for this time.
CALM_AFTER_S = 0.5
NOTE_EVERY_S = 60.0

log = structlog.get_logger()


class Overload:
    """Whether something has been late for some time. It is told by those who see it."""

    __slots__ = ("_late_at", "_late_since", "_seen_at")

    def __init__(self) -> None:
        # The first and the last time that it was late since it was in time.
        self._late_since: float | None = None
        self._late_at = self._seen_at = float("-inf")

    def see_late(self, at: float) -> None:
        if self._late_since is None or at - self._late_at > CALM_AFTER_S:
            self._late_since = at
        self._late_at = at
        if at - self._late_since > LATE_FOR_S or self.is_on(at):
            self._seen_at = at

    def see_in_time(self) -> None:
        self._late_since = None

    def see_excess(self, at: float) -> None:
        """What was refused would have made it late: so it is overloaded still."""
        self._seen_at = at

    def is_on(self, at: float) -> bool:
        return at - self._seen_at <= CALM_AFTER_S


class UnderWay:
    """How many requests are under way: of all, of each tenant, and of each caller."""

    __slots__ = ("_of_callers", "_of_tenants", "count")

    def __init__(self) -> None:
        self._of_tenants: Counter[str] = Counter()
        self._of_callers: Counter[Caller] = Counter()
        self.count = 0

    def add(self, caller: Caller) -> None:
        self._of_tenants[caller.tenant_id] += 1
        self._of_callers[caller] += 1
        self.count += 1

    def remove(self, caller: Caller) -> None:
        self.count -= 1
        _take_one(self._of_tenants, caller.tenant_id)
        _take_one(self._of_callers, caller)

    def are_mostly_of_others(self, caller: Caller) -> bool:
        """Whether another tenant, or another caller, has more than half of them: then only that one's are too many."""
        by_others = (
            *(count for tenant, count in self._of_tenants.items() if tenant != caller.tenant_id),
            *(count for each, count in self._of_callers.items() if each != caller),
        )
        return 2 * max(by_others, default=0) > self.count


def _take_one(counts: "Counter[Any]", key: object) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


class RefusalLog:
    """In the log, once a minute at most."""

    def __init__(self) -> None:
        self._noted_at = -NOTE_EVERY_S
        self._count = 0

    def note(self, now: float, *, under_way: int) -> None:
        self._count += 1
        if now - self._noted_at > NOTE_EVERY_S:
            data = {"underWay": under_way, "refused": self._count}
            log.warning("more requests than can be answered", action="requests.refused", data=data)
            self._noted_at, self._count = now, 0
