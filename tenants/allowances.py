"""Limits by the minute on what comes by the thousand: who wants more than there is gets the rest.

In Redis for all processes together, or without Redis in this process alone, as in `tenants.throttle`. What was taken is
counted by the minute, and the minute before is weighed by the part of it that is within the last sixty seconds.

`take` asks Redis each time, so it is exact. `take_one` is for calls that must cost nothing: it decides in memory, by
what Redis last answered and by what this process has taken since. Only a caller who takes much is exchanged with Redis:
once a process has taken a fortieth of the limit that Redis does not know of, a thread tells Redis, at once and then
at most every `EXCHANGE_EVERY_S`; and until that is done, the next call asks Redis itself (on an event loop it raises
`WouldWait`, so that a thread asks). So each process exceeds the limit by at most a fortieth: four by a tenth.
"""

import contextlib
import hashlib
import math
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from tenants.redis import RedisUnavailable, boards
from tenants.throttle import PREFIX, State
from tenants.waiting import require_may_wait

WINDOW_S = 60
# Of this process's own counters. The oldest makes room: Redis knows of it, but for a fortieth of its limit.
MAX_OWN_KEYS = 20_000
# Which part of a limit a process may take before it tells Redis.
UNTOLD_SHARE = 40
EXCHANGE_EVERY_S = 0.1
MAX_KEYS_PER_EXCHANGE = 500

