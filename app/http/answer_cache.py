"""Answers about boards, cached in the process until the board's version changes, or for `MAX_AGE_S`."""

import hashlib
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from analytics.boards.listener import Listener
from analytics.boards.names import Board
from analytics.boards.redis_store import CHANNEL
from tenants import liveness

MAX_AGE_S = 1.0
# The version of an answer that is cached for `MAX_AGE_S` even if the board changes.
OF_ANY_VERSION = 2**62
MAX_BOARDS = 1_000
MAX_ANSWERS_PER_BOARD = 50
MAX_BYTES = 32 * 1024 * 1024
# Larger answers are rarely requested twice within `MAX_AGE_S`.
MAX_ANSWER_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete response body, and the version of the board that it shows."""

    body: bytes
    etag: str
    version: int

    @classmethod
    def of(cls, body: bytes, *, version: int) -> "Answer":
        return cls(body, f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"', version)


@dataclass(frozen=True, slots=True)
class _CachedAnswer:
    answer: Answer
    valid_until: float


class BoardAnswerCache:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cached: dict[tuple[str, str], dict[Hashable, _CachedAnswer]] = {}
        self._bytes = 0
        self._newest_versions: dict[tuple[str, str], int] = {}
        handlers = {CHANNEL: self._on_change, liveness.CHANNEL: lambda _: liveness.poll_soon()}
        self._listener = Listener(handlers, self._on_gap)

    def get(self, board: Board, question: Hashable, compute: Callable[[], Answer]) -> Answer:
        """The answer to this question about the board, cached or new."""
        self._listener.start()
        name = (board.tenant_id, board.topic)
        cached = self._cached.get(name, {}).get(question)
        if cached is not None and self._listener.is_connected and cached.valid_until > time.monotonic():
            return cached.answer
        answer = compute()
        with self._lock:
            # Do not cache an answer if the board has changed since it was read.
            if self._listener.is_connected and answer.version >= self._newest_versions.get(name, 0):
                self._store(name, question, answer)
        return answer

    def _store(self, name: tuple[str, str], question: Hashable, answer: Answer) -> None:
        size = len(answer.body)
        if size > MAX_ANSWER_BYTES:
            return
        if len(self._cached.get(name, ())) >= MAX_ANSWERS_PER_BOARD:
            self._drop(name)
        of_board = self._cached[name] = self._cached.pop(name, {})  # now the last to be evicted
        while len(self._cached) > MAX_BOARDS or self._bytes + size > MAX_BYTES:
            self._drop(next(iter(self._cached)))  # never this board: MAX_ANSWERS_PER_BOARD of the largest fit
        if question in of_board:
            self._bytes -= len(of_board[question].answer.body)
        of_board[question] = _CachedAnswer(answer, time.monotonic() + MAX_AGE_S)
        self._bytes += size

    def _drop(self, name: tuple[str, str]) -> None:
        self._bytes -= sum(len(cached.answer.body) for cached in self._cached.pop(name, {}).values())

    def _clear(self) -> None:
        self._cached.clear()
        self._bytes = 0

    def close(self) -> None:
        self._listener.stop()

    def _on_change(self, message: dict[str, Any]) -> None:
        tenant_id = message["tenant"]
        with self._lock:
            for topic, version in message["versions"].items():
                self._newest_versions[tenant_id, topic] = version
                self._drop((tenant_id, topic))
            while len(self._newest_versions) > 100 * MAX_BOARDS:
                self._newest_versions.pop(next(iter(self._newest_versions)))

    def _on_gap(self) -> None:
        """Messages may have been lost, so any cached answer may be stale."""
        with self._lock:
            self._clear()
            self._newest_versions.clear()
