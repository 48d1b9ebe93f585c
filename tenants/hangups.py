"""SIGHUP, which has other daemons read their settings again, and ends a process that does not expect it.

Ours read their settings at their start, and go on: `plaudit up` alone ends, as its terminal does.
"""

import signal
import threading

import structlog

log = structlog.get_logger()


def ignore() -> None:
    """In this process, from now on. To be called from its main thread."""
    # A thread logs, since the signal may interrupt the main one while it writes a line.
    signal.signal(signal.SIGHUP, lambda *_: threading.Thread(target=say, daemon=True).start())


def say() -> None:
    log.warning("SIGHUP is ignored: restart this process to change its settings", action="signal.ignored")
