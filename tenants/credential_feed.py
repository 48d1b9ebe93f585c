"""The feed of credential changes: how each process learns what it must no longer answer from memory.

A change is a row of `credential_changes`, written in the transaction of the change itself. Every process that answers
requests reads the newest rows ten times a second, applies them, and acknowledges them in its row of `processes`. The
read covers the last minute each time, since rows are not committed in the order of their ids.

Two rules make a revocation effective on the next call in every process, whatever Redis does:

- A process trusts its memory only until `TRUST_S` after the start of its last good read, and only while it is
  registered. Whoever is slow, stopped or cut off from PostgreSQL has no memory and asks PostgreSQL.
- Whoever revokes waits until every other registered process has acknowledged, or for `MAX_WAIT_S` after the commit.
  By then each of them has read the change, or has stopped trusting its memory.

A process counts as registered for others (`LISTED_S`) longer than for itself (`REGISTERED_S`), and its reads are good
only if they began after it was registered. So nobody trusts a memory that a revocation did not wait for.

The same rows tell a process whether its secret and its public address are those of the others (`tenants.fingerprints`):
those of the process that was started first, among those that are listed and agreed so far. Who differs trusts no memory
either, so nothing is answered without asking (`Feed.difference`). It never counts as the first while one of the others
is listed, however often those are restarted; once all of them are gone, one that is left is. After an outage of
PostgreSQL nobody is listed, and anyone may be the first to come back. So who differed and could not write its own row
either goes on differing for `RETURN_S`: the others are listed again by then.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import inf
from uuid import UUID, uuid4

import structlog
from sqlalchemy import BigInteger, Identity, Index, Integer, Uuid, false, text
from sqlalchemy.dialects.postgresql import ARRAY, TEXT
from sqlalchemy.orm import Mapped, mapped_column

from tenants.db import Base, TenantOwned, Tx, array
from tenants.fingerprints import Difference, Fingerprints
from tenants.platform_calls import CallFailed, ConnectionLost, PlatformCalls, Probe

POLL_EVERY_S = 0.1
# When asked to read at once, not more often than this.
MIN_PAUSE_S = 0.01
TRUST_S = 0.4
MAX_WAIT_S = 0.5
CHECK_EVERY_S = 0.01
HEARTBEAT_EVERY_S = 1.0
REGISTERED_S = 3.0
LISTED_S = 5
# Within which all processes reach PostgreSQL again after an outage: behind PgBouncer up to 15 s apart.
RETURN_S = 20.0
REREAD_S = 60
# A transaction that commits later than this after it wrote its change must write it again: others may not read it.
MAX_UNCOMMITTED_S = 20.0
# After a longer pause a change may have left the minute that is read: everything in memory is dropped.
MAX_PAUSE_S = 30.0
ACKNOWLEDGED_S = 5.0
MAX_READ_ROWS = 10_000
MAX_APPLIED_IDS = 50_000

log = structlog.get_logger()


class CredentialChange(TenantOwned, Base):
    """What is known under these names of the tenant has changed."""

    __tablename__ = "credential_changes"
    __table_args__ = (Index("ix_credential_changes_at", "at"),)

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    names: Mapped[list[str]] = mapped_column(ARRAY(TEXT))
    at: Mapped[datetime] = mapped_column(server_default=text("clock_timestamp()"))


class Process(Base):
    """A process that answers requests, and the newest changes that it has applied. Host and pid are for people."""

    __tablename__ = "processes"

    id: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    kind: Mapped[str]
    host: Mapped[str]
    pid: Mapped[int] = mapped_column(Integer)
    started_at: Mapped[datetime] = mapped_column(server_default=text("clock_timestamp()"))
    seen_at: Mapped[datetime] = mapped_column(server_default=text("clock_timestamp()"))
    seen: Mapped[list[int]] = mapped_column(ARRAY(BigInteger))
    secret_fingerprint: Mapped[str | None]
    url_fingerprint: Mapped[str | None]
    # Whether it has another secret or address than those who were here before.
    differs: Mapped[bool] = mapped_column(server_default=false())


@dataclass(frozen=True, slots=True)
class Change:
    id: int
    tenant_id: str
    names: Sequence[str]


def insert(tx: Tx, tenant_id: str, names: Collection[str]) -> Change:
    """Write a change in its own transaction."""
    inserted = tx.run(_INSERT, {"tenant": tenant_id, "names": list(names)})[0]
    return Change(inserted.id, tenant_id, tuple(names))


_INSERT = text("""
    INSERT INTO credential_changes (tenant_id, names) VALUES (:tenant, CAST(:names AS text[])) RETURNING id
