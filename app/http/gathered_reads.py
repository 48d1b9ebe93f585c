"""Reads that ask Redis together: one thread asks for everything that came while it was busy.

A round trip for sixteen questions takes hardly longer than for one; what a thread for each of them would cost is the
waiting, the waking and the taking turns.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import structlog

from app.http.answer_cache import Answer
from app.http.fast_calls import BoardQuestion

MAX_TOGETHER = 64

# Called with the answer by the thread that asked; None: the question must be answered by itself.
Done = Callable[[Answer | None], None]

log = structlog.get_logger()


class GatheredReads:
    def __init__(self, answer_together: Callable[[Sequence[BoardQuestion]], Sequence[Answer | None]]) -> None:
        self._answer_together = answer_together
        self._lock = threading.Lock()
        self._waiting: deque[tuple[BoardQuestion, Done]] = deque()
        self._is_asking = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gathered-reads")

    def submit(self, question: BoardQuestion, done: Done) -> None:
        """Answer this question soon, and call `done`, which must be quick."""
        with self._lock:
            self._waiting.append((question, done))
            if self._is_asking:
                return
            self._is_asking = True
            try:
                self._thread.submit(self._ask)
            except RuntimeError:  # no thread can be started
                self._waiting.pop()
                self._is_asking = False
                raise

    def _ask(self) -> None:
        while True:
            with self._lock:
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_TOGETHER))]
                if not batch:
                    self._is_asking = False
                    return
            for (_, done), answer in zip(batch, self._answers([question for question, _ in batch]), strict=True):
                done(answer)

    def _answers(self, questions: Sequence[BoardQuestion]) -> Sequence[Answer | None]:
        try:
            return self._answer_together(questions)
        except Exception:
            log.exception("boards could not be read together", action="boards.gathered")
            return [None] * len(questions)
