"""Answers about boards, kept in the process until the board's version changes, or for `MAX_AGE_S`.

An answer is kept as bytes, under who asks and the address that was asked for, so that the fast lane can give it without
reading the question. What several callers ask for at once is computed once.

The newest version of a board that was published or answered is kept too: no answer of this process is older, wherever
it is read. Nor is it older than what the caller has (`at_least`), as their `If-None-Match` says.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from analytics.boards.kept import BoardMemory
from analytics.boards.listener import Listener
from analytics.boards.names import Board
from analytics.boards.redis_store import CHANNEL
from app.http.fast_answer import NOT_MODIFIED, FastAnswer
from tenants import liveness

MAX_AGE_S = 1.0
# The version of an answer that is kept for `MAX_AGE_S` even if the board changes.
OF_ANY_VERSION = 2**62
MAX_ANSWERS = 50_000
MAX_NAMES = 100_000
MAX_BYTES = 32 * 1024 * 1024
# What an entry takes besides the body: its key, this object, its headers.
ENTRY_BYTES = 3_000
# What every answer with an ETag has, besides it.
CONDITIONAL_HEADERS = (("Cache-Control", "private, no-cache"), ("Vary", "Authorization, Cookie, X-Plaudit-Key"))
# Larger answers are rarely requested twice within `MAX_AGE_S`.
MAX_ANSWER_BYTES = 256 * 1024
# How long a caller waits for another that computes the same; then it computes the answer itself.
WAIT_S = 0.5


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete response body, and the version of the board that it shows.

    `is_verified`: PostgreSQL had no newer version when it was computed. Otherwise it is sent to callers who have it
    too: 304 would say that nothing has changed.
    """

    body: bytes
    etag: str
    version: int
    # As the fast lane sends it: in full, and to a caller who has it.
    whole: FastAnswer
    unchanged: FastAnswer
    is_verified: bool = True

    @classmethod
    def of(cls, body: bytes, *, version: int, prefix: str = "", is_verified: bool = True) -> "Answer":
        """`prefix`: of its ETag, before the digest of the body."""
        etag = f'"{prefix}{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
        headers = (("ETag", etag), *CONDITIONAL_HEADERS)
        whole, unchanged = FastAnswer.of("200 OK", body, headers), FastAnswer.of(NOT_MODIFIED, b"", headers)
        return cls(body, etag, version, whole, unchanged, is_verified)

    @classmethod
    def of_board(cls, body: bytes, *, version: int, is_verified: bool = True) -> "Answer":
        """An answer whose ETag names the board's version: see `conditional.version_in`."""
        return cls.of(body, version=version, prefix=f"{version}-", is_verified=is_verified)


@dataclass(frozen=True, slots=True)
class _Kept:
    answer: Answer
    # What its version belongs to: (tenant, topic of a board), or (tenant, "") for what any change of the tenant ends.
    name: tuple[str, str]
    valid_until: float

    @property
    def size(self) -> int:
        return len(self.answer.body) + ENTRY_BYTES


@dataclass(slots=True)
class _Computing:
    """An answer that one caller computes and others wait for."""

    done: threading.Event = field(default_factory=threading.Event)
    answer: Answer | None = None


