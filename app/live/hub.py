"""The Hub: who in this process follows which boards, and what each of them has yet to be told.

An invalidation counts once for each version, so a follower keeps only the newest version of each board it follows:
one who reads slowly is told less often, and nothing queues. The Hub never writes to a connection. It leaves word with
the follower and wakes the one greenlet that writes to it, so nobody waits for anybody.

What it hears by Redis may be lost, or Redis be away. So it also looks at the versions in PostgreSQL, every few
seconds; and when it hears again after a silence, every follower is told to `resync` what it follows.
"""

import threading
import time
from collections import Counter as Counted
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import orjson
import structlog
from prometheus_client import Counter, Gauge

from analytics.boards import redis_store, versions
from analytics.boards.board_sql import transaction_for
from analytics.boards.listener import Listener
from analytics.boards.names import Board
from app.http.auth import Reader
from app.live.tops import Top, Tops
from tenants import ceilings, liveness, redis
from tenants import settings as tenant_settings
from tenants.ceilings import Ceiling, CeilingReached
from tenants.db import utcnow
from tenants.errors import Forbidden, Limited, Unavailable
from tenants.redis import RedisUnavailable
from tenants.tickets import Holder

PROTOCOL = 1
LOOK_EVERY_S = 5.0
LOOK_WITHOUT_REDIS_EVERY_S = 1.0
WATCH_EVERY_S = 0.5
# A frame that cannot be handed to the kernel in this time is for somebody who does not read.
STUCK_AFTER_S = 8.0
# How often it is asked whether somebody still counts, one after the other.
CHECK_EVERY_S = 20.0
# Soon after they came in too: what was revoked in that moment was not heard here.
CHECK_FIRST_AFTER_S = 1.0
# Rows that were read from where a change has not arrived yet are read again, ever more seldom.
REMIND_FIRST_S = 0.5
REMIND_LAST_S = 32.0
MOST_FOLLOWED = 50
# Of those who read only what is public.
MOST_FROM_AN_ADDRESS = 50

# Codes of RFC 6455's registry, and one of ours: what 401 is to HTTP.
GONE = 1001
TOO_MUCH = 1008
RESTARTING = 1012
NO_LONGER_VALID = 4401

CONNECTIONS = Gauge("plaudit_live_connections", "Open sockets and streams.", ["kind"], multiprocess_mode="livesum")
TOLD = Counter("plaudit_live_frames_total", "Messages written to sockets and streams.", ["type"])
DROPPED = Counter("plaudit_live_dropped_total", "Connections ended by us.", ["why"])

log = structlog.get_logger()
_told = cache(TOLD.labels)

# A tenant (or all of them) and a topic.
Key = tuple[str, str]
# All connections of a tenant, whoever has them.
ALL = "all"


class TooManyConnections(Limited):
    code = "too_many_connections"
    title = "This tenant has as many open connections as it may"


class Restarting(Unavailable):
    code = "restarting"
    title = "This process is going: come back in a moment"


class TooManyFollowed(Forbidden):
    code = "too_many_subscriptions"
    title = f"A connection follows at most {MOST_FOLLOWED} boards"


@dataclass(slots=True)
class Followed:
    board: Board
    top: int | None
    told: int = -1
    shown: list[dict[str, Any]] | None = None
    remind_in_s: float = REMIND_FIRST_S


@dataclass(slots=True)
class _Due:
    version: int
    kind: str


