"""Receiving what is published about changed boards: one subscriber in each process.

Pub/sub may lose a message, and delivers none while it is not connected. So a listener has two outputs: the versions
that changed, and whether it is connected. A cache that relies on it must still expire soon.

A listener also notices a Redis that was restarted, or hung, while nobody reads: the boards of no tenant are trusted
afterwards before they have caught up (`analytics.boards.caught_up`).
"""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import orjson
import structlog
from redis.exceptions import RedisError

from tenants import redis
from tenants.redis import Guarded, RedisUnavailable

PING_EVERY_S = 1.0
# A Redis that is silent so long hangs. Workers wait longer for it before they commit without it
# (`workers.run.BOARDS_TIMEOUT_S`), so trust is lost before boards are out of date.
HUNG_AFTER_S = 2.5
LOST_AFTER_S = 4.0
RETRY_S = 0.5

# Channel → handler of a decoded message.
Handlers = Mapping[str, Callable[[dict[str, Any]], None]]

log = structlog.get_logger()


class Listener:
    """Receives invalidations in a thread of its own (a greenlet under gevent), from the first `start` on."""

    def __init__(self, handlers: Handlers, missed: Callable[[], None]) -> None:
        self._handlers = handlers
        self._missed = missed  # called whenever messages may have been lost
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self.is_connected = False

    def start(self) -> None:
        """Call it in the process that listens: after a fork, not before."""
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="invalidations", daemon=True)
                    self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        boards, is_reopened = redis.boards(), False
        while not self._stop.is_set():
            try:
                self._listen(boards, is_reopened=is_reopened)
            except (RedisError, RedisUnavailable, OSError):
                pass  # the breaker of board reads logs the outage
            except Exception:
                log.exception("the listener failed", action="invalidations.failed")
            self.is_connected = False
            if not self._stop.is_set():
                boards.outage.forget()
            is_reopened = True
            self._stop.wait(RETRY_S)

    def _listen(self, boards: Guarded, *, is_reopened: bool) -> None:
        client = boards.redis  # referenced while we listen: a collected client closes its connections
        pubsub = client.pubsub()  # type: ignore[no-untyped-call]
        with contextlib.closing(pubsub):
            pubsub.subscribe(*self._handlers)
            received_at = pinged_at = time.monotonic()
            while not self._stop.is_set():
                message: dict[str, Any] | None = pubsub.get_message(timeout=0.2)
                now = time.monotonic()
                if message is not None:
                    received_at = now
                    if is_reopened and message["type"] == "subscribe":
                        boards.outage.forget()  # Redis may have been restarted while nobody listened
                    self._handle(message)
                elif now - received_at > LOST_AFTER_S:
                    return  # the connection hangs: open another
                elif now - received_at > HUNG_AFTER_S:
                    boards.outage.forget()
                if now - pinged_at > PING_EVERY_S:
                    pubsub.ping()
                    pinged_at = now

    def _handle(self, message: dict[str, Any]) -> None:
        if message["type"] == "subscribe" and message["data"] == len(self._handlers):
            self._missed()  # messages before this moment
            self.is_connected = True
        elif message["type"] == "message":
            self._handlers[message["channel"].decode()](orjson.loads(message["data"]))