""")


def boottime() -> float:
    """Seconds by a clock that also counts while the machine is suspended, where there is one."""
    return time.clock_gettime(_CLOCK)


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Feed:
    """This process's reader of the feed, in a thread of its own (a greenlet under gevent), from the first `start` on.

    `apply` is called with every change once, `drop_all` when some may have been missed; both before it is trusted.
    """

    def __init__(
        self,
        apply: Callable[[Change], None],
        drop_all: Callable[[], None],
        *,
        clock: Callable[[], float] = boottime,
    ) -> None:
        self.kind = "web"
        self.fingerprints = Fingerprints()
        self.difference: Difference | None = None
        self.has_compared = threading.Event()
        self._apply, self._drop_all, self._clock = apply, drop_all, clock
        self._calls = Probe()
        self._lock = threading.Lock()
        self._wanted = threading.Event()
        self._stop = threading.Event()
        self._acknowledgements = _Acknowledgements(clock)
        self._pid = 0
        self._reset()

    def _reset(self) -> None:
        self.id = uuid4()
        self._is_failing = False
        self.difference = None
        self._differs_until = -inf
        self.has_compared.clear()
        self._begin_again()

    def _begin_again(self) -> None:
        """Forget what was read and written: a restored database may use ids again, and not know this process."""
        self._trusted_until = -inf
        self._read_at = self._heartbeat_at = -inf
        self._registered_at = inf
        self._applied: dict[int, float] = {}

    def is_trusted(self, now: float) -> bool:
        """Whether this process has applied every change that somebody may have stopped waiting for."""
        return now < self._trusted_until and self._pid == os.getpid()

    def start(self) -> None:
        """Start reading, if this process does not yet: nothing is started before a fork."""
        if self._pid == os.getpid():
            return
        with self._lock:
            if self._pid != os.getpid():
                self._reset()
                self._drop_all()
                self._pid = os.getpid()
                threading.Thread(target=self._run, name="credential-feed", daemon=True).start()

    def stop(self) -> None:
        """Stop reading, and leave the list of processes: nobody waits for this one any more."""
        self._stop.set()
        self._wanted.set()

    def poll_soon(self) -> None:
        """Read at once: somebody says that there is a change."""
        self._wanted.set()

    def mark_applied(self, changes: Iterable[Change]) -> None:
        """These were made and applied by this process itself."""
        now = self._clock()
        with self._lock:
            self._applied.update((change.id, now) for change in changes)

    def wait_for_others(
        self, changes: Collection[Change], *, committed_at: float, hasten: Callable[[], None] = lambda: None
    ) -> bool:
        """Wait until every other process has applied these; False: until none of them trusts an older memory.

        `hasten` is called once if there is anybody to wait for.
        """
        ids = {change.id for change in changes}
        until = committed_at + MAX_WAIT_S
        is_first = True
        try:
            while not self._acknowledgements.cover(ids, by_all_but=self.id, since=committed_at, until=until):
                if is_first:
                    hasten()
                    is_first = False
                left = until - self._clock()
                if left <= 0:
                    return False
                time.sleep(min(CHECK_EVERY_S, left))
            return True
        finally:
            if self._pid != os.getpid():  # a command or job: it keeps no connection for the next time
                self._acknowledgements.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.poll()
            except ConnectionLost as error:
                self._failed(error)
                self._begin_again()
                if self._calls.failures == 1:
                    self._wanted.set()  # at once: it may be this connection alone
            except Exception as error:  # noqa: BLE001  whatever it is, the next read may succeed
                self._failed(error)
            else:
                self._is_failing = False
            self._stop.wait(MIN_PAUSE_S)
            self._wanted.wait(POLL_EVERY_S - MIN_PAUSE_S)
            self._wanted.clear()
        self._leave()

    def poll(self) -> None:
        """Read and apply what is new, acknowledge it, and trust the memory for another moment."""
        began = self._clock()
        rows = self._calls.probe(_READ, [array(self._applied_ids(began)), MAX_READ_ROWS])
        if began - self._read_at > MAX_PAUSE_S or len(rows) >= MAX_READ_ROWS:
            self._drop_all()
        changes = [Change(*row) for row in rows]
        for change in changes:
            self._apply(change)
        self.mark_applied(changes)
        self._read_at = began
        self._trust()
        if changes or began - self._heartbeat_at >= HEARTBEAT_EVERY_S:
            self._acknowledge()
            self._trust()

    def _acknowledge(self) -> None:
        """Write this process's row, and compare. The first time also durably: a restarted server must know of it.

        That may wait for a standby. Without one this process answers all the same, from PostgreSQL instead of memory.
        """
        began = self._clock()
        with self._lock:
            newest = [change_id for change_id, at in self._applied.items() if at > began - ACKNOWLEDGED_S]
        if self.difference is not None and began - self._heartbeat_at > REGISTERED_S:
            self._differs_until = began + RETURN_S
        kept = self.difference if began < self._differs_until else None
        own = self.fingerprints
        process = [self.id, self.kind, socket.gethostname(), os.getpid(), array(newest)]
        values = [own.secret, own.url, *process, kept is not None]
        differences = self._calls.run(_REGISTER, values, durable=False)
        self._compared(Difference(*differences[0]) if differences else kept)
        if self._registered_at == inf:
            self._calls.run(_REGISTER, values)
        done = self._clock()
        if done - self._heartbeat_at > REGISTERED_S:  # others may not have waited for this process until now
            self._registered_at = done
            self._wanted.set()
        self._heartbeat_at = began

    def _compared(self, difference: Difference | None) -> None:
        if (difference is None) != (self.difference is None):
            if difference is not None:
                data = {"variable": difference.variable, "host": difference.host, "pid": difference.pid}
                log.critical(str(difference), action="settings.differ", data=data)
            else:
                log.info("the processes that had other settings are gone", action="settings.agree")
        self.difference = difference
        self.has_compared.set()

    def _trust(self) -> None:
        if self.difference is not None:
            self._trusted_until = -inf
        elif self._read_at > self._registered_at:
            self._trusted_until = min(self._read_at + TRUST_S, self._heartbeat_at + REGISTERED_S)

    def _applied_ids(self, now: float) -> list[int]:
        """The ids that need not be read again, without those that have left the minute which is read."""
        with self._lock:
            while self._applied:
                oldest = next(iter(self._applied))
                if self._applied[oldest] > now - REREAD_S and len(self._applied) <= MAX_APPLIED_IDS:
                    break
                del self._applied[oldest]
            return list(self._applied)

    def _failed(self, error: Exception) -> None:
        if not self._is_failing:
            self._is_failing = True
            data = {"error": type(error).__name__, "reason": str(error) if isinstance(error, CallFailed) else ""}
            log.warning("cannot read credential changes", action="credentials.unread", data=data)

    def _leave(self) -> None:
        self._trusted_until = -inf
        try:
            self._calls.run(_UNREGISTER, [self.id])
        except Exception as error:  # noqa: BLE001  others wait for it a few seconds longer
            self._failed(error)
        self._calls.close()
        self._acknowledgements.close()


class _Acknowledgements:
    """Which processes have applied which changes. However many callers wait, one reads it for all."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._calls, self._clock = PlatformCalls(max_connections=1), clock
        self._lock = threading.Lock()
        self._read_at = -inf
        self._seen: dict[UUID, frozenset[int]] = {}

    def cover(self, ids: Collection[int], *, by_all_but: UUID, since: float, until: float) -> bool:
        """Whether all other processes that were registered after `since` have acknowledged these ids."""
        if not self._lock.acquire(timeout=max(0.0, until - self._clock())):
            return False
        try:
            now = self._clock()
            if self._read_at < max(since, now - CHECK_EVERY_S):
                rows = self._calls.run(_REGISTERED, [LISTED_S], within_s=max(POLL_EVERY_S, until - now))
                self._seen = {row[0]: frozenset(row[1]) for row in rows}
                self._read_at = now
            return all(seen.issuperset(ids) for process, seen in self._seen.items() if process != by_all_but)
        except CallFailed:
            return False
        finally:
            self._lock.release()

    def close(self) -> None:
        self._calls.close()


