"""Group commit on an event loop: single writes that are in flight together share a transaction, and occupy no thread.

Everything here runs on the loop, so nothing is locked and nobody is woken: a commit is sent, and its answer is one more
thing that the loop waits for. Threads did the same (`analytics.ingest.group_commit`, for what comes from routes), but
waking them and taking turns at the interpreter cost more than a view does.

What is unusual is left to those threads: a request is either decided here, or nothing of it was written. When a commit
fails, each tenant's requests are tried once more by themselves, so that one tenant's trouble stays its own; and a
tenant whose rows are locked for long is left to the threads for a while.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

import structlog
from sqlalchemy.exc import DBAPIError

from analytics.ingest.group_commit import (
    APART_S,
    MAX_GATHER_S,
    TIMEOUTS,
    WAIT_S,
    Overloaded,
    code_of,
    fail,
    outcome_is_known,
)
from analytics.ingest.writes import Unwritable, WriteRequest
from tenants.shares import share_of

# Of all tenants: more are left to threads, which refuse what is too much.
MAX_WAITING = 4_096
# How long tenants are tried by themselves, after a commit that they shared has failed; the others are left to threads.
MAX_RETRY_S = 1.0

log = structlog.get_logger()

# Writes requests in one transaction; returns those that are still to be written.
Commit = Callable[[Sequence[WriteRequest]], Awaitable[list[WriteRequest]]]


# Called once: whether the request is committed or refused. If not, nothing was written, and a thread must write it.
Decided = Callable[[bool], None]


@dataclass(slots=True, eq=False)
class _Caller:
    request: WriteRequest
    decided: Decided
    expires_at: float

    def answer(self, *, is_decided: bool) -> None:
        try:
            self.decided(is_decided)
        except Exception:
            log.exception("a write could not be answered", action="commit.answer", tenantId=self.request.tenant_id)


class LoopCommit:
    """The requests that wait on a loop, and the one commit that is under way."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        commit: Commit,
        *,
        max_requests: int,
        after: Callable[[Iterable[str]], None] | None = None,
        wait_s: float = WAIT_S,
    ) -> None:
        """`max_requests`: in one commit. `after` is given the tenants of each commit, once its callers are answered."""
        self._loop = loop
        self._commit = commit
        self._max_requests = max_requests
        self._share = share_of(max_requests)
        self._after = after
        self._wait_s = wait_s
        self._waiting: deque[_Caller] = deque()
        self._committing: asyncio.Task[None] | None = None
        # How many callers there were at the last commit: in it, or waiting when it was done; and how long it took.
        self._callers = 0
        self._last_took_s = 0.0
        self._gathering: asyncio.TimerHandle | None = None
        self._expiring: asyncio.TimerHandle | None = None
        # Tenants that are left to threads, and until when.
        self._apart: dict[str, float] = {}

    def submit(self, request: WriteRequest, decided: Decided) -> None:
        """Have it committed with others. `decided` is called on the loop; the request has its outcomes, or its `error`.

        The request is prepared already (`WriteRequest.prepare`).
        """
        if len(self._waiting) >= MAX_WAITING or self._is_apart(request.tenant_id):
            decided(False)
            return
        self._waiting.append(_Caller(request, decided, time.monotonic() + self._wait_s))
        if self._expiring is None:
            self._expiring = self._loop.call_later(self._wait_s, self._expire)
        if self._committing is None:
            self._begin_when_enough()

    def _begin_when_enough(self) -> None:
        """Wait a moment for callers that were just answered, who often send again at once; never for a lone one.

        A commit of twice as many requests costs little more, so this answers all of them sooner.
        """
        if len(self._waiting) >= min(self._callers, self._max_requests):
            self._begin()
        elif self._waiting and self._gathering is None:
            self._gathering = self._loop.call_later(min(MAX_GATHER_S, self._last_took_s), self._begin)

    def _begin(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        batch = self._take()
        if batch:
            self._committing = self._loop.create_task(self._lead(batch))

    def _take(self) -> list[_Caller]:
        """The next batch, in the order of arrival; no tenant gets more than its share, so that others fit in."""
        batch: list[_Caller] = []
        taken: Counter[str] = Counter()
        waiting, self._waiting = self._waiting, deque()
        for caller in waiting:
            tenant_id = caller.request.tenant_id
            if len(batch) < self._max_requests and taken[tenant_id] < self._share:
                batch.append(caller)
                taken[tenant_id] += 1
            else:
                self._waiting.append(caller)
        return batch

    async def _lead(self, batch: Sequence[_Caller]) -> None:
        """Commit a batch; then begin the next one, whatever happened."""
        began = time.monotonic()
        try:
            unwritten, has_failed = await self._try(batch)
            groups = _grouped(unwritten)
            if has_failed and len(groups) > 1:
                unwritten = []
                for group in groups:
                    is_late = time.monotonic() - began > MAX_RETRY_S
                    unwritten += group if is_late else (await self._try(group))[0]
            for caller in unwritten:
                caller.answer(is_decided=False)
        finally:
            self._committing = None
            self._last_took_s = time.monotonic() - began
            self._callers = len(batch) + len(self._waiting)
            self._begin_when_enough()

    async def _try(self, batch: Sequence[_Caller]) -> tuple[list[_Caller], bool]:
        """Commit these, and answer their callers. Returns those of whom nothing was written; and whether all failed."""
        requests = [caller.request for caller in batch]
        left: Sequence[WriteRequest] = ()
        has_failed = False
        try:
            left = await self._commit(requests)
        except Unwritable:
            left, has_failed = requests, True
        except DBAPIError as error:
            if outcome_is_known(error):
                left, has_failed = requests, True
                self._keep_apart_if_slow(requests, error)
            else:
                fail(requests, error)
        except Exception as error:  # noqa: BLE001  each caller raises it
            fail(requests, error)
        unwritten = {id(request) for request in left}
        done = [caller for caller in batch if id(caller.request) not in unwritten]
        for caller in done:
            caller.answer(is_decided=True)
        self._follow([caller.request for caller in done])
        return [caller for caller in batch if id(caller.request) in unwritten], has_failed

    def _follow(self, requests: Sequence[WriteRequest]) -> None:
        """Once the callers are answered: whatever goes wrong here, the next commit must begin."""
        written = {request.tenant_id for request in requests if request.error is None}
        if self._after is None or not written:
            return
        try:
            self._after(written)
        except Exception:
            log.exception("what follows a group commit failed", action="commit.after")

    def _expire(self) -> None:
        """Refuse those who have waited too long, while the database does not answer."""
        self._expiring = None
        now = time.monotonic()
        while self._waiting and self._waiting[0].expires_at <= now:
            caller = self._waiting.popleft()
            caller.request.error = Overloaded()
            caller.answer(is_decided=True)
        if self._waiting:
            self._expiring = self._loop.call_later(self._waiting[0].expires_at - now, self._expire)

    def _keep_apart_if_slow(self, requests: Sequence[WriteRequest], error: DBAPIError) -> None:
        """A tenant alone, whose rows are locked: threads write what follows, without delaying the others."""
        tenants = {request.tenant_id for request in requests}
        if len(tenants) == 1 and code_of(error) in TIMEOUTS:
            now = time.monotonic()
            self._apart = {tenant_id: until for tenant_id, until in self._apart.items() if until > now}
            self._apart[tenants.pop()] = now + APART_S

    def _is_apart(self, tenant_id: str) -> bool:
        return bool(self._apart) and self._apart.get(tenant_id, 0.0) > time.monotonic()


def _grouped(callers: Iterable[_Caller]) -> list[list[_Caller]]:
    """By tenant."""
    groups: dict[str, list[_Caller]] = {}
    for caller in callers:
        groups.setdefault(caller.request.tenant_id, []).append(caller)
    return [*groups.values()]
