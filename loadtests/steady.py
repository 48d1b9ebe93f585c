"""Open-loop load: so many requests a second, however slowly they are answered. A slow server is asked as often."""

import multiprocessing
import selectors
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from types import TracebackType
from typing import Self

from loadtests.blast import Connection
from loadtests.pools import Pool

CONNECTIONS = 32
MAX_SECONDS = 120.0
# After the last request: for answers that are late.
GRACE_S = 5.0


@dataclass(frozen=True)
class Answered:
    # Of the request, in the order of sending.
    number: int
    at: float
    status: int
    body: bytes


@dataclass
class Sent:
    """What became of the requests, in the order of their answers."""

    seconds: float
    answers: list[Answered] = field(default_factory=list)

    @property
    def per_second(self) -> float:
        """Successful answers, of the time until the last one: a server that falls behind answers after the end."""
        return sum(answer.status < 400 for answer in self.answers) / self.seconds


class Steady:
    """Sends requests of a pool from a process of its own, from the start of the block; some of them `at_once`."""

    def __init__(self, port: int, pool: Pool, *, per_second: float, seconds: float, at_once: int = 1) -> None:
        self._seconds = min(seconds, MAX_SECONDS)
        context = multiprocessing.get_context("fork")
        self._results, child = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_run, args=(child, port, pool, per_second, self._seconds, at_once), daemon=True
        )

    def __enter__(self) -> Self:
        self._process.start()
        return self

    def result(self) -> Sent:
        """Wait until everything was sent."""
        if not self._results.poll(self._seconds + GRACE_S + 30):
            raise TimeoutError("the generator sent no result")
        sent: Sent = self._results.recv()
        return sent

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.join()
        self._results.close()


def _run(results: Pipe, port: int, pool: Pool, per_second: float, seconds: float, at_once: int) -> None:
    results.send(_drive(port, pool, per_second, seconds, at_once))


def _drive(port: int, pool: Pool, per_second: float, seconds: float, at_once: int) -> Sent:
    selector = selectors.DefaultSelector()
    idle = [Connection(port, number) for number in range(CONNECTIONS)]
    for connection in idle:
        selector.register(connection.socket, selectors.EVENT_READ, connection)
    sent, number, total = Sent(seconds), 0, int(per_second * seconds)
    start = time.perf_counter()
    while len(sent.answers) < total and time.perf_counter() < start + seconds + GRACE_S:
        due = min(total, at_once * (int((time.perf_counter() - start) * per_second / at_once) + 1))
        while number < due and idle:
            connection = idle.pop()
            connection.sent = number
            connection.socket.sendall(pool.render(0, 1, number))
            number += 1
        next_at = start + number / per_second
        wait_s = max(0.0, min(0.05, next_at - time.perf_counter())) if idle and number < total else 0.05
        for key, _ in selector.select(wait_s):
            connection = key.data
            data = connection.socket.recv(65_536)
            if not data:
                raise ConnectionError("the server closed a connection")
            connection.received += data
            status = connection.take_answer()
            if status is not None:
                sent.seconds = max(seconds, time.perf_counter() - start)
                sent.answers.append(Answered(connection.sent, time.perf_counter(), status, connection.body))
                idle.append(connection)
    return sent
