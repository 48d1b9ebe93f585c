"""How much of a process one tenant may use at once, and one caller of a tenant.

Threads, database connections, calls in flight and slow bodies are shared by all tenants of a process. A `TenantShare`
limits how many of them one tenant uses at the same time, so that a tenant that sends more than its share waits, and is
then refused, while there is room for the others. Waiting is short: a request that cannot start soon is better refused
than kept waiting. A tenant that uses the process alone may wait longer.

Inside a tenant the callers share: a user, a client, or the network of somebody without credentials. What becomes free
is passed to the waiting caller with the fewest units, so one caller's queue delays another caller by one turn. Whoever
cannot wait is refused; then for a moment no other caller of that tenant takes more than half of its share. A tenant
with a single caller keeps all of its share.
"""

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NoReturn

from tenants.errors import Limited

WAIT_S = 0.2
# A tenant that is alone in a process blocks no other tenant by waiting longer.
WAIT_ALONE_S = 2.0
# A tenant is alone this long after the last request of another one, and so is a caller after another one's refusal.
ALONE_AFTER_S = 1.0
# The tenant of callers without one, such as somebody who logs in.
NOBODY = ""


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose share a request uses. `name`: `user:<id>`, `client:<id>`, a network, or empty for jobs and commands."""

    tenant_id: str
    name: str


NO_CALLER = Caller(NOBODY, "")
# Whose request this thread answers, for what is used deep below the route: connections, and the rest of a body.
current_caller: ContextVar[Caller] = ContextVar("plaudit_caller", default=NO_CALLER)


class TenantBusy(Limited):
    code = "tenant_busy"
    title = "Too many requests of this tenant or caller are being answered at once: send fewer at a time"

    def __init__(self) -> None:
        super().__init__(retry_after_s=1)


def share_of(total: int) -> int:
    """Three quarters of a process's total of some resource."""
    return max(1, total * 3 // 4)


def half_of(share: int) -> int:
    """One caller's part of a tenant's share while another caller needs some of it. Two halves are all of it."""
    return (share + 1) // 2


class Refusals:
    """Who was refused lately: the newest caller, and the newest other one."""

    __slots__ = ("_before", "_for_s", "_newest")

    def __init__(self, *, for_s: float) -> None:
        self._for_s = for_s
        self._newest = self._before = ("", -for_s)

    def note(self, caller: str) -> None:
        if caller != self._newest[0]:
            self._before = self._newest
        self._newest = caller, time.monotonic()

    def are_of_others(self, caller: str) -> bool:
        """Whether anybody but this caller was refused lately."""
        _, at = self._newest if self._newest[0] != caller else self._before
        return time.monotonic() - at <= self._for_s


class _Turn:
    """A waiting request."""

    __slots__ = ("decided", "is_refused")

    def __init__(self) -> None:
        # A lock that another thread releases: the cheapest thing to wait for.
        self.decided = threading.Lock()
        self.decided.acquire()
        self.is_refused = False


class _Tenant:
    """What a tenant uses now. Forgotten once that is nothing, so a quiet tenant's every call makes one: it is cheap."""

    __slots__ = ("in_use", "queues", "refusals", "total", "waiting")

    def __init__(self) -> None:
        self.total = self.waiting = 0
        self.in_use: dict[str, int] = {}
        # First the caller whose turn was longest ago.
        self.queues: dict[str, deque[_Turn]] = {}
        self.refusals: Refusals | None = None

    def note_refusal(self, caller: str) -> None:
        if self.refusals is None:
            self.refusals = Refusals(for_s=ALONE_AFTER_S)
        self.refusals.note(caller)

    def has_refused_others(self, caller: str) -> bool:
        return self.refusals is not None and self.refusals.are_of_others(caller)


class TenantShare:
    """At most `size` units in use by each tenant, and at most `max_waiting` requests that wait.

    `keeps_half`: a caller never gets more than half, also while nobody else needs any. For what is held so long that
    nothing would become free in time. `wait_s`: how long a request waits, if not until another tenant sends one.
    """

    def __init__(self, size: int, *, max_waiting: int, keeps_half: bool = False, wait_s: float | None = None) -> None:
        self._size = size
        self._wait_s = wait_s
        self._half = half_of(size)
        self._max_waiting = max_waiting
        self._keeps_half = keeps_half
        self._lock = threading.Lock()
        self._tenants: dict[str, _Tenant] = {}
        self._newest_tenant: str | None = None
        self._tenant_changed_at = -ALONE_AFTER_S

    @contextmanager
    def of(self, tenant_id: str, caller: str) -> Iterator[None]:
        """Use one unit of the tenant's share until the end of the block; TenantBusy if none becomes free soon."""
        self.acquire(tenant_id, caller)
        try:
            yield
        finally:
            self.release(tenant_id, caller)

    def try_acquire(self, tenant_id: str, caller: str) -> bool:
        """Use one unit of the tenant's share until `release`, if one is free."""
        with self._lock:
            tenant = self._tenant(tenant_id)
            if self._take_if_free(tenant, caller):
                return True
            tenant.note_refusal(caller)
            return False

    def acquire(self, tenant_id: str, caller: str) -> None:
        with self._lock:
            tenant = self._tenant(tenant_id)
            if self._take_if_free(tenant, caller):
                return
            if tenant.waiting >= self._max_waiting and not self._refuse_one_of_more(tenant, caller):
                self._refuse(tenant_id, tenant, caller)
            turn = _Turn()
            tenant.queues.setdefault(caller, deque()).append(turn)
            tenant.waiting += 1
        self._wait(tenant_id, tenant, caller, turn)

    def release(self, tenant_id: str, caller: str) -> None:
        """Pass the unit on, if somebody waits who may have it."""
        with self._lock:
            tenant = self._tenants[tenant_id]
            tenant.total -= 1
            if tenant.in_use[caller] == 1:
                del tenant.in_use[caller]
            else:
                tenant.in_use[caller] -= 1
            self._pass_on(tenant)
            self._forget_if_idle(tenant_id, tenant)

    def _tenant(self, tenant_id: str) -> _Tenant:
        if tenant_id != self._newest_tenant:
            if self._newest_tenant is not None:
                self._tenant_changed_at = time.monotonic()
            self._newest_tenant = tenant_id
        tenant = self._tenants.get(tenant_id)
        if tenant is None:
            tenant = self._tenants[tenant_id] = _Tenant()
        return tenant

    def _take_if_free(self, tenant: _Tenant, caller: str) -> bool:
        """Never before an earlier request of the same caller."""
        if tenant.total >= self._size or caller in tenant.queues or not self._may_have_one_more(tenant, caller):
            return False
        self._take(tenant, caller)
        return True

    def _may_have_one_more(self, tenant: _Tenant, caller: str) -> bool:
        if tenant.in_use.get(caller, 0) < self._half:
            return True
        return not (self._keeps_half or tenant.has_refused_others(caller))

    def _take(self, tenant: _Tenant, caller: str) -> None:
        tenant.total += 1
        tenant.in_use[caller] = tenant.in_use.get(caller, 0) + 1

    def _pass_on(self, tenant: _Tenant) -> None:
        """Give what is free to the caller with the fewest units; among several, to the one that waits longest.

        Callers wait since their last turn: by the arrival of their requests, a long queue would come before others.
        """
        while tenant.queues and tenant.total < self._size:
            caller = min(tenant.queues, key=lambda each: tenant.in_use.get(each, 0))
            if not self._may_have_one_more(tenant, caller):
                return  # nor may the others, who have as many units or more
            turn = tenant.queues[caller][0]
            self._remove(tenant, caller, turn)
            if caller in tenant.queues:
                tenant.queues[caller] = tenant.queues.pop(caller)
            self._take(tenant, caller)
            turn.decided.release()

    def _refuse_one_of_more(self, tenant: _Tenant, caller: str) -> bool:
        """Make room in a full queue, at the cost of the caller of whom most requests wait, if that is another one.

        The newest one of them is refused. Whoever would have as many waiting afterwards replaces nobody: two callers
        would only replace each other.
        """
        longest = max(tenant.queues, key=lambda each: len(tenant.queues[each]), default=caller)
        if len(tenant.queues.get(longest, ())) <= len(tenant.queues.get(caller, ())) + 1:
            return False
        turn = tenant.queues[longest][-1]
        self._remove(tenant, longest, turn)
        turn.is_refused = True
        turn.decided.release()
        return True

    def _wait(self, tenant_id: str, tenant: _Tenant, caller: str, turn: _Turn) -> None:
        deadline = time.monotonic() + (self._wait_s or WAIT_ALONE_S)
        while not turn.decided.acquire(timeout=WAIT_S):
            with self._lock:
                self._pass_on(tenant)  # a refusal may have become old meanwhile
                if turn not in tenant.queues.get(caller, ()):
                    break  # it was decided just as we stopped waiting
                if time.monotonic() < deadline and (self._wait_s or self._is_alone()):
                    continue
                self._remove(tenant, caller, turn)
                self._refuse(tenant_id, tenant, caller)
        if turn.is_refused:
            raise TenantBusy

    def _refuse(self, tenant_id: str, tenant: _Tenant, caller: str) -> NoReturn:
        tenant.note_refusal(caller)
        self._forget_if_idle(tenant_id, tenant)
        raise TenantBusy

    def _is_alone(self) -> bool:
        """Whether only the newest tenant has sent requests lately."""
        return time.monotonic() - self._tenant_changed_at > ALONE_AFTER_S

    def _remove(self, tenant: _Tenant, caller: str, turn: _Turn) -> None:
        queue = tenant.queues[caller]
        queue.remove(turn)
        tenant.waiting -= 1
        if not queue:
            del tenant.queues[caller]

    def _forget_if_idle(self, tenant_id: str, tenant: _Tenant) -> None:
        if not tenant.total and not tenant.waiting:
            self._tenants.pop(tenant_id, None)
