"""How `plaudit check` goes through a tenant: in chunks by id, each in a transaction of its own.

A chunk is compared in one snapshot of the database. What boards are compared with in Redis is compared under the
tenant's board lock besides, so nobody writes them meanwhile; between two chunks a projection that is late gets its
turn. Chunks become smaller where they take long, and the whole walk ends at a limit, so that neither the lock nor old
rows are held for long, however large the tenant is.
"""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Protocol, TypeVar
from uuid import UUID

import psycopg
from sqlalchemy import TextClause, text
from sqlalchemy.exc import DBAPIError

from analytics import outbox
from analytics.locks import Busy, lock_boards, try_lock_boards
from analytics.wake import wake_again
from tenants.across import STATEMENT_TIMED_OUT
from tenants.db import Tx, tenant_tx
from tenants.errors import Unavailable
from tenants.pipelines import Driver

# How often it waits for a projection that has the lock.
MAX_WAITS = 20
MAX_IDS = 5_000
FIRST_IDS = 1_000
# A chunk that takes longer than the one is halved, one that takes less than the other is doubled.
MAX_CHUNK_S = 4.0
MIN_CHUNK_S = 1.0
# A change that has waited this long has probably found the lock taken by the chunk before.
MIN_LAG_S = 1.0
# Longer than nobody is woken after a projection found the lock taken (`wake.BUSY_S`).
MAX_PAUSE_S = 1.5
LOOK_EVERY_S = 0.1
# Both together keep every transaction below 30 s: a chunk has several statements, and reads Redis between them.
MAX_STATEMENT_MS = 10_000
MAX_TRANSACTION_S = 20.0
CANCEL_AGAIN_AFTER_S = 0.5
MAX_COUNT_MS = 3_000
MAX_WALK_S = 30 * 60.0

# Where, who, found and expected.
Found = tuple[str, str, Any, Any]


class CheckStopped(Unavailable):
    code = "check_stopped"
    title = "The check took longer than it may"


class Watch(Protocol):
    """Called with how much of a part is compared. `total` None: it takes too long to count."""

    def __call__(self, part: str, done: int, total: int | None, /) -> None: ...


def unwatched(_part: str, _done: int, _total: int | None, /) -> None: ...


@dataclass(frozen=True)
class Ids:
    """The ids that a part compares: queries for their number, and for those after one, in their order."""

    count: TextClause
    after: TextClause
    start: int | UUID


@dataclass(frozen=True)
class Chunk:
    """Some ids in a row, and the parameters of queries for what belongs to them: above `after` and up to `last`."""

    ids: Sequence[Any]
    parameters: dict[str, Any]
    now: datetime


@dataclass
class Compared:
    """The differences of a chunk, and what else a part counts."""

    found: list[Found] = field(default_factory=list)
    # How many ids it went through, and the last of them; how many things were compared, and how many left out.
    passed: int = 0
    last: Any = None
    compared: int = 0
    due: int = 0
    # How many members each board must have, by topic.
    members: Counter[str] = field(default_factory=Counter)
    # The boards that Redis does not have, or not whole.
    lost: set[str] = field(default_factory=set)

    def add(self, other: "Compared") -> None:
        self.found += other.found
        self.passed += other.passed
        self.compared += other.compared
        self.due += other.due
        for topic, members in other.members.items():  # not update(): boards without members count too
            self.members[topic] = self.members[topic] + members
        self.lost |= other.lost


Look = TypeVar("Look", bound=Compared)