class BoardAnswerCache:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: dict[Hashable, _Kept] = {}
        self._bytes = 0
        self._newest_versions: dict[tuple[str, str], int] = {}
        self._computing: dict[Hashable, _Computing] = {}
        handlers = {CHANNEL: self._on_change, liveness.CHANNEL: lambda _: liveness.poll_soon()}
        self._listener = Listener(handlers, self._on_gap)
        # What answers are computed from.
        self.memory = BoardMemory(lambda: self._listener.is_connected)

    def find(self, key: Hashable) -> Answer | None:
        """The answer that is kept under this key, if it is still valid."""
        kept = self._answers.get(key)
        if kept is None or not self._listener.is_connected or kept.valid_until <= time.monotonic():
            return None
        return kept.answer if kept.answer.version >= self._newest_versions.get(kept.name, 0) else None

    def get(self, board: Board, key: Hashable, compute: Callable[[int], Answer], *, at_least: int = 0) -> Answer:
        """The answer about the board that is kept under this key, or a new one, at this version or a newer one.

        `compute` is called with the version that the answer must have at least.
        """
        name = (board.tenant_id, board.topic)
        return self._get(name, key, compute, at_least=max(at_least, self.newest(board)))

    def newest(self, board: Board) -> int:
        """The newest version of the board that this process knows of."""
        return self._newest_versions.get((board.tenant_id, board.topic), 0)

    def get_of_tenant(self, tenant_id: str, key: Hashable, compute: Callable[[], bytes]) -> Answer:
        """The same for an answer that any change of the tenant's boards ends: its version is the number of changes."""

        def answer(_: int) -> Answer:
            changes = self._newest_versions.get((tenant_id, ""), 0)
            return Answer.of(compute(), version=changes)

        return self._get((tenant_id, ""), key, answer, at_least=0)

    def drop_of_tenant(self, tenant_id: str) -> None:
        """This process has changed the tenant's pages: what `get_of_tenant` keeps of them is not used any more."""
        with self._lock:
            self._newest_versions[tenant_id, ""] = self._newest_versions.get((tenant_id, ""), 0) + 1

    def _get(self, name: tuple[str, str], key: Hashable, compute: Callable[[int], Answer], *, at_least: int) -> Answer:
        self._listener.start()
        found = self.find(key)
        if found is not None and found.version >= at_least:
            return found
        with self._lock:
            other = self._computing.get(key)
            own = None if other is not None else self._computing.setdefault(key, _Computing())
        computed = other.answer if other is not None and other.done.wait(WAIT_S) else None
        if computed is not None and computed.version >= at_least:
            return computed
        try:
            answer = compute(at_least)
            if own is not None:
                own.answer = answer
        finally:
            if own is not None:
                with self._lock:
                    del self._computing[key]
                own.done.set()
        self._keep_if_newest(name, key, answer)
        return answer

    def keep(self, board: Board, key: Hashable, answer: Answer) -> bool:
        """Keep an answer about the board that was computed elsewhere. False: a newer one is known."""
        return self._keep_if_newest((board.tenant_id, board.topic), key, answer)

    def _keep_if_newest(self, name: tuple[str, str], key: Hashable, answer: Answer) -> bool:
        with self._lock:
            newest = self._newest_versions.get(name, 0)
            if answer.version < newest:  # the board has changed since it was read
                return False
            if newest < answer.version < OF_ANY_VERSION:
                self._note(name, answer.version)
            if self._listener.is_connected:
                self._keep(key, _Kept(answer, name, time.monotonic() + MAX_AGE_S))
            return True

    def _note(self, name: tuple[str, str], version: int) -> None:
        self._newest_versions[name] = max(version, self._newest_versions.get(name, 0))
        if len(self._newest_versions) > MAX_NAMES:
            self._forget_versions()

    def _keep(self, key: Hashable, kept: _Kept) -> None:
        if len(kept.answer.body) > MAX_ANSWER_BYTES:
            return
        self._drop(key)
        self._answers[key] = kept  # the last to make room
        self._bytes += kept.size
        while len(self._answers) > MAX_ANSWERS or self._bytes > MAX_BYTES:
            self._drop(next(iter(self._answers)))

    def _drop(self, key: Hashable) -> None:
        kept = self._answers.pop(key, None)
        if kept is not None:
            self._bytes -= kept.size

    def close(self) -> None:
        self._listener.stop()

    def _on_change(self, message: dict[str, Any]) -> None:
        tenant_id = message["tenant"]
        self.memory.on_change(message)
        with self._lock:
            if message.get("resync"):  # versions may have been lost with a server
                self._forget_versions()
            self._note((tenant_id, ""), self._newest_versions.get((tenant_id, ""), 0) + 1)
            for topic, version in message["versions"].items():
                self._note((tenant_id, topic), version)

    def _on_gap(self) -> None:
        """Messages may have been lost, so any answer may be stale."""
        self.memory.clear()
        with self._lock:
            self._forget()

    def _forget_versions(self) -> None:
        self._newest_versions.clear()
        self._forget()

    def _forget(self) -> None:
        self._answers.clear()
        self._bytes = 0
