"""How many files this process may have open. Without one left, not even the database is reached."""

import contextlib
import resource

MIN_CONNECTIONS = 32


def allow(wanted: int, *, reserved: int) -> int:
    """Raise the limit of this process as far as it may; returns how many of `wanted` it allows beside the reserved."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = wanted + reserved if hard == resource.RLIM_INFINITY else min(hard, wanted + reserved)
    if soft not in {resource.RLIM_INFINITY, highest} and soft < highest:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
            soft = highest
    allowed = wanted + reserved if soft == resource.RLIM_INFINITY else soft
    return max(MIN_CONNECTIONS, min(wanted, allowed - reserved))