@dataclass(frozen=True)
class Walk:
    """A check of one tenant. `ends_at` is by the monotonic clock."""

    tenant_id: str
    now: datetime
    ends_at: float = math.inf
    watch: Watch = unwatched

    def over(
        self, part: str, ids: Ids, compare: Callable[[Tx, Chunk], Compared], *, with_boards: bool = False
    ) -> Compared:
        """Compare everything that has these ids, chunk by chunk. `with_boards`: under the tenant's board lock."""
        done, total = Compared(), self._count(ids)
        after, limit, is_last = ids.start, FIRST_IDS, False
        while not is_last:
            self.watch(part, done.passed, max(total, done.passed) if total is not None else None)
            self.require_time(part, done.passed, total)
            began = time.monotonic()
            try:
                seen = self.look(partial(self._compare_chunk, ids, after, limit, compare), with_boards=with_boards)
            except DBAPIError as error:
                if not _took_too_long(error):
                    raise
                if limit == 1:
                    raise self._too_slow(part, f"after {after}") from error
                limit = max(limit // 8, 1)
                continue
            done.add(seen)
            after, is_last = seen.last, seen.passed < limit
            limit = _next_limit(limit, took_s=time.monotonic() - began)
        self.watch(part, done.passed, done.passed)
        return done

    def once(self, part: str, differences: Callable[[Tx], Iterable[Found]]) -> Compared:
        """Compare what is bounded for every tenant, in one transaction."""
        self.require_time(part, 0, 1)
        try:
            return self.look(lambda tx: Compared(list(differences(tx))))
        except DBAPIError as error:
            if _took_too_long(error):
                raise self._too_slow(part, "at once") from error
            raise

    def look(self, compare: Callable[[Tx], Look], *, with_boards: bool = False) -> Look:
        """Compare in a transaction of its own, and what differs once more: only what is found again is a difference.

        The snapshot is a moment older than the lock: what was committed between is none at the second look.
        """
        seen = self._when_free(compare, with_boards=with_boards)
        if seen.found:
            places = {(where, who) for where, who, *_ in seen.found}
            seen = self._when_free(compare, with_boards=with_boards)
            seen.found = [one for one in seen.found if one[:2] in places]
        return seen

    def _compare_chunk(
        self, ids: Ids, after: Any, limit: int, compare: Callable[[Tx, Chunk], Compared], tx: Tx
    ) -> Compared:
        found = list(tx.scalars(ids.after, {"tenant": self.tenant_id, "after": after, "limit": limit}))
        if not found:
            return Compared()
        between = {"tenant": self.tenant_id, "after": after, "last": found[-1]}
        compared = compare(tx, Chunk(found, between, self.now))
        compared.passed, compared.last = len(found), found[-1]
        return compared

    def require_time(self, part: str, done: int, total: int | None) -> None:
        if time.monotonic() > self.ends_at:
            of_all = f" of {total:,}" if total is not None else ""
            raise CheckStopped(
                f"The check stopped at its limit of time, in part {part} of {self.tenant_id}"
                f" ({done:,}{of_all} compared): check in parts (--only {part}), one tenant, or give it longer"
                " (--within MINUTES)"
            )

    def _too_slow(self, part: str, what: str) -> CheckStopped:
        return CheckStopped(
            f"PostgreSQL took longer than {MAX_STATEMENT_MS // 1000} s for a statement, or {MAX_TRANSACTION_S:g} s for"
            f" several, to compare part {part} of {self.tenant_id} {what}: run plaudit doctor, which names missing"
            " statistics and indexes, and check again when load is low"
        )

    def _count(self, ids: Ids) -> int | None:
        """For the progress only, so a cold copy need not be read for it. None: it takes too long."""
        try:
            with tenant_tx(self.tenant_id) as tx:
                tx.set_statement_timeout(MAX_COUNT_MS)
                return int(tx.scalar(ids.count, {"tenant": self.tenant_id}) or 0)
        except DBAPIError as error:
            if _took_too_long(error):
                return None
            raise

    def _when_free(self, compare: Callable[[Tx], Look], *, with_boards: bool) -> Look:
        if with_boards:
            self._make_way()
        for _ in range(MAX_WAITS):
            with suppress(Busy):
                return self._in_snapshot(compare, with_boards=with_boards)
            with suppress(Busy), tenant_tx(self.tenant_id) as tx:
                lock_boards(tx, self.tenant_id)  # wait for its holder
        return self._in_snapshot(compare, with_boards=with_boards)

    def _make_way(self) -> None:
        """If changes wait for a projection, have one run, and leave it the lock: it only tries, and comes back later.

        Until it has projected what waits now; not for long, since no worker may be running.
        """
        if self._lag_s() < MIN_LAG_S:
            return
        wake_again([self.tenant_id])
        began = time.monotonic()
        while (waited_s := time.monotonic() - began) < MAX_PAUSE_S and self._lag_s() > waited_s:
            time.sleep(LOOK_EVERY_S)

    def _lag_s(self) -> float:
        with tenant_tx(self.tenant_id) as tx:
            return outbox.lag_s(tx)

    def _in_snapshot(self, compare: Callable[[Tx], Look], *, with_boards: bool) -> Look:
        with tenant_tx(self.tenant_id) as tx:
            # The snapshot is taken by the first query, which takes the lock.
            tx.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
            if with_boards:
                try_lock_boards(tx, self.tenant_id)
            tx.set_statement_timeout(MAX_STATEMENT_MS)
            with _cancelled_after(tx, MAX_TRANSACTION_S):
                return compare(tx)


@contextmanager
def _cancelled_after(tx: Tx, seconds: float) -> Iterator[None]:
    """Cancel whatever statement runs when the time is over, and those after it: PostgreSQL 16 limits each alone."""
    driver: Driver = tx.raw.connection.driver_connection  # type: ignore[assignment]
    is_done = threading.Event()

    def cancel() -> None:
        wait_s = seconds
        while not is_done.wait(wait_s):
            wait_s = CANCEL_AGAIN_AFTER_S
            with suppress(psycopg.Error):
                driver.cancel_safe(timeout=CANCEL_AGAIN_AFTER_S)

    watching = threading.Thread(target=cancel, name="check-limit", daemon=True)
    watching.start()
    try:
        yield
    finally:
        is_done.set()
        watching.join()


def _took_too_long(error: DBAPIError) -> bool:
    return getattr(error.orig, "sqlstate", None) == STATEMENT_TIMED_OUT


def _next_limit(limit: int, *, took_s: float) -> int:
    if took_s > MAX_CHUNK_S:
        return max(limit // 2, 1)
    return min(limit * 2, MAX_IDS) if took_s < MIN_CHUNK_S else limit


PAGES = Ids(
    count=text("SELECT count(*) FROM pages WHERE tenant_id = :tenant"),
    after=text("""
        (SELECT id FROM pages WHERE tenant_id = :tenant AND id > :after ORDER BY id LIMIT :limit)
        UNION (SELECT page_id FROM page_stats WHERE tenant_id = :tenant AND page_id > :after
               ORDER BY page_id LIMIT :limit)
        ORDER BY id LIMIT :limit
    """),
    start=0,
)
USERS = Ids(
    count=text("SELECT count(*) FROM users WHERE tenant_id = :tenant"),
    after=text("SELECT id FROM users WHERE tenant_id = :tenant AND id > :after ORDER BY id LIMIT :limit"),
    start=UUID(int=0),
)