@dataclass(eq=False)
class Follower:
    """One open connection: what it follows, and what it has yet to be told. `frames` is for its one writer."""

    hub: "Hub"
    kind: str
    reader: Reader
    holder: Holder | None
    # Whether they may still be here.
    still_counts: Callable[["Follower"], bool]
    # How to end the connection under a write that does not come to its end.
    cut: Callable[[], None]
    # Whether the other side has gone, where no reader would notice.
    is_gone: Callable[[], bool]
    address: str = ""
    seq: int = 0
    wake: threading.Event = field(default_factory=threading.Event)
    follows: dict[Key, Followed] = field(default_factory=dict)
    sending_since: float | None = None
    close_code: int | None = None
    greets: bool = True
    check_at: float = field(default_factory=lambda: time.monotonic() + CHECK_FIRST_AFTER_S)
    _due: dict[Key, _Due] = field(default_factory=dict)

    def follow(self, board: Board, top: int | None = None) -> None:
        """From now on. The first frame about it says where it stands."""
        key = (board.tenant_id, board.topic)
        if key not in self.follows and len(self.follows) >= MOST_FOLLOWED:
            raise TooManyFollowed
        self.follows[key] = Followed(board, top)
        self.hub.add(key, self)
        version = self.hub.version_of(board)
        heard = self._due.get(key)
        self._due[key] = _Due(max(version, heard.version if heard is not None else 0), "subscribed")

    def unfollow(self, board: Board) -> None:
        """Nothing more of it, but that it is over."""
        key = (board.tenant_id, board.topic)
        self.follows.pop(key, None)
        self.hub.remove(key, self)
        self._due[key] = _Due(0, "unsubscribed")
        self.wake.set()

    def leave_word(self, key: Key, version: int, kind: str) -> None:
        """Something to tell, by whoever heard of it. A greeting or a resync says a newer version just as well."""
        due = self._due.get(key)
        if due is None:
            self._due[key] = _Due(version, kind)
        else:
            due.version = max(due.version, version)
            due.kind = kind if due.kind == "invalidated" else due.kind
        self.wake.set()

    def end(self, code: int) -> None:
        self.close_code = code
        self.wake.set()

    def frames(self) -> Iterable[bytes]:
        """What is due now, as JSON, each newer than what was told before."""
        due, self._due = self._due, {}
        for key, one in due.items():
            followed = self.follows.get(key)
            if one.kind == "unsubscribed":
                yield self.frame(one.kind, topic=key[1])
            if followed is None or (one.kind == "invalidated" and one.version <= followed.told):
                continue
            yield from self._about(key[1], followed, one)

    def frame(self, kind: str, **fields: Any) -> bytes:
        self.seq += 1
        _told(kind).inc()
        return orjson.dumps({"type": kind, "v": PROTOCOL, "seq": self.seq, **fields}, option=orjson.OPT_UTC_Z)

    def _about(self, topic: str, followed: Followed, due: _Due) -> Iterable[bytes]:
        board, version = followed.board, due.version
        followed.told = version
        if followed.top is None or (due.kind != "invalidated" and self.greets):
            yield self.frame(due.kind, topic=topic, version=version)
        if followed.top is None:
            return
        try:
            top = self.hub.tops.get(board, followed.top, version, external_ids=self.reader.sees_external_ids)
        except Unavailable:
            followed.told = -1
            self._try_again(followed, version)
            return
        followed.told = top.version
        if top.version >= version:
            followed.remind_in_s = REMIND_FIRST_S
        else:
            self._try_again(followed, version)
        if due.kind != "invalidated" or top.items != followed.shown or top.version >= version:
            yield from self.top_frames(followed, top)
        followed.shown = top.items

    def _try_again(self, followed: Followed, version: int) -> None:
        key = (followed.board.tenant_id, followed.board.topic)
        self.hub.remind(self, key, version, in_s=followed.remind_in_s)
        followed.remind_in_s = min(2 * followed.remind_in_s, REMIND_LAST_S)

    def top_frames(self, followed: Followed, top: Top) -> Iterable[bytes]:
        yield self.frame("top", topic=followed.board.topic, version=top.version, items=top.body)


