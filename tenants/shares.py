"""How much of a process one tenant may take at once.

Threads and database connections are shared by all tenants of a process. A `TenantShare` limits how many of them one
tenant uses at the same time, so that a tenant that sends more than its share waits, and is then refused, while the
others find what they need. Waiting is first come, first served, and short: a request that cannot begin soon is better
told so than kept. A tenant that nobody else shares the process with may wait longer.
"""

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from tenants.errors import Limited

WAIT_S = 0.2
# A tenant that is alone in a process takes nothing from anybody by waiting longer.
WAIT_ALONE_S = 2.0
# After the last request of another tenant.
ALONE_AFTER_S = 1.0


class TenantBusy(Limited):
    code = "tenant_busy"
    title = "Too many requests of this tenant are being answered at once: send fewer at a time"

    def __init__(self) -> None:
        super().__init__(retry_after_s=1)


def share_of(total: int) -> int:
    """Three quarters of what a process has of something."""
    return max(1, total * 3 // 4)


class TenantShare:
    """At most `size` at once for each tenant, and at most `max_waiting` that wait."""

    def __init__(self, size: int, *, max_waiting: int) -> None:
        self._size = size
        self._max_waiting = max_waiting
        self._lock = threading.Lock()
        self._taken: dict[str, int] = {}
        self._queues: dict[str, deque[threading.Lock]] = {}
        self._newest_tenant: str | None = None
        self._tenant_changed_at = -ALONE_AFTER_S

    @contextmanager
    def of(self, tenant_id: str) -> Iterator[None]:
        """One of the tenant's share until the end of the block; TenantBusy when none comes free soon."""
        self.take(tenant_id)
        try:
            yield
        finally:
            self.give_back(tenant_id)

    def take(self, tenant_id: str) -> None:
        with self._lock:
            if tenant_id != self._newest_tenant:
                if self._newest_tenant is not None:
                    self._tenant_changed_at = time.monotonic()
                self._newest_tenant = tenant_id
            taken = self._taken.get(tenant_id, 0)
            if taken < self._size:
                self._taken[tenant_id] = taken + 1
                return
            queue = self._queues.setdefault(tenant_id, deque())
            if len(queue) >= self._max_waiting:
                raise TenantBusy
            # A lock that somebody else releases: the cheapest thing to wait for.
            turn = threading.Lock()
            turn.acquire()
            queue.append(turn)
        self._wait(tenant_id, turn)

    def give_back(self, tenant_id: str) -> None:
        """Hand it over to who has waited longest, so that nobody overtakes."""
        with self._lock:
            queue = self._queues.get(tenant_id)
            if queue:
                queue.popleft().release()
                self._drop_if_empty(tenant_id)
            elif self._taken[tenant_id] == 1:
                del self._taken[tenant_id]
            else:
                self._taken[tenant_id] -= 1

    def _wait(self, tenant_id: str, turn: "threading.Lock") -> None:
        deadline = time.monotonic() + WAIT_ALONE_S
        while not turn.acquire(timeout=WAIT_S):
            with self._lock:
                queue = self._queues.get(tenant_id, ())
                if turn not in queue:
                    return  # it was handed over as we stopped waiting
                if time.monotonic() < deadline and self._is_alone():
                    continue
                self._queues[tenant_id].remove(turn)
                self._drop_if_empty(tenant_id)
            raise TenantBusy

    def _is_alone(self) -> bool:
        """Whether nobody but the newest tenant has asked for a while."""
        return time.monotonic() - self._tenant_changed_at > ALONE_AFTER_S

    def _drop_if_empty(self, tenant_id: str) -> None:
        if not self._queues[tenant_id]:
            del self._queues[tenant_id]
