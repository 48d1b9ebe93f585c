"""Readers who read nothing: the system closes their connections.

The server (granian 2.8) waits for a reader without any limit. An answer that nobody reads would stay in memory, and one
that is streamed would keep its thread, for as long as the connection is open. Linux ends a connection whose other side
takes nothing for a given time (`TCP_USER_TIMEOUT`); other systems do not, and there only the bounds of `app.exports`
are left.
"""

import contextlib
import os
import socket
import threading
import time

MAX_STALLED_S = 30
OPEN_FILES = "/proc/self/fd"
LOOK_EVERY_S = 0.1
LOOK_FOR_S = 30.0


def cut_off_from_the_start(port: int) -> None:
    """Do it as soon as this process listens on the port: connections that it accepts from then on inherit it."""
    threading.Thread(target=_wait_and_cut_off, args=(port,), name="cut-off-stalled", daemon=True).start()


def cut_off(port: int) -> bool:
    """Do it for this process's sockets on this port; whether it listens there.

    The server does not say which connection a request came on, nor does it let us set this on the socket it makes.
    """
    listens = False
    if not hasattr(socket, "TCP_USER_TIMEOUT") or not os.path.isdir(OPEN_FILES):  # noqa: PTH112
        return listens
    for name in os.listdir(OPEN_FILES):  # noqa: PTH208
        with contextlib.suppress(OSError):  # no socket, or closed meanwhile
            one = socket.socket(fileno=int(name))
            try:
                if one.family in {socket.AF_INET, socket.AF_INET6} and one.getsockname()[1] == port:
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, MAX_STALLED_S * 1000)
                    listens |= bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
            finally:
                one.detach()  # it is the server's, not ours to close
    return listens


def _wait_and_cut_off(port: int) -> None:
    until = time.monotonic() + LOOK_FOR_S
    while not cut_off(port) and time.monotonic() < until:
        time.sleep(LOOK_EVERY_S)
