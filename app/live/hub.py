"""The Hub: which connections of this process follow which boards, and what each of them has yet to be sent.

An invalidation only says which version is the newest, so a follower keeps just that for each board it follows: a slow
reader is sent fewer frames, and nothing queues. The Hub never writes to a connection. It marks what is due and wakes
the one greenlet that writes, so no connection waits for another.

Messages of Redis may be lost, and Redis may be down. So the Hub also reads the versions in PostgreSQL every few
seconds; and when Redis is back after an outage, every follower is sent a `resync` for each board it follows.
"""

import threading
import time
from collections import Counter as Counts
from contextlib import suppress
from functools import partial
from typing import Any

import structlog

from analytics.boards import redis_store, versions
from analytics.boards.board_sql import transaction_for
from analytics.boards.listener import Listener
from analytics.boards.names import Board
from analytics.quests import topics
from analytics.quests.topics import QuestTopic
from app.live.follower import Follower, Key
from app.live.tops import Tops
from tenants import ceilings, liveness, redis
from tenants import settings as tenant_settings
from tenants.ceilings import Ceiling, CeilingReached
from tenants.credential_feed import Change
from tenants.db import utcnow
from tenants.errors import Limited
from tenants.metrics import Counter, Gauge
from tenants.open_counts import Group, OpenCounts
from tenants.redis import RedisUnavailable
from tenants.shares import half_of

POLL_EVERY_S = 5.0
POLL_WITHOUT_REDIS_EVERY_S = 1.0
WATCH_EVERY_S = 0.5
# If the kernel does not accept a frame within this time, the client does not read.
STUCK_AFTER_S = 8.0
# How often each connection's credential is checked; and when again, if it could not be.
CHECK_EVERY_S = 20.0
CHECK_AGAIN_AFTER_S = 2.0
# Of so many tenants at once: one whose rows nobody answers for must not delay the others.
MAX_TENANTS_CHECKED = 8
# Connections of anonymous readers.
MAX_CONNECTIONS_PER_ADDRESS = 50

# Close codes of RFC 6455's registry, and one of ours: what 401 is in HTTP.
GOING_AWAY = 1001
POLICY_VIOLATION = 1008
RESTARTING = 1012
TRY_AGAIN_LATER = 1013
NO_LONGER_VALID = 4401

# Each sleep takes a millisecond more than it says, so there are few.
ENDING_STEPS = 40

CONNECTIONS = Gauge("plaudit_live_connections", "Open sockets and streams.", ["kind"], multiprocess_mode="livesum")
DROPPED = Counter("plaudit_live_dropped_total", "Connections ended by us.", ["why"])

log = structlog.get_logger()

# All connections of a tenant, anonymous ones included.
ALL = "all"


class TooManyConnections(Limited):
    code = "too_many_connections"
    title = "This tenant has reached its number of open connections"


