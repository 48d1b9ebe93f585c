"""Threads in which nothing may wait: those of an event loop, where every other request would wait too.

Whatever opens a transaction or asks Redis calls `require_may_wait` first. So on the loop a request either finds what it
needs in memory, or raises `WouldWait` before anything has happened and is answered by a thread that may wait.
"""

import threading

_loop_threads: set[int] = set()


class WouldWait(Exception):
    """What was asked for is not in memory, and this thread may not wait for it."""


def forbid_in_this_thread() -> None:
    _loop_threads.add(threading.get_ident())


def allow_in_this_thread() -> None:
    _loop_threads.discard(threading.get_ident())


def require_may_wait() -> None:
    if threading.get_ident() in _loop_threads:
        raise WouldWait
