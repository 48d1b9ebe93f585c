"""Open-loop load: requests at a fixed rate, whatever is answered, as many independent callers send them.

Each request has a keep-alive connection of its own while it is under way, so none waits for another one's answer. One
process of Python sends some thousands a second: enough where the server is the slower one.
"""

import contextlib
import multiprocessing
import selectors
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from loadtests.blast import Connection

MAX_SECONDS = 60.0
# Requests under way; more are not sent, and counted.
MAX_CONNECTIONS = 4_000
# Sent before answers are received again.
MAX_AT_ONCE = 32
# After the last request was sent.
MAX_WAIT_S = 15.0

# Called with the number of the request → its bytes.
MakeRequest = Callable[[int], bytes]


@dataclass(frozen=True)
class Outcome:
    """How the requests were answered, each measured from the moment at which it was due."""

    seconds: float
    ms_by_status: dict[int, list[float]] = field(default_factory=dict)
    unanswered: int = 0
    unsent: int = 0
    # How late requests were sent. Where that is long, the generator was too slow, and its figures are worth nothing.
    late_ms: list[float] = field(default_factory=list)

    @property
    def accepted(self) -> list[float]:
        return sorted(ms for status, times in self.ms_by_status.items() if status < 400 for ms in times)

    @property
    def refused(self) -> list[float]:
        return sorted(ms for status, times in self.ms_by_status.items() if status >= 400 for ms in times)

    @property
    def statuses(self) -> dict[int, int]:
        return {status: len(times) for status, times in sorted(self.ms_by_status.items())}


def percentile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else float("nan")


def offer(port: int, make: MakeRequest, *, per_second: float, seconds: float, settle_s: float = 0.0) -> Outcome:
    """Send to 127.0.0.1:port at this rate, from a process of its own.

    What is sent in `settle_s` before that is not measured.
    """
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    seconds = min(seconds, MAX_SECONDS - settle_s)
    child = context.Process(target=lambda: sending.send(_Sender(port, make).run(per_second, seconds, settle_s)))
    child.start()
    sending.close()
    try:
        if not receiving.poll(MAX_SECONDS + MAX_WAIT_S + 10):
            raise TimeoutError("the generator did not end")
        outcome: Outcome = receiving.recv()
    finally:
        child.terminate()
        child.join()
    return outcome


class _Sender:
    def __init__(self, port: int, make: MakeRequest) -> None:
        self._port = port
        self._make = make
        self._selector = selectors.DefaultSelector()
        self._free: list[Connection] = []
        self._open = 0
        self._under_way = 0
        self._unsent = self._unanswered = 0
        self._ms: dict[int, list[float]] = {}
        self._late_ms: list[float] = []
        self._measured_from = 0.0

    def run(self, per_second: float, seconds: float, settle_s: float) -> Outcome:
        began, total, sent = time.perf_counter(), int(per_second * (seconds + settle_s)), 0
        self._measured_from = began + settle_s
        while sent < total:
            wait_s = began + sent / per_second - time.perf_counter()
            due = min(total, sent + MAX_AT_ONCE, int((time.perf_counter() - began) * per_second) + 1)
            for number in range(sent, due):
                self._send(number, began + number / per_second)
            sent = max(sent, due)
            self._receive(max(0.0, wait_s))
        deadline = time.perf_counter() + MAX_WAIT_S
        while self._under_way and time.perf_counter() < deadline:
            self._receive(0.1)
        return Outcome(seconds, self._ms, self._unanswered + self._under_way, self._unsent, sorted(self._late_ms))

    def _send(self, number: int, due: float) -> None:
        if self._free:
            connection = self._free.pop()
        elif self._open < MAX_CONNECTIONS:
            connection = Connection(self._port, self._open)
            self._open += 1
            self._selector.register(connection.socket, selectors.EVENT_READ, connection)
        else:
            self._unsent += due >= self._measured_from
            return
        if due >= self._measured_from:
            self._late_ms.append((time.perf_counter() - due) * 1000)
        connection.sent_at = due
        self._under_way += 1
        with contextlib.suppress(OSError):  # its end is received
            connection.socket.sendall(self._make(number))

    def _receive(self, wait_s: float) -> None:
        for key, _ in self._selector.select(wait_s):
            connection: Connection = key.data
            try:
                data = connection.socket.recv(65536)
            except OSError:
                data = b""
            connection.received += data
            status = connection.take_answer() if data else None
            if status is not None:
                self._under_way -= 1
                if connection.sent_at >= self._measured_from:
                    self._ms.setdefault(status, []).append((time.perf_counter() - connection.sent_at) * 1000)
                self._free.append(connection)
            elif not data:
                self._close(connection)

    def _close(self, connection: Connection) -> None:
        """The server has closed it: while a request was under way, or idle."""
        if connection in self._free:
            self._free.remove(connection)
        else:
            self._under_way -= 1
            self._unanswered += 1
        self._selector.unregister(connection.socket)
        connection.socket.close()
        self._open -= 1
