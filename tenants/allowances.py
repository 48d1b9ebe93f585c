"""Limits by the minute on what comes by the thousand: who wants more than there is gets the rest.

In Redis for all processes together, or without Redis in this process alone, as in `tenants.throttle`. What was taken is
counted by the minute, and the minute before is weighed by the part of it that is within the last sixty seconds.
"""

import hashlib
import math
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from tenants.redis import RedisUnavailable, boards
from tenants.throttle import PREFIX, State

WINDOW_S = 60
# Of this process's own counters.
MAX_OWN_KEYS = 10_000

# A hash: the minute, how many were taken in it, and in the one before. Returns how many are allowed, and these.
_TAKE = """
local now = redis.call('TIME')
local seconds = tonumber(now[1]) + tonumber(now[2]) / 1000000
local minute, limit, wanted = math.floor(seconds / 60), tonumber(ARGV[1]), tonumber(ARGV[2])
local kept = redis.call('HMGET', KEYS[1], 'minute', 'taken', 'before')
local last, taken, before = tonumber(kept[1]), tonumber(kept[2]) or 0, tonumber(kept[3]) or 0
if last ~= minute then
    before = last == minute - 1 and taken or 0
    taken = 0
end
local elapsed = seconds - minute * 60
local amount = math.max(0, math.min(wanted, limit - taken - math.ceil(before * (1 - elapsed / 60))))
taken = taken + amount
redis.call('HSET', KEYS[1], 'minute', minute, 'taken', taken, 'before', before)
redis.call('EXPIRE', KEYS[1], 120)
return {amount, taken, before, math.floor(elapsed * 1000)}
"""
_GIVE_BACK = """
local taken = tonumber(redis.call('HGET', KEYS[1], 'taken'))
if taken then redis.call('HSET', KEYS[1], 'taken', math.max(0, taken - tonumber(ARGV[1]))) end
"""


@dataclass(frozen=True)
class Taken:
    """How many of those wanted are allowed; the state says when the others will be."""

    amount: int
    state: State


@dataclass
class _Minutes:
    """How many were taken in a minute, and in the one before."""

    minute: int = 0
    taken: int = 0
    before: int = 0


# What was taken while Redis was away, by key.
_own: defaultdict[str, _Minutes] = defaultdict(_Minutes)
_lock = threading.Lock()


def take(name: str, limit: int, wanted: int, *identifiers: str) -> Taken:
    """As many of these as the limit by the minute still allows."""
    key = _key(name, identifiers)
    try:
        with boards().client() as client:
            answer: Any = client.eval(_TAKE, 1, key, limit, wanted)
            amount, taken, before, elapsed_ms = map(int, answer)
    except RedisUnavailable:
        amount, taken, before, elapsed_ms = _take_here(key, limit, wanted, now=time.time())
    elapsed_s = elapsed_ms / 1000
    wait_s = _wait_s(limit, min(wanted - amount, limit), taken, before, elapsed_s)
    state = State(
        name=name,
        limit=limit,
        window_s=WINDOW_S,
        remaining=max(0, limit - taken - _still_counted(before, elapsed_s)),
        resets_in_s=max(1, math.ceil(wait_s)),
        is_allowed=amount == wanted,
    )
    return Taken(amount, state)


def give_back(name: str, amount: int, *identifiers: str) -> None:
    """What was taken and not needed; negative: what was needed besides."""
    if not amount:
        return
    key = _key(name, identifiers)
    try:
        with boards().client() as client:
            client.eval(_GIVE_BACK, 1, key, amount)
    except RedisUnavailable:
        with _lock:
            minutes = _own[key]
            minutes.taken = max(0, minutes.taken - amount)


def _take_here(key: str, limit: int, wanted: int, *, now: float) -> tuple[int, int, int, int]:
    """What the script does, for this process."""
    minute, elapsed_s = divmod(now, WINDOW_S)
    with _lock:
        if len(_own) > MAX_OWN_KEYS:
            _own.clear()
        kept = _own[key]
        if kept.minute != minute:
            kept.before = kept.taken if kept.minute == minute - 1 else 0
            kept.minute, kept.taken = int(minute), 0
        amount = max(0, min(wanted, limit - kept.taken - _still_counted(kept.before, elapsed_s)))
        kept.taken += amount
        return amount, kept.taken, kept.before, int(elapsed_s * 1000)


def _still_counted(before: int, elapsed_s: float) -> int:
    """How many of the minute before are within the last sixty seconds, if they were taken evenly."""
    return math.ceil(before * (1 - elapsed_s / WINDOW_S))


def _wait_s(limit: int, wanted: int, taken: int, before: int, elapsed_s: float) -> float:
    """How long until so many more are allowed, if nobody takes any meanwhile."""
    room = limit - wanted  # what may be counted then
    if taken <= room:  # in this minute, of which ever less of the one before counts
        return WINDOW_S * (1 - (room - taken) / before) - elapsed_s if before else 0
    return WINDOW_S - elapsed_s + WINDOW_S * (1 - room / taken)


def _key(name: str, identifiers: tuple[str, ...]) -> str:
    """No name or address of a person in a key."""
    hashed = hashlib.blake2b("\0".join(identifiers).encode(), digest_size=16).hexdigest()
    return f"{PREFIX}:taken:{name}:{hashed}"
