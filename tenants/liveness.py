"""Whether a credential still counts: asked of Redis first, then of PostgreSQL.

A revocation is committed in PostgreSQL, and then written to Redis as a tombstone, so it counts on the next call in
every process. A good answer is kept for a few seconds only, and never over a tombstone (SET NX): a look-up that was
under way while the revocation happened cannot bring the credential back. Without Redis every look-up goes to
PostgreSQL. Only if Redis hangs during a revocation and then wakes up with old answers do those last, for GOOD_FOR_S.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import cast

from tenants.redis import RedisUnavailable, boards, key

GOOD_FOR_S = 5
# Longer than any access token lives.
REVOKED_FOR_S = 2 * 3600
_REVOKED = b"-"


def look_up(tenant_id: str, names: Sequence[str], ask: Callable[[], str | None]) -> str | None:
    """What `ask` (PostgreSQL) says of this credential, from Redis when it is known there. None: it does not count.

    `names` are all the things that must not be revoked; the first also holds the answer.
    """
    keys = [key("cred", tenant_id, name) for name in names]
    try:
        with boards().client() as redis:
            known = redis.mget(keys)
    except RedisUnavailable:
        return ask()
    if _REVOKED in known:
        return None
    if None not in known:
        return cast("bytes", known[0]).decode()
    answer = ask()
    try:
        with boards().client() as redis, redis.pipeline(transaction=False) as pipe:
            if answer is None:
                pipe.set(keys[-1], _REVOKED, ex=GOOD_FOR_S)
            else:
                for name in keys:
                    pipe.set(name, answer, ex=GOOD_FOR_S, nx=True)
            pipe.execute()
    except RedisUnavailable:
        pass
    return answer


def revoked(tenant_id: str, names: Iterable[str]) -> None:
    """Tell every process, after the revocation was committed."""
    _write(tenant_id, names, _REVOKED, REVOKED_FOR_S)


def changed(tenant_id: str, names: Iterable[str]) -> None:
    """Forget what is known of these, after a change that does not revoke them was committed."""
    keys = [key("cred", tenant_id, name) for name in names]
    try:
        with boards().client() as redis:
            if keys:
                redis.delete(*keys)
    except RedisUnavailable:
        pass


def _write(tenant_id: str, names: Iterable[str], value: bytes, seconds: int) -> None:
    try:
        with boards().client() as redis, redis.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.set(key("cred", tenant_id, name), value, ex=seconds)
            pipe.execute()
    except RedisUnavailable:
        pass
