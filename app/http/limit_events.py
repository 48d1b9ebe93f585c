"""Limits that were reached, as security events: one line a minute for each limit, tenant and network.

A flood of refusals must not become a flood of lines. Each line says how many there were since the one before.
"""

import threading
import time
from dataclasses import dataclass

from app.http.auth import caller_network
from tenants import logs
from tenants.errors import Limited
from tenants.security_events import SecurityEvent
from tenants.throttle import TooMany

EVERY_S = 60.0
MAX_NOTED = 10_000

Key = tuple[str, str | None, str]


@dataclass
class _Noted:
    at: float
    # Refusals since then that have no line.
    unsaid: int = 0


_noted: dict[Key, _Noted] = {}
_lock = threading.Lock()


def note(error: Limited) -> None:
    """Log that the current request's caller has reached this limit, unless a line said so lately."""
    limit = error.limit if isinstance(error, TooMany) else error.code
    count = _count((limit, logs.bound_tenant(), caller_network()), now=time.monotonic())
    if count:
        logs.audit(SecurityEvent.LIMIT_REACHED, limit=limit, refused=count)


def _count(key: Key, *, now: float) -> int:
    """How many refusals a line is due for; 0: none is due yet."""
    with _lock:
        noted = _noted.get(key)
        if noted is not None and now - noted.at < EVERY_S:
            noted.unsaid += 1
            return 0
        if noted is None and len(_noted) >= MAX_NOTED:
            _noted.clear()
        _noted[key] = _Noted(now)
        return 1 + (noted.unsaid if noted is not None else 0)