class Hub:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._everyone: set[Follower] = set()
        self._followers: dict[Key, set[Follower]] = {}
        self._open: Counted[tuple[str, str]] = Counted()
        self._ending: int | None = None
        # The newest version of each board that somebody follows, while we hear of every change.
        self._newest: dict[Key, int] = {}
        self.tops = Tops()
        self._reminders: list[tuple[float, Follower, Key, int]] = []
        handlers = {redis_store.CHANNEL: self.on_invalidation, liveness.CHANNEL: self._revoked}
        self._listener = Listener(handlers, self._missed)
        self._look = threading.Event()
        self._resync = False
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """In the process that serves: after a fork, not before."""
        with self._lock:
            if self._threads:
                return
            work = {"hub-look": self._keep_looking, "hub-watch": self._keep_watching, "hub-check": self._keep_checking}
            self._threads = [threading.Thread(target=run, name=name, daemon=True) for name, run in work.items()]
        self._listener.start()
        for thread in self._threads:
            thread.start()

    def join(self, follower: Follower) -> None:
        self.start()
        tenant_id = follower.reader.tenant_id
        ceiling = ceilings.recent(tenant_id)[Ceiling.SOCKETS]
        limits = self._limits(follower, tenant_settings.recent(tenant_id).limits.live_connections, ceiling)
        with self._lock:
            if self._ending is not None:
                raise Restarting
            if self._open[tenant_id, ALL] >= ceiling:
                raise CeilingReached(Ceiling.SOCKETS, ceiling)
            for counted, limit in limits.items():
                if self._open[counted] >= limit:
                    raise TooManyConnections(f"At most {limit} at once", retry_after_s=5)
            self._open.update([(tenant_id, ALL), *limits])
            self._everyone.add(follower)
        CONNECTIONS.labels(follower.kind).inc()

    def leave(self, follower: Follower) -> None:
        for key in list(follower.follows):
            self.remove(key, follower)
        with self._lock:
            if follower not in self._everyone:
                return
            self._everyone.discard(follower)
            self._open.subtract([(follower.reader.tenant_id, ALL), *self._limits(follower, 0, 0)])
            self._open = +self._open
        CONNECTIONS.labels(follower.kind).dec()

    def _limits(self, follower: Follower, most: int, ceiling: int) -> dict[tuple[str, str], int]:
        """What a connection counts among, and how many there may be. Anonymous readers have places of their own."""
        tenant_id = follower.reader.tenant_id
        if not follower.reader.is_anonymous:
            return {(tenant_id, ""): most}
        most = min(most, ceiling // 2)  # so that they leave room for the tenant's own
        return {(tenant_id, "public"): most, (tenant_id, f"from {follower.address}"): min(most, MOST_FROM_AN_ADDRESS)}

    def add(self, key: Key, follower: Follower) -> None:
        with self._lock:
            self._followers.setdefault(key, set()).add(follower)

    def remove(self, key: Key, follower: Follower) -> None:
        with self._lock:
            left = self._followers.get(key)
            if left is not None:
                left.discard(follower)
                if not left:
                    del self._followers[key]
                    self._newest.pop(key, None)

    def version_of(self, board: Board) -> int:
        """The board's version now. Whoever asks follows it already, so no later change is missed."""
        key = (board.tenant_id, board.topic)
        known = self._newest.get(key)
        if known is not None and self._listener.is_connected:
            return known
        with transaction_for(board) as tx:
            number = versions.read(tx, [board], now=utcnow())[board].number
        with suppress(RedisUnavailable), redis.boards().client() as client:  # which is told before PostgreSQL commits
            number = max(number, redis_store.published_version(client, board))
        self.notify_followers(key, number)
        return self._newest.get(key, number)

    def remind(self, follower: Follower, key: Key, version: int, *, in_s: float) -> None:
        """Leave word again in a while."""
        self._reminders.append((time.monotonic() + in_s, follower, key, version))

    def end_all(self, code: int) -> None:
        """Before the process goes: every connection ends cleanly, and its client comes back elsewhere."""
        self._ending = code
        for follower in list(self._everyone):
            follower.end(code)

    # --- What is heard, and what is looked up --------------------------------------------------------------------

    def on_invalidation(self, message: dict[str, Any]) -> None:
        """A message of Redis: these boards of a tenant have new versions."""
        tenant_id: str = message["tenant"]
        for topic, version in message["versions"].items():
            self.notify_followers((tenant_id, topic), version)

    def notify_followers(self, key: Key, version: int, kind: str = "invalidated") -> None:
        """Have every follower of a board sent its newest version, which is at least this one."""
        followers = self._followers.get(key)
        if followers is None:
            return
        if version <= self._newest.get(key, -1) and kind == "invalidated":
            return
        newest = self._newest[key] = max(version, self._newest.get(key, -1))
        for follower in list(followers):
            follower.leave_word(key, newest, kind)

    def _missed(self) -> None:
        self._resync = True
        self._look.set()

    def _revoked(self, said: dict[str, Any]) -> None:
        names = set(said["names"])
        if liveness.SETTINGS in names:
            tenant_settings.forget(said["tenant"])
        for follower in [one for one in list(self._everyone) if one.reader.tenant_id == said["tenant"]]:
            if names & (follower.holder.names() if follower.holder is not None else {liveness.TENANT}):
                follower.end(NO_LONGER_VALID)
            elif liveness.SETTINGS in names or (follower.holder is not None and follower.holder.subject in names):
                follower.check_at = 0  # what they may see may have changed

    def _keep_looking(self) -> None:
        """The versions in PostgreSQL: what pub/sub lost, and what changes while Redis is away."""
        while True:
            self._look.wait(LOOK_EVERY_S if self._listener.is_connected else LOOK_WITHOUT_REDIS_EVERY_S)
            self._look.clear()
            resync, self._resync = self._resync, False
            with self._lock:
                followed = {key: next(iter(who)).follows.get(key) for key, who in self._followers.items()}
            by_tenant: dict[str, list[Board]] = {}
            for key, one in followed.items():
                if one is not None:
                    by_tenant.setdefault(key[0], []).append(one.board)
            for wanted in by_tenant.values():
                self._look_at(wanted, "resync" if resync else "invalidated")

    def _look_at(self, wanted: list[Board], kind: str) -> None:
        try:
            with transaction_for(wanted[0]) as tx:
                found = versions.read(tx, wanted, now=utcnow())
        except Exception as error:  # noqa: BLE001  the next look may find it
            log.warning("cannot look at versions", action="live.look", data={"error": type(error).__name__})
            self._resync = self._resync or kind == "resync"
            return
        for board, version in found.items():
            self.notify_followers((board.tenant_id, board.topic), version.number, kind)

    def _keep_checking(self) -> None:
        """Whether everybody still counts, one after the other: a revocation is heard of at once, or found here."""
        while True:
            time.sleep(WATCH_EVERY_S)
            now = time.monotonic()
            for follower in [one for one in list(self._everyone) if one.check_at < now]:
                follower.check_at = now + CHECK_EVERY_S
                try:
                    if not follower.still_counts(follower):
                        follower.end(NO_LONGER_VALID)
                except Exception as error:  # noqa: BLE001  an outage: they are asked about again
                    log.warning("cannot check", action="live.check", data={"error": type(error).__name__})

    def _keep_watching(self) -> None:
        """Ends the connections of those who do not read."""
        while True:
            time.sleep(WATCH_EVERY_S)
            now = time.monotonic()
            for follower in list(self._everyone):
                since = follower.sending_since
                if follower.is_gone():
                    follower.end(GONE)
                if since is not None and now - since > STUCK_AFTER_S:
                    follower.sending_since = None
                    DROPPED.labels("does not read").inc()
                    with suppress(OSError):
                        follower.cut()
            waiting, self._reminders = self._reminders, []
            for at, follower, key, version in waiting:
                if at > now:
                    self._reminders.append((at, follower, key, version))
                elif key in follower.follows:
                    follower.leave_word(key, version, "invalidated")