class Hub:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        # In the order in which they joined.
        self._connections: dict[Follower, None] = {}
        self._followers: dict[Key, set[Follower]] = {}
        self._open_counts = OpenCounts("live")
        self._ending: int | None = None
        # The newest version of each followed board, current while the listener is connected.
        self._newest: dict[Key, int] = {}
        self.tops = Tops()
        self._retries: list[tuple[float, Follower, Key, int]] = []
        handlers = {redis_store.CHANNEL: self.on_invalidation, liveness.CHANNEL: lambda _: liveness.poll_soon()}
        self._listener = Listener(handlers, self._on_missed)
        self._poll_now = threading.Event()
        self._check_now = threading.Event()
        self._checked_tenants: set[str] = set()
        self._resync = False
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """In the process that serves: after a fork, not before."""
        with self._lock:
            if self._threads:
                return
            work = {
                "hub-poll": self._poll_versions,
                "hub-watch": self._watch_writes,
                "hub-check": self._check_credentials,
            }
            self._threads = [threading.Thread(target=run, name=name, daemon=True) for name, run in work.items()]
        for kind in ("socket", "stream"):
            CONNECTIONS.labels(kind)  # 0, and not missing in the metrics, until the first comes
        liveness.watch(self._on_credential_change)
        self._listener.start()
        for thread in self._threads:
            thread.start()

    def join(self, follower: Follower) -> None:
        self.start()
        tenant_id = follower.reader.tenant_id
        ceiling = ceilings.recent(tenant_id)[Ceiling.SOCKETS]
        limits = self._limits(follower, tenant_settings.recent(tenant_id).limits.live_connections, ceiling)
        full = self._open_counts.open(limits)
        if full is not None and self._make_way(follower, full, limits[full]):
            full = self._open_counts.open(limits)
        if full == (tenant_id, ALL):
            raise CeilingReached(Ceiling.SOCKETS, ceiling)
        if full is not None:
            raise TooManyConnections(f"At most {limits[full]} at once", retry_after_s=5)
        with self._lock:
            self._connections[follower] = None
        CONNECTIONS.labels(follower.kind).inc()
        if self._ending is not None:  # its client learns it as those do that were here before
            follower.end(self._ending)

    def leave(self, follower: Follower) -> None:
        for key in list(follower.follows):
            self.remove(key, follower)
        with self._lock:
            if follower not in self._connections:
                return
            del self._connections[follower]
        self._open_counts.close(self._limits(follower, 0, 0))
        CONNECTIONS.labels(follower.kind).dec()

    def _make_way(self, follower: Follower, full: Group, limit: int) -> bool:
        """End the newest connection of a caller with more than half of what is full, for a caller with less than half.

        Whoever waited for a place would wait until the other one closes its page. Only connections to this process are
        ended.
        """
        half, own = half_of(limit), _caller_of(follower)
        if full == own or self._open_counts.count(own) >= half:
            return False
        others = [each for each in list(self._connections) if full in self._limits(each, 0, 0)]
        most = Counts(map(_caller_of, others)).most_common(1)
        if not most or self._open_counts.count(most[0][0]) <= half:
            return False
        newest = next(each for each in reversed(others) if _caller_of(each) == most[0][0])
        DROPPED.labels("makes way").inc()
        newest.end(TRY_AGAIN_LATER)
        self.leave(newest)
        return True

    def _limits(self, follower: Follower, limit: int, ceiling: int) -> dict[tuple[str, str], int]:
        """The groups that a connection belongs to, and the limit of each. Anonymous readers have their own groups."""
        tenant_id = follower.reader.tenant_id
        limits, of_caller = {(tenant_id, ALL): ceiling}, _caller_of(follower)
        if not follower.reader.is_anonymous:
            return {**limits, (tenant_id, ""): limit, of_caller: limit}
        limit = min(limit, ceiling // 2)  # so that they leave room for the tenant's own
        return {**limits, (tenant_id, "public"): limit, of_caller: min(limit, MAX_CONNECTIONS_PER_ADDRESS)}

    def add(self, key: Key, follower: Follower) -> None:
        with self._lock:
            self._followers.setdefault(key, set()).add(follower)

    def remove(self, key: Key, follower: Follower) -> None:
        with self._lock:
            followers = self._followers.get(key)
            if followers is not None:
                followers.discard(follower)
                if not followers:
                    del self._followers[key]
                    self._newest.pop(key, None)

    def version_of(self, board: Board | QuestTopic) -> int:
        """The version of a board or of quests now. The caller follows it already, so no later change is missed."""
        key = (board.tenant_id, board.topic)
        known = self._newest.get(key)
        if known is not None and self._listener.is_connected:
            return known
        if isinstance(board, QuestTopic):
            self.notify_followers(key, number := topics.versions_of(board.tenant_id, [board])[board])
            return self._newest.get(key, number)
        with transaction_for(board) as tx:
            number = versions.read(tx, [board], now=utcnow())[board].number
        with suppress(RedisUnavailable), redis.boards().client() as client:  # published before PostgreSQL commits
            number = max(number, redis_store.published_version(client, board))
        self.notify_followers(key, number)
        return self._newest.get(key, number)

    def retry_later(self, follower: Follower, key: Key, version: int, *, in_s: float) -> None:
        """Mark it due again after this time."""
        self._retries.append((time.monotonic() + in_s, follower, key, version))

    def end_all(self, code: int, *, over_s: float = 0.0) -> None:
        """Before the process stops: every connection is closed cleanly, and its client connects to another process.

        `over_s`: how long that takes, so that the other process does not get all of them at the same moment.
        """
        self._ending = code
        connections = list(self._connections)
        for first in range(ENDING_STEPS):
            for follower in connections[first::ENDING_STEPS]:
                follower.end(code)
            time.sleep(over_s / ENDING_STEPS)

    # --- Messages of Redis, and what is polled -------------------------------------------------------------------

    def on_invalidation(self, message: dict[str, Any]) -> None:
        """A message of Redis: these boards of a tenant have new versions."""
        tenant_id: str = message["tenant"]
        for topic, version in message["versions"].items():
            self.notify_followers((tenant_id, topic), version)
        if message.get("resync"):
            self.tops.forget()
            for key in [key for key in list(self._followers) if key[0] == tenant_id]:
                self.notify_followers(key, 0, "resync")

    def notify_followers(self, key: Key, version: int, kind: str = "invalidated") -> None:
        """Have every follower of a board sent its newest version, which is at least this one."""
        followers = self._followers.get(key)
        if followers is None:
            return
        if version <= self._newest.get(key, -1) and kind == "invalidated":
            return
        newest = self._newest[key] = max(version, self._newest.get(key, -1))
        for follower in list(followers):
            follower.mark_due(key, newest, kind)

    def _on_missed(self) -> None:
        self._resync = True
        self._poll_now.set()

    def _on_credential_change(self, change: Change) -> None:
        """Have the connections that it may concern checked at once; until then they are sent nothing.

        It need not end them: what was read before an outage of PostgreSQL is read again after it, and a tenant's
        creation is a change of the tenant too.
        """
        names = set(change.names)
        for follower in [each for each in list(self._connections) if each.reader.tenant_id == change.tenant_id]:
            holder = follower.holder
            own = {liveness.TENANT} if holder is None else {*holder.names(), holder.subject}
            if names & {*own, liveness.SETTINGS}:
                follower.require_check()
        self._check_now.set()

    def _poll_versions(self) -> None:
        """Read the versions in PostgreSQL, for what pub/sub lost and what changes while Redis is down."""
        while True:
            self._poll_now.wait(POLL_EVERY_S if self._listener.is_connected else POLL_WITHOUT_REDIS_EVERY_S)
            self._poll_now.clear()
            resync, self._resync = self._resync, False
            with self._lock:
                all_followed = [next(iter(who)).follows.get(key) for key, who in self._followers.items()]
            by_tenant: dict[str, list[Board | QuestTopic]] = {}
            for followed in all_followed:
                if followed is not None:
                    by_tenant.setdefault(followed.board.tenant_id, []).append(followed.board)
            for followed_there in by_tenant.values():
                self._read_versions(followed_there, "resync" if resync else "invalidated")

    def _read_versions(self, all_followed: list[Board | QuestTopic], kind: str) -> None:
        boards = [one for one in all_followed if isinstance(one, Board)]
        of_quests = [one for one in all_followed if isinstance(one, QuestTopic)]
        try:
            current: dict[Board | QuestTopic, int] = {}
            if of_quests:
                current.update(topics.versions_of(of_quests[0].tenant_id, of_quests).items())
            if boards:
                with transaction_for(boards[0]) as tx:
                    read = versions.read(tx, boards, now=utcnow())
                current |= {board: version.number for board, version in read.items()}
        except Exception as error:  # noqa: BLE001  the next poll may succeed
            log.warning("cannot read versions", action="live.versions", data={"error": type(error).__name__})
            self._resync = self._resync or kind == "resync"
            return
        for board, version in current.items():
            self.notify_followers((board.tenant_id, board.topic), version, kind)

    def _check_credentials(self) -> None:
        """End connections whose credential is no longer valid: those that a change concerns, and those that expired."""
        while True:
            self._check_now.wait(WATCH_EVERY_S)
            self._check_now.clear()
            now = time.monotonic()
            due: dict[str, list[Follower]] = {}
            for follower in list(self._connections):
                if follower.check_at < now and follower.reader.tenant_id not in self._checked_tenants:
                    due.setdefault(follower.reader.tenant_id, []).append(follower)
            # First those that are sent nothing meanwhile.
            by_urgency = sorted(due.items(), key=lambda of_tenant: not any(each.is_unchecked for each in of_tenant[1]))
            for tenant_id, followers in by_urgency[: MAX_TENANTS_CHECKED - len(self._checked_tenants)]:
                self._checked_tenants.add(tenant_id)
                check = partial(self._check_followers, tenant_id, followers)
                threading.Thread(target=check, name="hub-check-tenant", daemon=True).start()

    def _check_followers(self, tenant_id: str, followers: list[Follower]) -> None:
        now = time.monotonic()
        try:
            for follower in sorted(followers, key=lambda each: not each.is_unchecked):
                if follower in self._connections:
                    follower.check_at = now + CHECK_EVERY_S
                    if not follower.check():
                        follower.end(NO_LONGER_VALID)
        except Exception as error:  # noqa: BLE001  an outage
            for follower in followers:
                follower.check_at = now + CHECK_AGAIN_AFTER_S
            data = {"error": type(error).__name__}
            log.warning("cannot check connections", action="live.check", tenantId=tenant_id, data=data)
        finally:
            self._checked_tenants.discard(tenant_id)
            self._check_now.set()  # others may be due

    def _watch_writes(self) -> None:
        """End the connections of clients that do not read, and mark due what is to be retried."""
        while True:
            time.sleep(WATCH_EVERY_S)
            now = time.monotonic()
            for follower in list(self._connections):
                since = follower.sending_since
                if follower.is_disconnected():
                    follower.end(GOING_AWAY)
                if since is not None and now - since > STUCK_AFTER_S:
                    follower.sending_since = None
                    DROPPED.labels("does not read").inc()
                    with suppress(OSError):
                        follower.abort()
            waiting, self._retries = self._retries, []
            for at, follower, key, version in waiting:
                if at > now:
                    self._retries.append((at, follower, key, version))
                elif key in follower.follows:
                    follower.mark_due(key, version, "invalidated")


def _caller_of(follower: Follower) -> Group:
    """The group of a caller's connections: of a user or client, or of an anonymous reader's network."""
    if follower.reader.is_anonymous:
        return follower.reader.tenant_id, f"from {follower.address}"
    return follower.reader.tenant_id, f"of {follower.holder.subject if follower.holder is not None else ''}"
