"""Refuses reads before they are parsed, while the loop receives more than it can answer.

A read whose answer is in memory costs the loop some 25 µs, and to refuse it after it was parsed costs as much. To look
only at its bytes costs half of that. So where too many reads arrive, the loop parses them only for a part of each of
its turns, and refuses the others unparsed. In a turn it receives everything that has arrived since the turn before,
handles it, and sends the answers; too many arrive once its turns have been too long for some time. Everything but plain
reads is parsed: it costs more than its refusal, which a door decides (`app.server.door`).

If one tenant has sent most of the requests of the turn before, only its reads are refused.
"""

import math
import time
from collections.abc import Callable

from app.http import edge
from app.server.overload import Overload, Refusals, UnderWay

# The loop receives and handles what there is within this time.
LATE_AFTER_S = 0.05
# How often a turn is measured: seldom, since the loop cannot be idle until its end.
MEASURE_EVERY_S = 0.02
# For so long the loop parses reads in a turn while it is overloaded; it needs as long again to answer them.
MAX_PARSING_S = 0.01
# As many in a turn are never refused: callers with many connections are usual.
MIN_LIMIT = 32
# What a plain read does not have, in lower case: a body, another protocol, or the end of the connection.
SPECIAL = (b"content-length", b"transfer-encoding", b"upgrade", b"close")
AUTHORIZATION = b"\nauthorization:"
FOR_OPERATORS = tuple(b"GET " + path.encode() for path in edge.FOR_OPERATORS)


class Turns:
    """How long the turns of a loop are, and what is refused meanwhile."""

    def __init__(self, tenant_of: Callable[[str], str]) -> None:
        """`tenant_of`: the tenant of a header `Authorization`, as far as that is known at once; else empty."""
        self._tenant_of = tenant_of
        self._overload = Overload()
        self._refusals = Refusals()
        self._measured_at = -MEASURE_EVERY_S
        # When the first request of the turn was received, and how many were.
        self._received_since = math.inf
        self._received = 0
        self._handled = UnderWay()
        self._flooding: str | None = None
        # Whether to ask `refuses`, and to tell `handle`.
        self.is_limited = False

    def receive(self) -> None:
        """Record that a request was received."""
        if not self._received:
            self._received_since = time.monotonic()
        self._received += 1

    def end_receiving(self) -> float | None:
        """Before the first request is handled. Returns when that was, if the turn is to be measured."""
        now = time.monotonic()
        self._received, self._received_since = 0, math.inf
        self._flooding, self._handled = self._handled.flooding, UnderWay()
        self.is_limited = self._overload.is_on(now)
        if now - self._measured_at < MEASURE_EVERY_S:
            return None
        self._measured_at = now
        return now

    def handle(self, authorization: str) -> None:
        """Record whose request is handled."""
        self._handled.add(self._tenant_of(authorization))

    def measure(self, began: float) -> None:
        """Once everything that was received was handled, the answers were sent, and the next requests were received."""
        now = time.monotonic()
        if now - began > LATE_AFTER_S:
            self._overload.see_late(now)
        else:
            self._overload.see_in_time()

    def refuses(self, data: bytes) -> bool:
        """Whether this, from a connection without a request, is a read to refuse."""
        now = time.monotonic()
        if self._received < MIN_LIMIT or now - self._received_since < MAX_PARSING_S:
            return False
        if not is_plain_read(data) or data.startswith(FOR_OPERATORS):
            return False
        if self._flooding is not None and self._tenant_of(authorization_of(data)) != self._flooding:
            return False
        self._overload.see_excess(now)
        self._refusals.note(now, under_way=self._received)
        return True


def is_plain_read(data: bytes) -> bool:
    """Whether this is one whole GET request, after which its connection stays open, and nothing else.

    No, if there is any doubt: a proxy before us must see the end of the request in the same place.
    """
    return (
        data.startswith(b"GET /")
        and data.find(b"\n\r\n") == len(data) - 3
        and b" HTTP/1.1\r\n" in data
        and b"\n\n" not in data
        and not any(map(data.lower().__contains__, SPECIAL))
    )


def authorization_of(data: bytes) -> str:
    """The header in a plain read; empty without one."""
    begin = data.lower().find(AUTHORIZATION)
    if begin < 0:
        return ""
    begin += len(AUTHORIZATION)
    return data[begin : data.index(b"\r", begin)].strip().decode("latin-1")