# A hash: the minute, how many were taken in it, and in the one before. First what was taken already is added, then it
# returns how many of those wanted are allowed, these three, and how much of the minute is over.
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
taken = taken + tonumber(ARGV[3])
local elapsed = seconds - minute * 60
local amount = math.max(0, math.min(wanted, limit - taken - math.ceil(before * (1 - elapsed / 60))))
taken = taken + amount
redis.call('HSET', KEYS[1], 'minute', minute, 'taken', taken, 'before', before)
redis.call('EXPIRE', KEYS[1], 120)
return {amount, taken, before, math.floor(elapsed * 1000), minute}
"""
_GIVE_BACK = """
local taken = tonumber(redis.call('HGET', KEYS[1], 'taken'))
if taken then redis.call('HSET', KEYS[1], 'taken', math.max(0, taken - tonumber(ARGV[1]))) end
"""

log = structlog.get_logger()

# The limit's name and whom it is for.
Key = tuple[str, ...]


@dataclass(frozen=True)
class Taken:
    """How many of those wanted are allowed; the state says when the others will be."""

    amount: int
    state: State


@dataclass(slots=True)
class _Minutes:
    """How many this process knows were taken in a minute, and in the one before."""

    # When the minute began, by this process's monotonic clock.
    began: float
    # Redis's number of that minute; None: it has not answered.
    number: int | None = None
    taken: int = 0
    before: int = 0
    # How many of them Redis was not told; and how many it is being told, which it may not know yet either.
    untold: int = 0
    in_flight: int = 0

    def turn(self, now: float) -> float:
        """Begin another minute if this one is over. Returns how many seconds of it have passed."""
        passed, elapsed_s = divmod(now - self.began, WINDOW_S)
        if passed:
            self.before, self.taken = self.taken if passed == 1 else 0, 0
            self.began += passed * WINDOW_S
            if self.number is not None:
                self.number += int(passed)
        return elapsed_s

    def take(self, limit: int, wanted: int, elapsed_s: float) -> int:
        amount = max(0, min(wanted, limit - self.taken - _still_counted(self.before, elapsed_s)))
        self.taken += amount
        return amount

    def tell(self) -> int:
        """How many Redis is to be told now."""
        told, self.untold = self.untold, 0
        self.in_flight += told
        return told

    def learn(self, told: int, answer: "_Answer | None", now: float) -> None:
        """Take over what Redis has counted, if it answered; what was taken since it was told comes on top."""
        self.in_flight -= told
        if answer is None:
            return
        self.turn(now)
        taken = answer.taken + self.untold
        # Of two answers that cross, the greater one is the newer one.
        self.taken = max(self.taken, taken) if answer.number == self.number else taken
        self.number, self.before, self.began = answer.number, answer.before, now - answer.elapsed_s


@dataclass(frozen=True, slots=True)
class _Answer:
    """What Redis answered."""

    amount: int
    taken: int
    before: int
    elapsed_ms: int
    number: int

    @property
    def elapsed_s(self) -> float:
        return self.elapsed_ms / 1000


# What this process knows, by key: of `take_one`; and of `take` what was taken while Redis was away.
_own: dict[Key, _Minutes] = {}
_lock = threading.Lock()


def take(name: str, limit: int, wanted: int, *identifiers: str) -> Taken:
    """As many of these as the limit by the minute still allows."""
    key = (name, *identifiers)
    try:
        with boards().client() as client:
            raw: Any = client.eval(_TAKE, 1, _name_of(key), limit, wanted, 0)
            answer = _Answer(*raw)
            amount, taken, before, elapsed_s = answer.amount, answer.taken, answer.before, answer.elapsed_s
    except RedisUnavailable:
        amount, taken, before, elapsed_s = _take_here(key, limit, wanted, now=time.monotonic())
    return Taken(amount, _state(name, limit, wanted, amount, taken, before, elapsed_s))


def take_one(name: str, limit: int, *identifiers: str) -> State:
    """Take one, if the limit by the minute still allows it: decided in memory, unless this process has taken much."""
    key, now = (name, *identifiers), time.monotonic()
    max_untold = max(1, limit // UNTOLD_SHARE)
    with _lock:
        minutes = _minutes_of(key, now)
        elapsed_s = minutes.turn(now)
        is_little = minutes.untold + minutes.in_flight < max_untold
        is_known = is_little or _is_full(minutes, limit, elapsed_s) or boards().is_down
        if is_known:
            amount = minutes.take(limit, 1, elapsed_s)
            minutes.untold += amount
            is_due = minutes.untold >= max_untold
            state = _state(name, limit, 1, amount, minutes.taken, minutes.before, elapsed_s)
    if not is_known:
        return _ask_for_one(key, limit)
    if is_due:
        _exchange.soon(key, limit)
    return state


def give_back(name: str, amount: int, *identifiers: str) -> None:
    """What was taken and not needed; negative: what was needed besides."""
    if not amount:
        return
    key = (name, *identifiers)
    try:
        with boards().client() as client:
            client.eval(_GIVE_BACK, 1, _name_of(key), amount)
    except RedisUnavailable:
        with _lock:
            minutes = _minutes_of(key, time.monotonic())
            minutes.taken = max(0, minutes.taken - amount)


def exchange(limits: Mapping[Key, int], *, wanted: int = 0) -> Mapping[Key, int]:
    """Tell Redis what was taken here, take as many more of each as are wanted, and learn what all processes have taken.

    Returns how many more may be taken, of those about which Redis answered. If it does not answer, it is not told
    again what it may have counted already: for that minute this process counts alone.
    """
    require_may_wait()  # before anything is on its way
    with _lock:
        told = {key: (minutes, minutes.tell()) for key in limits if (minutes := _own.get(key)) is not None}
    answers: dict[Key, _Answer] = {}
    try:
        with boards().client() as client:
            pipeline = client.pipeline(transaction=False)
            for key, (_, amount) in told.items():
                pipeline.eval(_TAKE, 1, _name_of(key), limits[key], wanted, amount)
            raw: list[Any] = pipeline.execute(raise_on_error=False)
        # Of a cluster, some nodes may be away.
        answers = {key: _Answer(*one) for key, one in zip(told, raw, strict=True) if not isinstance(one, Exception)}
    finally:
        now = time.monotonic()
        with _lock:
            for key, (minutes, amount) in told.items():
                minutes.learn(amount, answers.get(key), now)
    return {key: answer.amount for key, answer in answers.items()}


def _ask_for_one(key: Key, limit: int) -> State:
    """Asked of Redis; without it taken in this process."""
    answered: Mapping[Key, int] = {}
    with contextlib.suppress(RedisUnavailable):
        answered = exchange({key: limit}, wanted=1)
    now = time.monotonic()
    with _lock:
        minutes = _minutes_of(key, now)
        elapsed_s = minutes.turn(now)
        amount = answered[key] if key in answered else minutes.take(limit, 1, elapsed_s)
        return _state(key[0], limit, 1, amount, minutes.taken, minutes.before, elapsed_s)


class _Exchange:
    """The thread that tells Redis what this process has taken, as soon as there is something to tell."""

    def __init__(self) -> None:
        self._pid = 0
        self._due: dict[Key, int] = {}
        self._is_due = threading.Event()

    def soon(self, key: Key, limit: int) -> None:
        if self._pid != os.getpid():  # nothing is started before a fork
            try:
                self._start()
            except RuntimeError:  # no thread can be started: the next call asks Redis itself
                return
        with _lock:
            if len(self._due) < MAX_OWN_KEYS:  # the next call of one that has no place asks Redis itself
                self._due[key] = limit
        self._is_due.set()

    def _start(self) -> None:
        with _lock:
            if self._pid != os.getpid():
                self._due, self._is_due = {}, threading.Event()
                threading.Thread(target=self._run, name="allowances", daemon=True).start()
                self._pid = os.getpid()  # last: if no thread can be started, the next call tries it again

    def _run(self) -> None:
        while True:
            self._is_due.wait()
            self._is_due.clear()
            try:
                with contextlib.suppress(RedisUnavailable):
                    self._tell()
            except Exception:  # the next one may succeed
                log.exception("allowances were not exchanged", action="allowances.failed")
            time.sleep(EXCHANGE_EVERY_S)

    def _tell(self) -> None:
        with _lock:
            due, self._due = self._due, {}
        keys = [*due]
        for start in range(0, len(keys), MAX_KEYS_PER_EXCHANGE):
            exchange({key: due[key] for key in keys[start : start + MAX_KEYS_PER_EXCHANGE]})


_exchange = _Exchange()


def _take_here(key: Key, limit: int, wanted: int, *, now: float) -> tuple[int, int, int, float]:
    """What the script does, for this process."""
    with _lock:
        minutes = _minutes_of(key, now)
        elapsed_s = minutes.turn(now)
        return minutes.take(limit, wanted, elapsed_s), minutes.taken, minutes.before, elapsed_s


def _minutes_of(key: Key, now: float) -> _Minutes:
    """Under the lock."""
    minutes = _own.get(key)
    if minutes is None:
        if len(_own) >= MAX_OWN_KEYS:
            del _own[next(iter(_own))]
        minutes = _own[key] = _Minutes(began=now - now % WINDOW_S)
    return minutes


def _is_full(minutes: _Minutes, limit: int, elapsed_s: float) -> bool:
    return limit <= minutes.taken + _still_counted(minutes.before, elapsed_s)


def _still_counted(before: int, elapsed_s: float) -> int:
    """How many of the minute before are within the last sixty seconds, if they were taken evenly."""
    return math.ceil(before * (1 - elapsed_s / WINDOW_S))


def _state(name: str, limit: int, wanted: int, amount: int, taken: int, before: int, elapsed_s: float) -> State:
    wait_s = _wait_s(limit, min(wanted - amount, limit), taken, before, elapsed_s)
    return State(
        name=name,
        limit=limit,
        window_s=WINDOW_S,
        remaining=max(0, limit - taken - _still_counted(before, elapsed_s)),
        resets_in_s=max(1, math.ceil(wait_s)),
        is_allowed=amount == wanted,
    )


def _wait_s(limit: int, wanted: int, taken: int, before: int, elapsed_s: float) -> float:
    """How long until so many more are allowed, if nobody takes any meanwhile."""
    room = limit - wanted  # what may be counted then
    if taken <= room:  # in this minute, of which ever less of the one before counts
        return WINDOW_S * (1 - (room - taken) / before) - elapsed_s if before else 0
    return WINDOW_S - elapsed_s + WINDOW_S * (1 - room / taken)


def _name_of(key: Key) -> str:
    """The name of a limit's key in Redis, which has no name or address of a person in it."""
    hashed = hashlib.blake2b("\0".join(key[1:]).encode(), digest_size=16).hexdigest()
    return f"{PREFIX}:taken:{key[0]}:{hashed}"
