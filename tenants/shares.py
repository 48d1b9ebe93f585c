"""How much of a process one tenant may use at once.

Threads and database connections are shared by all tenants of a process. A `TenantShare` limits how many of them one
tenant uses at the same time, so that a tenant that sends more than its share waits, and is then refused, while
there is room for the others. Waiting is first come, first served, and short: a request that cannot start soon is better
refused than kept waiting. A tenant that uses the process alone may wait longer.
"""

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from tenants.errors import Limited

WAIT_S = 0.2
# A tenant that is alone in a process blocks no other tenant by waiting longer.
WAIT_ALONE_S = 2.0
# A tenant is alone this long after the last request of another one.
ALONE_AFTER_S = 1.0


class TenantBusy(Limited):
    code = "tenant_busy"
    title = "Too many requests of this tenant are being answered at once: send fewer at a time"

    def __init__(self) -> None:
        super().__init__(retry_after_s=1)


def share_of(total: int) -> int:
    """Three quarters of a process's total of some resource."""
    return max(1, total * 3 // 4)


class TenantShare:
    """At most `size` units in use by each tenant, and at most `max_waiting` callers that wait."""

    def __init__(self, size: int, *, max_waiting: int) -> None:
        self._size = size
        self._max_waiting = max_waiting
        self._lock = threading.Lock()
        self._in_use: dict[str, int] = {}
        self._queues: dict[str, deque[threading.Lock]] = {}
        self._newest_tenant: str | None = None
        self._tenant_changed_at = -ALONE_AFTER_S

    @contextmanager
    def of(self, tenant_id: str) -> Iterator[None]:
        """Use one unit of the tenant's share until the end of the block; TenantBusy if none becomes free soon."""
        self.acquire(tenant_id)
        try:
            yield
        finally:
            self.release(tenant_id)

    def try_acquire(self, tenant_id: str) -> bool:
        """Use one unit of the tenant's share until `release`, if one is free."""
        with self._lock:
            return self._take_if_free(tenant_id)

    def acquire(self, tenant_id: str) -> None:
        with self._lock:
            if self._take_if_free(tenant_id):
                return
            queue = self._queues.setdefault(tenant_id, deque())
            if len(queue) >= self._max_waiting:
                raise TenantBusy
            # A lock that another thread releases: the cheapest thing to wait for.
            turn = threading.Lock()
            turn.acquire()
            queue.append(turn)
        self._wait(tenant_id, turn)

    def release(self, tenant_id: str) -> None:
        """Pass the unit to the caller that has waited longest, so that none overtakes."""
        with self._lock:
            queue = self._queues.get(tenant_id)
            if queue:
                queue.popleft().release()
                self._drop_if_empty(tenant_id)
            elif self._in_use[tenant_id] == 1:
                del self._in_use[tenant_id]
            else:
                self._in_use[tenant_id] -= 1

    def _take_if_free(self, tenant_id: str) -> bool:
        if tenant_id != self._newest_tenant:
            if self._newest_tenant is not None:
                self._tenant_changed_at = time.monotonic()
            self._newest_tenant = tenant_id
        in_use = self._in_use.get(tenant_id, 0)
        if in_use >= self._size:
            return False
        self._in_use[tenant_id] = in_use + 1
        return True

    def _wait(self, tenant_id: str, turn: "threading.Lock") -> None:
        deadline = time.monotonic() + WAIT_ALONE_S
        while not turn.acquire(timeout=WAIT_S):
            with self._lock:
                queue = self._queues.get(tenant_id, ())
                if turn not in queue:
                    return  # it was passed to us just as we stopped waiting
                if time.monotonic() < deadline and self._is_alone():
                    continue
                self._queues[tenant_id].remove(turn)
                self._drop_if_empty(tenant_id)
            raise TenantBusy

    def _is_alone(self) -> bool:
        """Whether only the newest tenant has sent requests lately."""
        return time.monotonic() - self._tenant_changed_at > ALONE_AFTER_S

    def _drop_if_empty(self, tenant_id: str) -> None:
        if not self._queues[tenant_id]:
            del self._queues[tenant_id]
