"""One websocket: the loop that answers it, tells it what is due, and notices when nobody reads at the other end."""

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import structlog
from simple_websocket import ConnectionClosed, Server
from wsproto.events import CloseConnection, Event, Ping, TextMessage
from wsproto.utilities import LocalProtocolError

from app.live.hub import DROPPED, Follower

# Changes within this time are told together.
PACE_S = 0.1
PING_IDLE_S = 20.0
# After something was told, a ping soon finds out whether it is read.
PING_AFTER_TELLING_S = 2.0
PONG_WITHIN_S = 7.0
SAY_GOODBYE_WITHIN_S = 1.0
FAILED = 1011
# What a client may send: so much at once, and so much each second.
MOST_BYTES, BYTES_PER_S = 32 * 1024, 8 * 1024

log = structlog.get_logger()

Answer = Callable[[str | bytes], Iterable[bytes]]


class GuardedSocket:
    """The socket as flask-sock's library uses it: sends whole frames, one at a time, and receives at a bounded pace.

    That library sends from two greenlets without a lock, may send only a part of a frame, and takes in whatever comes
    without ever letting another greenlet run.
    """

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._lock = threading.Lock()
        self._may_take, self._at = float(MOST_BYTES), time.monotonic()

    def recv(self, size: int) -> bytes:
        now = time.monotonic()
        self._may_take = min(float(MOST_BYTES), self._may_take + (now - self._at) * BYTES_PER_S)
        self._at = now
        time.sleep(max(0.0, -self._may_take / BYTES_PER_S))  # at least once around: others have their turn
        data: bytes = self._sock.recv(size)
        self._may_take -= len(data)
        return data

    def send(self, data: bytes) -> int:
        with self._lock:
            sent: int = self._sock.send(data)
            if sent < len(data):  # seldom: a whole frame nearly always goes at once, which costs less
                self._sock.sendall(data[sent:])
        return len(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


def serve(ws: Server, follower: Follower, answer: Answer) -> None:
    """Until either side ends it. No error leaves this: its HTTP answer would go out on the socket."""
    try:
        _serve(ws, follower, answer)
    except (ConnectionClosed, LocalProtocolError):
        pass  # the other side ended it
    except OSError as error:
        log.info("a socket broke off", action="live.broken", data={"error": type(error).__name__})
    except Exception:
        log.exception("a socket failed", action="live.failed")
        with suppress(OSError, LocalProtocolError, ConnectionClosed):
            ws.close(FAILED)


def _serve(ws: Server, follower: Follower, answer: Answer) -> None:
    follower.wake = ws.event  # so that what is heard and what is received wake the same wait
    heart = _Heart(ws, follower)
    while True:
        ws.event.clear()
        if not ws.connected or follower.close_code is not None:
            break
        while ws.input_buffer and follower.close_code is None:
            for frame in answer(ws.input_buffer.pop(0)):
                _send(ws, follower, TextMessage(frame.decode()))
        for frame in follower.frames():
            _send(ws, follower, TextMessage(frame.decode()))
            heart.has_told = True
        if not heart.beat():
            DROPPED.labels("does not answer").inc()
            return
        ws.event.wait(heart.rests_s())
        if (pause := heart.pace_s()) > 0:
            time.sleep(pause)
    if ws.connected and follower.close_code is not None:
        _say_goodbye(ws, follower, follower.close_code)


class _Heart:
    """Pings an idle connection now and then, and a busy one soon after each telling."""

    def __init__(self, ws: Server, follower: Follower) -> None:
        self._ws = ws
        self._follower = follower
        self._pinged_at = self._told_at = time.monotonic()
        self.has_told = False

    def is_due(self) -> bool:
        return bool(self._ws.pong_received) and self.rests_s() == 0

    def beat(self) -> bool:
        """False: the last ping was never answered."""
        now = time.monotonic()
        if not self._ws.pong_received:
            return now - self._pinged_at < PONG_WITHIN_S
        if self.is_due():
            self._ws.pong_received, self._pinged_at, self.has_told = False, now, False
            _send(self._ws, self._follower, Ping())
        return True

    def rests_s(self) -> float:
        after = PING_AFTER_TELLING_S if self.has_told else PING_IDLE_S
        if not self._ws.pong_received:
            after = PONG_WITHIN_S
        return max(0.0, self._pinged_at + after - time.monotonic())

    def pace_s(self) -> float:
        now = time.monotonic()
        wait = max(0.0, self._told_at + PACE_S - now)
        self._told_at = now + wait
        return wait


def _send(ws: Server, follower: Follower, event: Event) -> None:
    follower.sending_since = time.monotonic()
    try:
        ws.sock.send(ws.ws.send(event))
    finally:
        follower.sending_since = None


def _say_goodbye(ws: Server, follower: Follower, code: int) -> None:
    """The close frame, and a moment for the other side's: ending the connection at once could outrun it."""
    _send(ws, follower, CloseConnection(code))
    deadline = time.monotonic() + SAY_GOODBYE_WITHIN_S
    while ws.connected and (left := deadline - time.monotonic()) > 0:
        ws.event.clear()
        ws.event.wait(left)