_READ = f"""
    SELECT id, tenant_id, names FROM credential_changes
    WHERE at > now() - interval '{REREAD_S} s' AND id <> ALL(CAST(%s AS bigint[])) ORDER BY id LIMIT %s
"""  # noqa: S608  our own number
# Writes the process's row, and returns from whom it differs in what. An address is compared with those of the same
# secret, as its fingerprint depends on that.
_REGISTER = f"""
    WITH own(secret, url) AS (
        SELECT CAST(%s AS text), CAST(%s AS text)
    ), agreed AS (
        SELECT * FROM processes
        WHERE seen_at > now() - interval '{LISTED_S} s' AND secret_fingerprint IS NOT NULL AND NOT differs
    ), first AS (
        SELECT * FROM agreed ORDER BY started_at, id LIMIT 1
    ), first_with_url AS (
        SELECT a.* FROM agreed a JOIN first f ON f.secret_fingerprint = a.secret_fingerprint
        WHERE a.url_fingerprint IS NOT NULL ORDER BY a.started_at, a.id LIMIT 1
    ), differences AS (
        SELECT 'PLAUDIT_SECRET_KEY' AS variable, host, pid FROM first, own WHERE secret_fingerprint <> secret
        UNION ALL
        SELECT 'PLAUDIT_PUBLIC_URL', host, pid FROM first_with_url, own
        WHERE secret_fingerprint = secret AND url_fingerprint <> url
    ), written AS (
        INSERT INTO processes (id, kind, host, pid, seen, secret_fingerprint, url_fingerprint, differs)
        VALUES (%s, %s, %s, %s, CAST(%s AS bigint[]), (SELECT secret FROM own), (SELECT url FROM own),
                EXISTS (SELECT FROM differences) OR %s)
        ON CONFLICT (id) DO UPDATE
        SET seen_at = clock_timestamp(), seen = EXCLUDED.seen, secret_fingerprint = EXCLUDED.secret_fingerprint,
            url_fingerprint = EXCLUDED.url_fingerprint, differs = EXCLUDED.differs
    )
    SELECT variable, host, pid FROM differences
"""  # noqa: S608  our own number
_REGISTERED = "SELECT id, seen FROM processes WHERE seen_at > now() - make_interval(secs => %s)"
_UNREGISTER = "DELETE FROM processes WHERE id = %s"
