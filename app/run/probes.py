"""Whether the local servers still answer: a small thread asks each of them again and again.

A server that hangs, or that shuts down without an end, is alive as far as the system knows. The thread asks over plain
sockets: the supervisor forks, and a fork must not inherit the locks of a library that another thread was using.
"""

import socket
import struct
import threading
import time
from dataclasses import dataclass

EVERY_S = 2.0
ANSWER_WITHIN_S = 5.0
# In a row. A server that starts, recovers or is full says so, which is an answer.
MAX_UNANSWERED = 3
# PostgreSQL answers this until it ends, which should be soon.
ENDING = b"shutting down"


@dataclass(frozen=True)
class Question:
    port: int
    text: bytes

    def is_answered(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), ANSWER_WITHIN_S) as connection:
                connection.sendall(self.text)
                answer = connection.recv(1024)
        except OSError:
            return False
        return bool(answer) and ENDING not in answer


class Probes:
    """Which of these servers did not answer, in time and several times in a row."""

    def __init__(self) -> None:
        self._questions: dict[str, Question] = {}
        self._unanswered: dict[str, int] = {}

    def add(self, name: str, question: Question) -> None:
        if not self._questions:
            threading.Thread(target=self._run, name="probes", daemon=True).start()
        self._questions[name] = question

    def is_lost(self, name: str) -> bool:
        return self._unanswered.get(name, 0) >= MAX_UNANSWERED

    def forget(self, name: str) -> None:
        """Start counting again: so does the server."""
        self._unanswered.pop(name, None)

    def _run(self) -> None:
        while True:
            time.sleep(EVERY_S)
            for name, question in list(self._questions.items()):
                if question.is_answered():
                    self.forget(name)
                else:
                    self._unanswered[name] = self._unanswered.get(name, 0) + 1


def postgres_question(login: str, database: str) -> bytes:
    """The first message of a login: PostgreSQL asks for the password, or says why it takes no connections."""
    text = struct.pack("!i", 3 << 16) + b"".join(
        part.encode() + b"\0" for part in ("user", login, "database", database, "")
    )
    return struct.pack("!i", len(text) + 4) + text
