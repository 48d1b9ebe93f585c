"""Rate limits: in Redis for all processes together, or without Redis in this process alone."""

import hashlib
import math
import time
from dataclasses import dataclass

from limits import RateLimitItem, RateLimitItemPerMinute
from limits.storage import MemoryStorage, RedisStorage
from limits.strategies import MovingWindowRateLimiter, RateLimiter

from tenants.errors import Limited
from tenants.redis import Guarded, RedisUnavailable, boards

PREFIX = "lim"


class TooMany(Limited):
    """Over a limit; has the rate limit headers for the answer."""

    def __init__(self, detail: str, *, state: "State") -> None:
        super().__init__(detail, retry_after_s=state.resets_in_s)
        self.headers = state.headers()


@dataclass(frozen=True)
class State:
    """A caller's state under one limit (draft-ietf-httpapi-ratelimit-headers)."""

    name: str
    limit: int
    window_s: int
    remaining: int
    resets_in_s: int
    is_allowed: bool

    def headers(self) -> dict[str, str]:
        return {
            "RateLimit": f'"{self.name}";r={self.remaining};t={self.resets_in_s}',
            "RateLimit-Policy": f'"{self.name}";q={self.limit};w={self.window_s}',
        }


@dataclass
class _Limiters:
    guarded: Guarded
    shared: RateLimiter
    own: RateLimiter


_limiters: _Limiters | None = None


def per_minute(amount: int) -> RateLimitItem:
    return RateLimitItemPerMinute(amount)


def hit(name: str, item: RateLimitItem, *identifiers: str) -> State:
    """Count one attempt, and return whether it is allowed."""
    limiters = _current()
    try:
        with limiters.guarded.client():
            return _hit(limiters.shared, name, item, identifiers)
    except RedisUnavailable:
        return _hit(limiters.own, name, item, identifiers)


def require(name: str, item: RateLimitItem, *identifiers: str, detail: str) -> State:
    state = hit(name, item, *identifiers)
    if not state.is_allowed:
        raise TooMany(detail, state=state)
    return state


def _hit(limiter: RateLimiter, name: str, item: RateLimitItem, identifiers: tuple[str, ...]) -> State:
    # No name or address of a person in a key.
    caller = hashlib.blake2b("\0".join(identifiers).encode(), digest_size=16).hexdigest()
    is_allowed = limiter.hit(item, name, caller)
    window = limiter.get_window_stats(item, name, caller)
    return State(
        name=name,
        limit=item.amount,
        window_s=item.get_expiry(),
        remaining=max(0, window.remaining),
        resets_in_s=max(1, math.ceil(window.reset_time - time.time())),
        is_allowed=is_allowed,
    )


def _current() -> _Limiters:
    global _limiters  # noqa: PLW0603  one set per process, for the Redis that is configured now
    guarded = boards()
    if _limiters is None or _limiters.guarded is not guarded:
        # The address is not used: the connection pool has it.
        storage = RedisStorage("redis://", connection_pool=guarded.redis.connection_pool, key_prefix=PREFIX)
        _limiters = _Limiters(guarded, MovingWindowRateLimiter(storage), MovingWindowRateLimiter(MemoryStorage()))
    return _limiters
