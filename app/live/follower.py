"""One open connection, as the Hub knows it: the boards that it follows, and the frames that it has yet to be sent."""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import orjson

from analytics.boards.names import Board
from analytics.quests.topics import QuestTopic
from app.http.auth import Reader
from app.http.boards import user_fields
from app.live.tops import Top
from tenants.db import utcnow
from tenants.errors import Forbidden, Unavailable
from tenants.metrics import Counter
from tenants.tickets import Holder

if TYPE_CHECKING:
    from app.live.hub import Hub

PROTOCOL = 1
# How soon after it joined its credential is checked: a revocation just before that was not received for it.
CHECK_FIRST_AFTER_S = 1.0
# Rows that were read before a change arrived are read again, with a growing delay.
FIRST_RETRY_S = 0.5
MAX_RETRY_S = 32.0
MAX_FOLLOWED_BOARDS = 50

FRAMES = Counter("plaudit_live_frames_total", "Messages written to sockets and streams.", ["type"])
_frames_of_kind = cache(FRAMES.labels)

# A tenant (or all of them) and a topic.
Key = tuple[str, str]


class TooManyFollowed(Forbidden):
    code = "too_many_subscriptions"
    title = f"A connection follows at most {MAX_FOLLOWED_BOARDS} boards"


@dataclass(slots=True)
class Followed:
    board: Board | QuestTopic
    top: int | None
    # The newest version in a frame: none that is sent later is older.
    sent_version: int = -1
    # The newest version that nothing is left to be sent of.
    done_version: int = -1
    sent_rows: list[dict[str, Any]] | None = None
    retry_in_s: float = FIRST_RETRY_S


@dataclass(slots=True)
class _Due:
    version: int
    kind: str


@dataclass(eq=False)
class Follower:
    """One open connection: what it follows, and what it has yet to be sent. `frames` is for its one writer."""

    hub: "Hub"
    kind: str
    reader: Reader
    holder: Holder | None
    # Whether its credential is still valid.
    is_valid: Callable[["Follower"], bool]
    # Ends the connection during a write that never finishes.
    abort: Callable[[], None]
    # Whether the client has disconnected, where no read would notice.
    is_disconnected: Callable[[], bool]
    address: str = ""
    seq: int = 0
    wake: threading.Event = field(default_factory=threading.Event)
    follows: dict[Key, Followed] = field(default_factory=dict)
    sending_since: float | None = None
    close_code: int | None = None
    # Whether a subscription or resync has a frame of its own beside the rows.
    confirms: bool = True
    check_at: float = field(default_factory=lambda: time.monotonic() + CHECK_FIRST_AFTER_S)
    # How often something changed that its credential depends on, and how many of these changes were checked.
    changes: int = 0
    checked_changes: int = 0
    _due: dict[Key, _Due] = field(default_factory=dict)

    def follow(self, board: Board | QuestTopic, top: int | None = None) -> None:
        """From now on. The first frame about the board has its current version."""
        key = (board.tenant_id, board.topic)
        if key not in self.follows and len(self.follows) >= MAX_FOLLOWED_BOARDS:
            raise TooManyFollowed
        before = self.follows.get(key)
        self.follows[key] = Followed(board, top, sent_version=before.sent_version if before is not None else -1)
        self.hub.add(key, self)
        version = self.hub.version_of(board)
        due = self._due.get(key)
        self._due[key] = _Due(max(version, due.version if due is not None else 0), "subscribed")

    def unfollow(self, board: Board | QuestTopic) -> None:
        """Send nothing more about the board, except that it is unsubscribed."""
        key = (board.tenant_id, board.topic)
        self.follows.pop(key, None)
        self.hub.remove(key, self)
        self._due[key] = _Due(0, "unsubscribed")
        self.wake.set()

    def mark_due(self, key: Key, version: int, kind: str) -> None:
        """Have a frame sent. A `subscribed` or `resync` frame that is due already gets the newer version."""
        due = self._due.get(key)
        if due is None:
            self._due[key] = _Due(version, kind)
        else:
            due.version = max(due.version, version)
            due.kind = kind if due.kind == "invalidated" else due.kind
        self.wake.set()

    @property
    def is_unchecked(self) -> bool:
        """Whether its credential may have been revoked: then it is sent nothing, and nothing of it is answered."""
        return self.changes != self.checked_changes

    def require_check(self) -> None:
        """Something has changed that its credential depends on."""
        self.changes += 1
        self.check_at = 0.0

    def check(self) -> bool:
        """Whether its credential is still valid. Then it is sent whatever is due."""
        changes = self.changes  # before the check: what changes during it needs another one
        is_valid = self.is_valid(self)
        if is_valid and self.is_unchecked:
            self.checked_changes = changes
            self.wake.set()
        return is_valid

    def end(self, code: int) -> None:
        self.close_code = code
        self.wake.set()

    def frames(self) -> Iterable[bytes]:
        """What is due now, as JSON, each newer than what was sent before."""
        if self.is_unchecked:
            return
        all_due, self._due = self._due, {}
        for key, due in all_due.items():
            followed = self.follows.get(key)
            if due.kind == "unsubscribed":
                yield self.frame(due.kind, topic=key[1])
            if followed is None or (due.kind == "invalidated" and due.version <= followed.done_version):
                continue
            yield from self._frames_about(key[1], followed, due)

    def frame(self, kind: str, **fields: Any) -> bytes:
        self.seq += 1
        _frames_of_kind(kind).inc()
        return orjson.dumps({"type": kind, "v": PROTOCOL, "seq": self.seq, **fields}, option=orjson.OPT_UTC_Z)

    def _frames_about(self, topic: str, followed: Followed, due: _Due) -> Iterable[bytes]:
        board, version = followed.board, max(due.version, followed.sent_version)
        followed.done_version = version
        if followed.top is None or (due.kind != "invalidated" and self.confirms):
            followed.sent_version = version
            yield self.frame(due.kind, topic=topic, version=version)
        if followed.top is None or isinstance(board, QuestTopic):
            return
        try:
            top = self.hub.tops.get(board, followed.top, version, user_fields(board, self.reader))
        except Unavailable:
            followed.done_version = -1
            self._retry(followed, version)
            return
        followed.done_version = top.version
        if top.version >= version:
            followed.retry_in_s = FIRST_RETRY_S
        else:
            self._retry(followed, version)
            # Older rows are right only if what was sent before was lost. Their frame has the version of before then.
            if top.version < followed.sent_version and not top.is_newest:
                return
        if due.kind != "invalidated" or top.items != followed.sent_rows or top.version >= version:
            followed.sent_version = max(top.version, followed.sent_version)
            yield from self.top_frames(followed, top)
        followed.sent_rows = top.items

    def _retry(self, followed: Followed, version: int) -> None:
        key = (followed.board.tenant_id, followed.board.topic)
        self.hub.retry_later(self, key, version, in_s=followed.retry_in_s)
        followed.retry_in_s = min(2 * followed.retry_in_s, MAX_RETRY_S)

    def top_frames(self, followed: Followed, top: Top) -> Iterable[bytes]:
        """The rows, and which positions differ from what was sent before."""
        fields = {"items": top.body, "changed_positions": top.changed_positions(followed.sent_rows)}
        version = followed.sent_version
        yield self.frame("top", topic=followed.board.topic, version=version, **fields, timestamp=utcnow())
