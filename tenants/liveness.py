"""Whether a credential still counts: asked of Redis first, then of PostgreSQL.

A revocation is committed in PostgreSQL, and then written to Redis as a tombstone, so it counts on the next call in
every process. A good answer is kept for a few seconds only, and never over a tombstone: neither a look-up that was
under way while the revocation happened nor a change that is announced late can bring the credential back. Without Redis
every look-up goes to PostgreSQL. A tombstone is tried even when Redis seems to be away; one that could not be written
is kept and written before this process asks Redis again. So only if Redis hangs during a revocation and wakes up with
old answers can another process be told one of those, for GOOD_FOR_S at most.
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

GOOD_FOR_S = 5
# Longer than any access token lives.
REVOKED_FOR_S = 2 * 3600
MOST_UNWRITTEN = 100_000
# Where whoever keeps a connection open hears of revocations at once: {"tenant", "names"}.
CHANNEL = "cred-revoked"
# The names that stand for the tenant itself, and for what it has decided (which is changed, never revoked).
TENANT = "tenant"
SETTINGS = "settings"
_REVOKED = b"-"


def look_up(tenant_id: str, names: Sequence[str], ask: Callable[[], str | None]) -> str | None:
    """What `ask` (PostgreSQL) says of this credential, from Redis when it is known there. None: it does not count.

    `names` are all the things that must not be revoked (the tenant is another); the first also holds the answer.
    """
    keys = [key("cred", tenant_id, name) for name in (*names, TENANT)]
    try:
        with boards().client() as redis:
            _write_unwritten(redis)
            known = redis.mget(keys)
    except RedisUnavailable:
        return ask()
    if _REVOKED in known:
        return None
    if None not in known:
        return cast("bytes", known[0]).decode()
    answer = ask()
    if answer is not None:
        try:
            with boards().client() as redis, redis.pipeline(transaction=False) as pipe:
                for name in keys:
                    pipe.set(name, answer, ex=GOOD_FOR_S, nx=True)
                pipe.execute()
        except RedisUnavailable:
            pass
    return answer


def revoked(tenant_id: str, names: Iterable[str]) -> None:
    """Tell every process, after the revocation was committed."""
    names = list(names)
    if names and _write({key("cred", tenant_id, name): (_REVOKED, REVOKED_FOR_S) for name in names}):
        tell(tenant_id, names)


def tell(tenant_id: str, names: Iterable[str]) -> None:
    """Those who keep connections open: that these are to be checked again (`user:<id>`: somebody's rights changed)."""
    with contextlib.suppress(RedisError, OSError):
        boards().redis.publish(CHANNEL, orjson.dumps({"tenant": tenant_id, "names": list(names)}))


def changed(tenant_id: str, answers: Mapping[str, str]) -> None:
    """Tell every process the new answers, after a change that revokes nothing was committed.

    What was revoked since stays so.
    """
    _write({key("cred", tenant_id, name): (answer.encode(), GOOD_FOR_S) for name, answer in answers.items()})


def forget(tenant_id: str, names: Iterable[str]) -> None:
    """Have PostgreSQL asked again, tombstones or not: a tenant of this id was made anew."""
    keys = [key("cred", tenant_id, name) for name in names]
    with _lock:
        for name in keys:
            _unwritten.pop(name, None)
    with contextlib.suppress(RedisError, OSError):
        boards().redis.delete(*keys)


# An answer, unless a tombstone is there.
_CHANGE = """
    if redis.call('GET', KEYS[1]) == ARGV[1] then return 0 end
    redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3])
    return 1
"""
# What Redis has not taken yet: key → the value, and until when (monotonic) it may be written. Beyond that, answers that
# are older than a change have run out in Redis by themselves, and newer ones may be there.
_unwritten: dict[str, tuple[bytes, float]] = {}
_lock = threading.Lock()


def _write(values: dict[str, tuple[bytes, int]]) -> bool:
    now = time.monotonic()
    with _lock:
        if len(_unwritten) < MOST_UNWRITTEN:  # beyond, what is left is GOOD_FOR_S
            for name, (value, seconds) in values.items():
                if value == _REVOKED or _unwritten.get(name, (b"", 0.0))[0] != _REVOKED:
                    _unwritten[name] = (value, now + seconds)
    # Past the breaker: a revocation is worth a try, and half a second.
    try:
        _write_unwritten(boards().redis)
    except (RedisError, OSError):
        return False
    return True


def _write_unwritten(redis: "Redis") -> None:
    if not _unwritten:
        return
    with _lock:
        waiting = dict(_unwritten)
    now = time.monotonic()
    with redis.pipeline(transaction=False) as pipe:
        for name, (value, until) in waiting.items():
            seconds = ceil(until - now)
            if seconds <= 0:
                continue
            if value == _REVOKED:
                pipe.set(name, value, ex=seconds)
            else:
                pipe.eval(_CHANGE, 1, name, _REVOKED, value, seconds)
        pipe.execute()
    with _lock:
        for name, written in waiting.items():
            if _unwritten.get(name) == written:
                del _unwritten[name]
