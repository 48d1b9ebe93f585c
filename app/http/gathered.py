"""Questions that are asked together: one thread asks for everything that came while it was busy.

A round trip for sixteen questions takes hardly longer than for one; what a thread for each of them would cost is the
waiting, the waking and the taking turns.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

import structlog

MAX_TOGETHER = 64

Question = TypeVar("Question")
Answer = TypeVar("Answer")

log = structlog.get_logger()


class Gathered(Generic[Question, Answer]):
    def __init__(
        self, name: str, ask_together: Callable[[Sequence[Question]], Sequence[Answer | None]], *, max_waiting: int
    ) -> None:
        """`name`: of its thread."""
        self._name = name
        self._ask_together = ask_together
        self._max_waiting = max_waiting
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Question, Callable[[Answer | None], None]]] = deque()
        self._is_asking = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    def submit(self, question: Question, done: Callable[[Answer | None], None]) -> bool:
        """Have this answered soon. The thread calls `done`, which must be quick; None: it must be answered by itself.

        Returns False, and calls nothing, if too many wait or no thread can be started.
        """
        with self._lock:
            if len(self._waiting) >= self._max_waiting:
                return False
            self._waiting.append((question, done))
            if self._is_asking:
                return True
            try:
                self._thread.submit(self._ask)
            except RuntimeError:  # no thread can be started
                self._waiting.pop()
                return False
            self._is_asking = True
            return True

    def _ask(self) -> None:
        while True:
            with self._lock:
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_TOGETHER))]
                if not batch:
                    self._is_asking = False
                    return
            for (_, done), answer in zip(batch, self._answers([question for question, _ in batch]), strict=True):
                done(answer)

    def _answers(self, questions: Sequence[Question]) -> Sequence[Answer | None]:
        try:
            return self._ask_together(questions)
        except Exception:
            log.exception("questions could not be asked together", action="gathered.failed", data={"of": self._name})
            return [None] * len(questions)
