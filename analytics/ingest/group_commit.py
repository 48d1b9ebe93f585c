"""Group commit: requests that are in flight together share a transaction.

A hot page's rows then change once per commit instead of once per request. A caller is answered after the commit that
contains its request, and nothing is kept in memory after an answer.

A caller waits in its own thread. The first one leads: it takes the waiting requests, commits them, hands out the
results, and passes the lead to a caller that arrived meanwhile. A server that finishes its requests before it stops has
drained it. For an event loop, whose callers have no threads, there is `analytics.ingest.loop_commit`.

Tenants share one lane fairly: none fills more than its share of a commit, or of what may wait. The shared transaction
waits for a lock only briefly. When it fails, each tenant's requests move to a lane of their own, led by one of their
own callers, and the shared lane continues at once. A tenant whose own transaction was slow too stays apart
for a while, so a row that is locked for long delays its own tenant and nobody else.
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence

import structlog
from sqlalchemy.exc import DBAPIError

from analytics.ingest.commit_lanes import Lane, Waiting
from analytics.ingest.writes import Outcome, Unwritable, WriteRequest, commit_together
from tenants.errors import Unavailable
from tenants.shares import TenantBusy, share_of

MAX_ITEMS_IN_FLIGHT = 50_000
MAX_ITEMS_PER_COMMIT = 10_000
WAIT_S = 10.0
MAX_GATHER_S = 0.003
# A tenant whose own transaction takes longer, after a shared one failed, stays out of the shared one for a while.
SLOW_S = 0.1
APART_S = 30.0
# PostgreSQL's codes for a lock or a statement that took too long.
TIMEOUTS = ("55P03", "57014")

log = structlog.get_logger()

# Writes requests in one transaction, shared by tenants or not; returns those that are still to be written.
Commit = Callable[[Sequence[WriteRequest], bool], list[WriteRequest]]


class Overloaded(Unavailable):
    code = "overloaded"
    title = "Too many writes are waiting"


class GroupCommit:
    """The requests that wait in this process, in their lanes."""

    def __init__(
        self,
        *,
        after: Callable[[Iterable[str]], None] | None = None,
        max_items: int = MAX_ITEMS_IN_FLIGHT,
        wait_s: float = WAIT_S,
        commit: Commit = commit_together,
    ) -> None:
        """`after` is given the tenants of each commit, once its callers are answered."""
        self._after = after
        self._max_items = max_items
        self._wait_s = wait_s
        self._commit = commit
        self._lock = threading.Lock()
        self._shared = Lane()
        self._apart: dict[str, Lane] = {}
        self._items_of: Counter[str] = Counter()
        self._items = 0

    def write(self, request: WriteRequest) -> list[Outcome]:
        """Commit this request, and return the outcome of each item: after PostgreSQL's commit. Or raise.

        The outcomes of its claims are in `request.payments`.
        """
        request.prepare()
        is_written = False
        try:
            self._write(request)
            is_written = True
        finally:
            request.give_back(is_written=is_written)
        request.run_after_commit()
        return request.outcomes

    def _write(self, request: WriteRequest) -> None:
        with self._lock:
            self._admit(request)
            own = Waiting(request, self._lane_of(request.tenant_id))
            self._enqueue(own)
        try:
            while not own.is_done:
                self._wait(own)
                if own.leads:
                    following = self._lead(own)
                    if following is not None:
                        following.lead()
        finally:
            with self._lock:
                self._leave(request)
        if request.error is not None:
            raise request.error

    @property
    def items_in_flight(self) -> int:
        return self._items

    def _admit(self, request: WriteRequest) -> None:
        items = self._items_of[request.tenant_id] + request.weight
        if self._items + request.weight > self._max_items:
            raise Overloaded
        if items > share_of(self._max_items):
            raise TenantBusy
        self._items_of[request.tenant_id] = items
        self._items += request.weight

    def _leave(self, request: WriteRequest) -> None:
        self._items -= request.weight
        self._items_of[request.tenant_id] -= request.weight
        if not self._items_of[request.tenant_id]:
            del self._items_of[request.tenant_id]

    def _lane_of(self, tenant_id: str) -> Lane:
        lane = self._apart.get(tenant_id)
        if lane is None:
            return self._shared
        if not lane.is_led and lane.apart_until < time.monotonic():
            del self._apart[tenant_id]
            return self._shared
        return lane

    def _enqueue(self, caller: Waiting) -> None:
        """Append it to its lane. Its caller leads if no other does."""
        lane = caller.lane
        lane.add(caller)
        if not lane.is_led:
            lane.is_led = True
            caller.lead()

    def _wait(self, own: Waiting) -> None:
        """Until the request is done, or it is this caller's turn to lead."""
        while not own.gate.acquire(timeout=self._wait_s):
            with self._lock:
                if not own.leads and own in own.lane.waiting:
                    own.lane.waiting.remove(own)
                    raise Overloaded
            # It is being committed, and only the database knows the outcome; or its gate has just been opened.

    def _lead(self, own: Waiting) -> Waiting | None:
        """Commit the lane's next batch, our own request first. Returns who must lead next, if anybody waits.

        Raises nothing: what goes wrong is the error of each request.
        """
        lane = own.lane
        self._gather(lane)
        batch = self._take(lane, own)
        requests = [caller.request for caller in batch]
        left: Sequence[WriteRequest] = ()
        began = time.monotonic()
        try:
            left = self._commit_shared(requests) if lane.is_shared else self._commit_apart(lane, requests)
        except BaseException as error:  # noqa: BLE001  each caller raises it
            for request in requests:
                request.error = request.error or error
        with self._lock:
            lane.last_took_s = time.monotonic() - began
            lane.callers = len(batch) + len(lane.waiting)
            self._finish(batch, left)
            following = self._next_leader(lane)
        self._follow(requests, left)
        return following

    def _follow(self, requests: Sequence[WriteRequest], left: Sequence[WriteRequest]) -> None:
        """Once the callers are answered: whatever goes wrong here, somebody must lead next."""
        if self._after is None:
            return
        unfinished = {id(request) for request in left}
        done = [
            request
            for request in requests
            if id(request) not in unfinished and request.error is None and (request.items or request.claims)
        ]
        try:
            self._after({request.tenant_id for request in done})
        except Exception:
            log.exception("what follows a group commit failed", action="commit.after")

    def _gather(self, lane: Lane) -> None:
        """Wait a moment for callers that were just answered, who often send again at once; never for a lone one.

        A commit of twice as many requests costs little more, so this answers all of them sooner.
        """
        with self._lock:
            lane.is_gathering = len(lane.waiting) < lane.callers
            if not lane.is_gathering:
                return
        if not lane.enough.acquire(timeout=min(MAX_GATHER_S, lane.last_took_s)):
            with self._lock:
                lane.stop_gathering()

    def _take(self, lane: Lane, own: Waiting) -> list[Waiting]:
        """The next batch, in the order of arrival; no tenant gets more than its share, so that others fit in."""
        with self._lock:
            own.leads = False
            batch: list[Waiting] = []
            waiting, lane.waiting = lane.waiting, deque()
            items, items_of = 0, Counter[str]()
            waiting.remove(own)
            for caller in [own, *waiting]:
                tenant_id, weight = caller.request.tenant_id, caller.request.weight
                if lane.is_shared and self._lane_of(tenant_id) is not lane:  # the tenant has a lane of its own since
                    caller.lane = self._apart[tenant_id]
                    self._enqueue(caller)
                    continue
                fits = items + weight <= MAX_ITEMS_PER_COMMIT
                in_share = items_of[tenant_id] + weight <= share_of(MAX_ITEMS_PER_COMMIT) or not items_of[tenant_id]
                if caller is own or (fits and in_share):
                    batch.append(caller)
                    items += weight
                    items_of[tenant_id] += weight
                else:
                    lane.waiting.append(caller)
            return batch

    def _finish(self, batch: Sequence[Waiting], left: Sequence[WriteRequest]) -> None:
        """Wake the callers whose requests are done. The requests in `left` move to lanes of their tenants' own."""
        unfinished = {id(request) for request in left}
        for caller in batch:
            if id(caller.request) not in unfinished:
                caller.finish()
        lanes: list[Lane] = []
        for caller in reversed(batch):  # before requests that came to the lane meanwhile
            if id(caller.request) in unfinished:
                caller.lane = self._apart.setdefault(caller.request.tenant_id, Lane(caller.request.tenant_id))
                caller.lane.waiting.appendleft(caller)
                lanes.append(caller.lane)
        for lane in dict.fromkeys(lanes):
            if not lane.is_led:
                lane.is_led = True
                lane.waiting[0].lead()

    def _commit_shared(self, requests: Sequence[WriteRequest]) -> Sequence[WriteRequest]:
        """Commit several tenants' requests in one transaction. Returns those that must be committed apart."""
        if not requests:
            return ()
        try:
            return self._commit(requests, True)
        except Unwritable:
            return requests
        except DBAPIError as error:
            if outcome_is_known(error):
                return requests
            fail(requests, error)
            return ()

    def _commit_apart(self, lane: Lane, requests: Sequence[WriteRequest]) -> Sequence[WriteRequest]:
        """Commit one tenant's requests in a transaction of their own. Returns none."""
        if not requests:
            return ()
        began = time.monotonic()
        timed_out = self._try_apart(requests)
        now = time.monotonic()
        if timed_out or now - began > SLOW_S:
            lane.apart_until = now + APART_S
        return ()

    def _try_apart(self, requests: Sequence[WriteRequest]) -> bool:
        """Commit these requests. Returns whether a lock or statement took too long.

        If the requests fail together for another reason, each is tried once more alone: only the one that cannot be
        written fails. After a timeout nothing is tried again, since the next would wait as long.
        """
        tries: deque[Sequence[WriteRequest]] = deque([requests])
        while tries:
            attempt = tries.popleft()
            try:
                left = self._commit(attempt, False)
            except Unwritable as error:
                if attempt is requests:
                    tries.extend([request] for request in requests)
                else:
                    fail(attempt, error.__cause__ or error)
            except DBAPIError as error:
                if not outcome_is_known(error) or code_of(error) in TIMEOUTS:
                    fail([request for group in (attempt, *tries) for request in group], error)
                    return code_of(error) in TIMEOUTS
                if attempt is requests:
                    tries.extend([request] for request in requests)
                else:
                    fail(attempt, error)
            else:
                if left:
                    tries.append(left)
        return False

    def _next_leader(self, lane: Lane) -> Waiting | None:
        """Who must lead the lane next; None: nobody waits, and the next caller will."""
        if lane.waiting:
            lane.waiting[0].leads = True  # at once: so it does not leave because it has waited long enough
            return lane.waiting[0]
        lane.is_led = False
        if lane.tenant_id is not None and lane.apart_until < time.monotonic():
            del self._apart[lane.tenant_id]
        return None


def outcome_is_known(error: DBAPIError) -> bool:
    """Whether nothing was committed: the server, or the driver before it sent anything, refused the transaction.

    After a lost connection it may be committed, and must not be sent again.
    """
    return not error.connection_invalidated


def code_of(error: DBAPIError) -> str | None:
    code: str | None = getattr(error.orig, "sqlstate", None)
    return code


def fail(requests: Iterable[WriteRequest], error: BaseException) -> None:
    for request in requests:
        request.error = error
