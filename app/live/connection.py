"""One websocket: the loop that answers messages, sends what is due, and notices a client that does not read."""

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import structlog
from simple_websocket import ConnectionClosed, Server
from wsproto.events import CloseConnection, Event, Ping, TextMessage
from wsproto.utilities import LocalProtocolError

from app.live.follower import Follower
from app.live.hub import DROPPED

# Changes within this time are sent together.
PACE_S = 0.1
PING_IDLE_S = 20.0
# After a frame was sent, an early ping finds out whether the client reads.
PING_AFTER_SENDING_S = 2.0
PONG_WITHIN_S = 7.0
CLOSE_WITHIN_S = 1.0
INTERNAL_ERROR = 1011
# What a client may send: at once, and each second.
MAX_BURST_BYTES, MAX_BYTES_PER_S = 32 * 1024, 8 * 1024

log = structlog.get_logger()

Answer = Callable[[str | bytes], Iterable[bytes]]


class GuardedSocket:
    """The socket as flask-sock's library uses it: sends whole frames, one at a time, and receives at a bounded pace.

    That library sends from two greenlets without a lock, may send only a part of a frame, and receives as much as is
    sent without ever letting another greenlet run.
    """

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._lock = threading.Lock()
        self._allowance, self._at = float(MAX_BURST_BYTES), time.monotonic()

    def recv(self, size: int) -> bytes:
        now = time.monotonic()
        self._allowance = min(float(MAX_BURST_BYTES), self._allowance + (now - self._at) * MAX_BYTES_PER_S)
        self._at = now
        time.sleep(max(0.0, -self._allowance / MAX_BYTES_PER_S))  # even 0 lets the other greenlets run
        data: bytes = self._sock.recv(size)
        self._allowance -= len(data)
        return data

    def send(self, data: bytes) -> int:
        with self._lock:
            sent: int = self._sock.send(data)
            if sent < len(data):  # rare: a whole frame is nearly always sent at once, which costs less
                self._sock.sendall(data[sent:])
        return len(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


def serve(ws: Server, follower: Follower, answer: Answer) -> None:
    """Serve until either side closes. Raises nothing: the HTTP answer to an error would be sent on the socket."""
    try:
        _serve(ws, follower, answer)
    except (ConnectionClosed, LocalProtocolError):
        pass  # the client closed it
    except OSError as error:
        log.info("a socket broke off", action="live.broken", data={"error": type(error).__name__})
    except Exception:
        log.exception("a socket failed", action="live.failed")
        with suppress(OSError, LocalProtocolError, ConnectionClosed):
            ws.close(INTERNAL_ERROR)


def _serve(ws: Server, follower: Follower, answer: Answer) -> None:
    follower.wake = ws.event  # so that changes of boards and messages of the client end the same wait
    heartbeat = _Heartbeat(ws, follower)
    while True:
        ws.event.clear()
        if not ws.connected or follower.close_code is not None:
            break
        while ws.input_buffer and follower.close_code is None and not follower.is_unchecked:
            for frame in answer(ws.input_buffer.pop(0)):
                _send(ws, follower, TextMessage(frame.decode()))
        for frame in follower.frames():
            _send(ws, follower, TextMessage(frame.decode()))
            heartbeat.has_sent = True
        if not heartbeat.ping_if_due():
            DROPPED.labels("does not answer").inc()
            return
        ws.event.wait(heartbeat.wait_s())
        if (pause := heartbeat.pause_s()) > 0:
            time.sleep(pause)
    if ws.connected and follower.close_code is not None:
        _close(ws, follower, follower.close_code)


class _Heartbeat:
    """Pings an idle connection now and then, and a busy one soon after each frame."""

    def __init__(self, ws: Server, follower: Follower) -> None:
        self._ws = ws
        self._follower = follower
        self._pinged_at = self._paused_until = time.monotonic()
        self.has_sent = False

    def is_due(self) -> bool:
        return bool(self._ws.pong_received) and self.wait_s() == 0

    def ping_if_due(self) -> bool:
        """False: the last ping was not answered in time."""
        now = time.monotonic()
        if not self._ws.pong_received:
            return now - self._pinged_at < PONG_WITHIN_S
        if self.is_due():
            self._ws.pong_received, self._pinged_at, self.has_sent = False, now, False
            _send(self._ws, self._follower, Ping())
        return True

    def wait_s(self) -> float:
        """Until the next ping, or until the answer to the last one is overdue."""
        after = PING_AFTER_SENDING_S if self.has_sent else PING_IDLE_S
        if not self._ws.pong_received:
            after = PONG_WITHIN_S
        return max(0.0, self._pinged_at + after - time.monotonic())

    def pause_s(self) -> float:
        """So that frames are sent at most every PACE_S."""
        now = time.monotonic()
        pause = max(0.0, self._paused_until + PACE_S - now)
        self._paused_until = now + pause
        return pause


def _send(ws: Server, follower: Follower, event: Event) -> None:
    follower.sending_since = time.monotonic()
    try:
        ws.sock.send(ws.ws.send(event))
    finally:
        follower.sending_since = None


def _close(ws: Server, follower: Follower, code: int) -> None:
    """Send the close frame and wait for the client's: a connection closed at once could lose ours."""
    _send(ws, follower, CloseConnection(code))
    deadline = time.monotonic() + CLOSE_WITHIN_S
    while ws.connected and (left := deadline - time.monotonic()) > 0:
        ws.event.clear()
        ws.event.wait(left)
