"""Whether a credential is still valid: read from Redis first, then from PostgreSQL.

A revocation is committed in PostgreSQL, and then written to Redis as a tombstone, so it is effective on the next call
in every process. A positive answer is cached for a few seconds only, and never replaces a tombstone: neither a look-up
that runs during the revocation nor a change that is announced late can make the credential valid again. Without Redis
every look-up reads PostgreSQL. A tombstone is written even while the breaker is open; one that could not be written is
kept in memory and written before this process reads from Redis again. So only if Redis hangs during a revocation and
recovers with old answers can another process read one of those, for at most ANSWER_TTL_S.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil
from typing import cast

import orjson
from redis import Redis
from redis.exceptions import RedisError

from tenants.redis import RedisUnavailable, boards, key

ANSWER_TTL_S = 5
# Longer than any access token lives.
TOMBSTONE_TTL_S = 2 * 3600
MAX_UNWRITTEN = 100_000
# Where revocations are announced to processes that keep connections open: {"tenant", "names"}.
CHANNEL = "cred-revoked"
# The names of the tenant itself, and of its settings (which are changed, never revoked).
TENANT = "tenant"
SETTINGS = "settings"
_REVOKED = b"-"


def look_up(tenant_id: str, names: Sequence[str], read: Callable[[], str | None]) -> str | None:
    """What `read` (from PostgreSQL) returns for this credential, from Redis if it is cached there. None: not valid.

    `names` are everything that must not be revoked (besides the tenant); the first one's key also has the answer.
    """
    keys = [key("cred", tenant_id, name) for name in (*names, TENANT)]
    try:
        with boards().client() as redis:
            _write_unwritten(redis)
            cached = redis.mget(keys)
    except RedisUnavailable:
        return read()
    if _REVOKED in cached:
        return None
    if None not in cached:
        return cast("bytes", cached[0]).decode()
    answer = read()
    if answer is not None:
        try:
            with boards().client() as redis, redis.pipeline(transaction=False) as pipe:
                for name in keys:
                    pipe.set(name, answer, ex=ANSWER_TTL_S, nx=True)
                pipe.execute()
        except RedisUnavailable:
            pass
    return answer


def announce_revoked(tenant_id: str, names: Iterable[str]) -> None:
    """Make a committed revocation effective in every process."""
    names = list(names)
    if names and _write({key("cred", tenant_id, name): (_REVOKED, TOMBSTONE_TTL_S) for name in names}):
        announce(tenant_id, names)


def announce(tenant_id: str, names: Iterable[str]) -> None:
    """Publish that open connections of these names must be checked again (`user:<id>`: the user's rights changed)."""
    with contextlib.suppress(RedisError, OSError):
        boards().redis.publish(CHANNEL, orjson.dumps({"tenant": tenant_id, "names": list(names)}))


def store_answers(tenant_id: str, answers: Mapping[str, str]) -> None:
    """Store new answers for every process, after a change that revokes nothing was committed.

    What has been revoked since stays revoked.
    """
    _write({key("cred", tenant_id, name): (answer.encode(), ANSWER_TTL_S) for name, answer in answers.items()})


def forget(tenant_id: str, names: Iterable[str]) -> None:
    """Delete answers and tombstones, so that PostgreSQL is read again: a tenant with this id was created again."""
    keys = [key("cred", tenant_id, name) for name in names]
    with _lock:
        for name in keys:
            _unwritten.pop(name, None)
    with contextlib.suppress(RedisError, OSError):
        boards().redis.delete(*keys)


# Set an answer unless there is a tombstone.
_CHANGE = """
    if redis.call('GET', KEYS[1]) == ARGV[1] then return 0 end
    redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3])
    return 1
"""
# What could not be written to Redis yet: key → the value, and until when (monotonic) it may be written. After that,
# answers older than the change have expired in Redis, and there may be newer ones.
_unwritten: dict[str, tuple[bytes, float]] = {}
_lock = threading.Lock()


def _write(values: dict[str, tuple[bytes, int]]) -> bool:
    now = time.monotonic()
    with _lock:
        if len(_unwritten) < MAX_UNWRITTEN:  # beyond that, old answers expire after ANSWER_TTL_S
            for name, (value, seconds) in values.items():
                if value == _REVOKED or _unwritten.get(name, (b"", 0.0))[0] != _REVOKED:
                    _unwritten[name] = (value, now + seconds)
    # Without the breaker: a revocation is worth a try of half a second.
    try:
        _write_unwritten(boards().redis)
    except (RedisError, OSError):
        return False
    return True


def _write_unwritten(redis: "Redis") -> None:
    if not _unwritten:
        return
    with _lock:
        pending = dict(_unwritten)
    now = time.monotonic()
    with redis.pipeline(transaction=False) as pipe:
        for name, (value, until) in pending.items():
            seconds = ceil(until - now)
            if seconds <= 0:
                continue
            if value == _REVOKED:
                pipe.set(name, value, ex=seconds)
            else:
                pipe.eval(_CHANGE, 1, name, _REVOKED, value, seconds)
        pipe.execute()
    with _lock:
        for name, written in pending.items():
            if _unwritten.get(name) == written:
                del _unwritten[name]
