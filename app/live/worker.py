"""Gunicorn's worker of the live process: how it accepts connections, and how it stops.

SIGTERM drains it first: for `PLAUDIT_DRAIN_S` it is not ready, and accepts sockets and streams all the same. Then it
stops listening, and tells every client to connect again (1012), which leads to another process. SIGINT and SIGQUIT skip
the drain. Imported before gevent has patched the standard library, so it imports what it needs of ours when it runs.
"""

from functools import partial
from typing import Any

import gevent
from gevent.pool import Pool
from gevent.server import StreamServer
from gunicorn.workers.ggevent import GeventWorker

POLL_S = 0.1
# Clients are told within this time, or at once if nobody waits for a drain.
TELL_OVER_S = 2.0
# For the answers and close frames of all connections.
CLOSE_WITHIN_S = 2.5


class LiveWorker(GeventWorker):  # type: ignore[misc]  # gunicorn has no types
    _is_urgent = False

    def handle_quit(self, _number: int, _frame: Any) -> None:
        """SIGINT, SIGQUIT. (SIGTERM only ends `alive`.)"""
        self._is_urgent = True
        self.alive = False

    def run(self) -> None:
        from app.live.hub import RESTARTING
        from app.live.services import live_services_of

        (listening,) = self.sockets
        listening.setblocking(1)
        pool = Pool(self.worker_connections)
        server = StreamServer(listening, handle=partial(self.handle, listening), spawn=pool)
        server.start()
        while self.alive:
            self._wait(POLL_S)
        services = live_services_of(self.wsgi)
        if services.settings.drain_s and not self._is_urgent:
            services.draining.set()
            self._drain(listening, services.settings.drain_s)
        server.close()
        services.hub.end_all(RESTARTING, over_s=TELL_OVER_S if services.draining.is_set() else 0.0)
        with gevent.Timeout(CLOSE_WITHIN_S, False):
            pool.join()

    def _drain(self, listening: Any, drain_s: float) -> None:
        """Go on for this time, then accept those that have connected already."""
        from app.server import listening as ports

        for _ in range(round(drain_s / POLL_S)):
            if self._is_urgent:
                return
            self._wait(POLL_S)
        ports.ignore_new(listening)
        self._wait(ports.HANDSHAKE_S)
        while ports.has_waiting(listening):
            self._wait(ports.HANDSHAKE_S)

    def _wait(self, seconds: float) -> None:
        self.notify()
        gevent.sleep(seconds)
