"""Readers who read nothing: the operating system closes their connections.

The server (granian 2.8) waits for a reader without a timeout. An answer that is not read would stay in memory for as
long as the connection is open. Linux closes a connection whose peer accepts no data for a given time
(`TCP_USER_TIMEOUT`); other systems do not, and there only the bounds of `app.http.exports`
apply.
"""

import contextlib
import os
import socket
import threading
import time

MAX_STALLED_S = 30
OPEN_FILES = "/proc/self/fd"
RETRY_EVERY_S = 0.1
MAX_WAIT_S = 30.0


def set_timeout_when_listening(port: int) -> None:
    """Set the timeout as soon as this process listens on the port: connections accepted later inherit it."""
    threading.Thread(target=_wait_and_set_timeout, args=(port,), name="stalled-readers", daemon=True).start()


def set_timeout(port: int) -> bool:
    """Set the timeout on all sockets of this process on this port; return whether it listens there.

    The server neither exposes the connection of a request nor has an option for the socket that it creates.
    """
    is_listening = False
    if not hasattr(socket, "TCP_USER_TIMEOUT") or not os.path.isdir(OPEN_FILES):  # noqa: PTH112
        return is_listening
    for name in os.listdir(OPEN_FILES):  # noqa: PTH208
        with contextlib.suppress(OSError):  # not a socket, or closed meanwhile
            sock = socket.socket(fileno=int(name))
            try:
                if sock.family in {socket.AF_INET, socket.AF_INET6} and sock.getsockname()[1] == port:
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, MAX_STALLED_S * 1000)
                    is_listening |= bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
            finally:
                sock.detach()  # the socket is the server's: do not close it
    return is_listening


def _wait_and_set_timeout(port: int) -> None:
    deadline = time.monotonic() + MAX_WAIT_S
    while not set_timeout(port) and time.monotonic() < deadline:
        time.sleep(RETRY_EVERY_S)
