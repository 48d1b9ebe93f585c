"""Rate limits: in Redis for all processes together, or without Redis in this process alone."""

import hashlib
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from limits import RateLimitItem, RateLimitItemPerDay, RateLimitItemPerMinute
from limits.storage import MemoryStorage, RedisStorage
from limits.strategies import MovingWindowRateLimiter, RateLimiter, SlidingWindowCounterRateLimiter

from tenants.errors import Limited
from tenants.redis import Guarded, RedisUnavailable, boards

if TYPE_CHECKING:
    from redis import Redis

PREFIX = "lim"
# Up to here each attempt is kept with its time; larger limits are two counters, which cost the same for any amount.
MAX_KEPT_ATTEMPTS = 1_000


class TooMany(Limited):
    """Over a limit; has the rate limit headers for the answer."""

    def __init__(self, detail: str, *, state: "State") -> None:
        super().__init__(detail, retry_after_s=state.resets_in_s)
        self.limit = state.name
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


class _OnOurClient(RedisStorage):
    """The library's storage, with the client that this process has anyway."""

    def __init__(self, client: "Redis") -> None:
        self._client = client
        # The address is not used, and the library's own client opens no connection.
        super().__init__("redis://", key_prefix=PREFIX)

    def get_connection(self, readonly: bool = False) -> Any:  # noqa: ARG002  as the library calls it
        return self._client


class _Strategies:
    """How attempts are counted in one storage."""

    def __init__(self, storage: RedisStorage | MemoryStorage) -> None:
        self._exact = MovingWindowRateLimiter(storage)
        self._counters = SlidingWindowCounterRateLimiter(storage)

    def of(self, item: RateLimitItem) -> RateLimiter:
        return self._exact if item.amount <= MAX_KEPT_ATTEMPTS else self._counters


@dataclass
class _Limiters:
    guarded: Guarded
    shared: _Strategies
    own: _Strategies


_limiters: _Limiters | None = None


def per_minute(amount: int) -> RateLimitItem:
    return RateLimitItemPerMinute(amount)


def per_day(amount: int) -> RateLimitItem:
    return RateLimitItemPerDay(amount)


def hit(name: str, item: RateLimitItem, *identifiers: str) -> State:
    """Count one attempt, and return whether it is allowed."""
    return _ask(name, item, identifiers, is_attempt=True)


def look(name: str, item: RateLimitItem, *identifiers: str) -> State:
    """Whether an attempt would be allowed, without counting one."""
    return _ask(name, item, identifiers, is_attempt=False)


def require(name: str, item: RateLimitItem, *identifiers: str, detail: str) -> State:
    state = hit(name, item, *identifiers)
    if not state.is_allowed:
        raise TooMany(detail, state=state)
    return state


def _ask(name: str, item: RateLimitItem, identifiers: tuple[str, ...], *, is_attempt: bool) -> State:
    limiters = _current()
    try:
        with limiters.guarded.client():
            return _state(limiters.shared, name, item, identifiers, is_attempt=is_attempt)
    except RedisUnavailable:
        return _state(limiters.own, name, item, identifiers, is_attempt=is_attempt)


def _state(
    strategies: _Strategies, name: str, item: RateLimitItem, identifiers: tuple[str, ...], *, is_attempt: bool
) -> State:
    # No name or address of a person in a key.
    caller = hashlib.blake2b("\0".join(identifiers).encode(), digest_size=16).hexdigest()
    limiter = strategies.of(item)
    is_allowed = limiter.hit(item, name, caller) if is_attempt else True
    window = limiter.get_window_stats(item, name, caller)
    if not is_attempt:
        is_allowed = window.remaining > 0
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
        _limiters = _Limiters(guarded, _Strategies(_OnOurClient(guarded.redis)), _Strategies(MemoryStorage()))
    return _limiters
