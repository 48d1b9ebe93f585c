"""When something in a process is overloaded, and whose requests are then too many."""

from collections import Counter
from operator import itemgetter

import structlog

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
    """How many requests are under way, and of which tenants."""

    __slots__ = ("_of_tenant", "count")

    def __init__(self) -> None:
        self._of_tenant: Counter[str] = Counter()
        self.count = 0

    def add(self, tenant_id: str) -> None:
        self._of_tenant[tenant_id] += 1
        self.count += 1

    def remove(self, tenant_id: str) -> None:
        self.count -= 1
        if self._of_tenant[tenant_id] == 1:
            del self._of_tenant[tenant_id]
        else:
            self._of_tenant[tenant_id] -= 1

    @property
    def flooding(self) -> str | None:
        """The tenant of more than half of them."""
        tenant_id, count = max(self._of_tenant.items(), key=itemgetter(1), default=(None, 0))
        return tenant_id if 2 * count > self.count else None

    def is_mostly_of_another(self, tenant_id: str) -> bool:
        """Whether one other tenant has more than half of them: then only that tenant's are too many."""
        return self.flooding not in {None, tenant_id}


class Refusals:
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
