"""Answers about boards, kept in the process until the board's version moves, or a moment has passed."""

import hashlib
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from analytics.boards.listener import Listener
from analytics.boards.names import Board
from analytics.boards.redis_store import CHANNEL

KEPT_S = 1.0
# For an answer that is kept for that moment whatever versions are heard of.
OF_ANY_VERSION = 2**62
MOST_BOARDS = 1_000
MOST_OF_A_BOARD = 50
MOST_BYTES = 32 * 1024 * 1024
# Larger ones are seldom asked for twice in a moment.
MOST_BYTES_OF_ONE = 256 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer, and the version of the board it is of."""

    body: bytes
    etag: str
    version: int

    @classmethod
    def of(cls, body: bytes, *, version: int) -> "Answer":
        return cls(body, f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"', version)


@dataclass(frozen=True, slots=True)
class _Kept:
    answer: Answer
    until: float


class BoardShelf:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, str], dict[Hashable, _Kept]] = {}
        self._bytes = 0
        self._newest: dict[tuple[str, str], int] = {}
        self._listener = Listener({CHANNEL: self._moved}, self._missed)

    def get(self, board: Board, what: Hashable, make: Callable[[], Answer]) -> Answer:
        """The answer to this question about the board: the one on the shelf, or a new one."""
        self._listener.start()
        name = (board.tenant_id, board.topic)
        kept = self._kept.get(name, {}).get(what)
        if kept is not None and self._listener.is_connected and kept.until > time.monotonic():
            return kept.answer
        answer = make()
        with self._lock:
            # What was read before a change that we have heard of since is not worth keeping.
            if self._listener.is_connected and answer.version >= self._newest.get(name, 0):
                self._keep(name, what, answer)
        return answer

    def _keep(self, name: tuple[str, str], what: Hashable, answer: Answer) -> None:
        size = len(answer.body)
        if size > MOST_BYTES_OF_ONE:
            return
        if len(self._kept.get(name, ())) >= MOST_OF_A_BOARD:
            self._drop(name)
        kept = self._kept[name] = self._kept.pop(name, {})  # the last to make room
        while len(self._kept) > MOST_BOARDS or self._bytes + size > MOST_BYTES:
            self._drop(next(iter(self._kept)))  # never this one: MOST_OF_A_BOARD of the largest have room
        if what in kept:
            self._bytes -= len(kept[what].answer.body)
        kept[what] = _Kept(answer, time.monotonic() + KEPT_S)
        self._bytes += size

    def _drop(self, name: tuple[str, str]) -> None:
        self._bytes -= sum(len(kept.answer.body) for kept in self._kept.pop(name, {}).values())

    def _forget(self) -> None:
        self._kept.clear()
        self._bytes = 0

    def close(self) -> None:
        self._listener.stop()

    def _moved(self, said: dict[str, Any]) -> None:
        tenant_id = said["tenant"]
        with self._lock:
            for topic, version in said["versions"].items():
                self._newest[tenant_id, topic] = version
                self._drop((tenant_id, topic))
            while len(self._newest) > 100 * MOST_BOARDS:
                self._newest.pop(next(iter(self._newest)))

    def _missed(self) -> None:
        with self._lock:
            self._forget()
            self._newest.clear()
