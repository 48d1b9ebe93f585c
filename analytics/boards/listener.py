"""Hearing of boards that changed: one subscriber in each process.

Pub/sub may lose a message, and says nothing while it is not connected. So a listener tells two things: which versions
moved, and since when it hears everything; whoever keeps something by it keeps it for a moment only.
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

PING_EVERY_S = 2.0
RETRY_S = 0.5

# Channel → what to do with a message on it, decoded.
Handlers = Mapping[str, Callable[[dict[str, Any]], None]]

log = structlog.get_logger()


class Listener:
    """Hears invalidations in a thread of its own (a greenlet under gevent), from the first `start` on."""

    def __init__(self, handlers: Handlers, missed: Callable[[], None]) -> None:
        self._handlers = handlers
        self._missed = missed  # called whenever messages may have been
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self.is_hearing = False

    def start(self) -> None:
        """In the process that listens: after a fork, not before."""
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="invalidations", daemon=True)
                    self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._listen()
            except (RedisError, OSError):
                pass  # the breaker of whoever reads boards logs the outage
            except Exception:
                log.exception("the listener failed", action="invalidations.failed")
            self.is_hearing = False
            self._stop.wait(RETRY_S)

    def _listen(self) -> None:
        client = redis.boards().redis  # held as long as we listen: a client that is collected closes its connections
        pubsub = client.pubsub()  # type: ignore[no-untyped-call]
        with contextlib.closing(pubsub):
            pubsub.subscribe(*self._handlers)
            heard_at = pinged_at = time.monotonic()
            while not self._stop.is_set():
                message: dict[str, Any] | None = pubsub.get_message(timeout=0.2)
                now = time.monotonic()
                if message is not None:
                    heard_at = now
                    self._take(message)
                elif now - heard_at > 2 * PING_EVERY_S:
                    return  # it hangs: start anew
                if now - pinged_at > PING_EVERY_S:
                    pubsub.ping()
                    pinged_at = now

    def _take(self, message: dict[str, Any]) -> None:
        if message["type"] == "subscribe" and message["data"] == len(self._handlers):
            self._missed()  # whatever was said before
            self.is_hearing = True
        elif message["type"] == "message":
            self._handlers[message["channel"].decode()](orjson.loads(message["data"]))
