"""How many of something are open in all processes together, such as a tenant's sockets, against a limit for each group.

Each process has its own counts and writes them to Redis: a hash for each group, with a field for each process. Whoever
opens one more writes its count and reads the others' in one step, so of several who open the last one, one does. The
threads of a process write one after the other: a count must not replace a newer one. A process that is alone asks
nobody. What is closed or was refused, others read within `BEAT_S`.

A process beats from the first that it opens until it ends, since others ask only about those that they know of. It
counts while its beat is younger than `LISTED_S`: what a killed one had open is free again then. Redis may be emptied:
each process notices at its next beat, and writes its counts again. Without Redis each process counts alone. After that
it takes another id and writes all of its counts: whatever it had written before counts no more, so it need not remember
what was closed meanwhile.
"""

import contextlib
import hashlib
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import structlog

from tenants.redis import RedisUnavailable, boards
from tenants.throttle import PREFIX

if TYPE_CHECKING:
    from redis import Redis

BEAT_S = 1.0
LISTED_S = 5
# Of a group that nobody writes any more.
KEPT_S = 3600
REWRITE_EVERY_S = 1200
MAX_GROUPS_PER_BEAT = 2_000
# Besides those that are open: while a node of a cluster is away, what was closed there cannot be written.
MAX_UNWRITTEN = 10_000

# A tenant, and which of the things that it has open.
Group = tuple[str, str]

# Returns whether this process was listed, and the others that are. The second id is the one that it had before.
_BEAT = f"""
local now = tonumber(redis.call('TIME')[1])
redis.call('HDEL', KEYS[1], ARGV[2])
local listed = {{redis.call('HEXISTS', KEYS[1], ARGV[1])}}
redis.call('HSET', KEYS[1], ARGV[1], now)
local all = redis.call('HGETALL', KEYS[1])
for place = 1, #all, 2 do
    if tonumber(all[place + 1]) < now - {LISTED_S} then
        redis.call('HDEL', KEYS[1], all[place])
    elseif all[place] ~= ARGV[1] then
        table.insert(listed, all[place])
    end
end
return listed
"""
# Returns the processes and their counts, one after the other. Counts of processes that are gone are removed.
_WRITE_AND_READ = f"""
local now = tonumber(redis.call('TIME')[1])
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ':' .. now)
redis.call('EXPIRE', KEYS[1], {KEPT_S})
local counts = redis.call('HGETALL', KEYS[1])
for place = 2, #counts, 2 do
    local count, written_at = string.match(counts[place], '^(%d+):(%d+)$')
    if not count or tonumber(written_at) < now - {2 * REWRITE_EVERY_S} then
        redis.call('HDEL', KEYS[1], counts[place - 1])
    end
    counts[place] = count or 0
end
return counts
"""

log = structlog.get_logger()


class OpenCounts:
    """Of one kind of things, under its name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._writing = threading.Lock()
        self._is_beating = False
        self._own: Counter[Group] = Counter()
        self._listed_id = b""
        self._begin_again()

    def _begin_again(self) -> None:
        """Be another process for the others, alone until the next beat."""
        self._id = uuid4().hex.encode()
        # Groups whose count in Redis is not ours any more, in the order in which they changed.
        self._unwritten: dict[Group, None] = dict.fromkeys(self._own)
        self._others: frozenset[bytes] = frozenset()
        self._rewritten_at = time.monotonic()

    def open(self, limits: Mapping[Group, int]) -> Group | None:
        """Count one more in each of these groups. Returns one that is full; then it is counted in none."""
        with self._lock:
            if self._pid != os.getpid():
                self._reset()  # a fork has nothing open
            for group, limit in limits.items():
                if self._own[group] >= limit:
                    return group
            self._own.update(limits.keys())
            self._unwritten |= dict.fromkeys(limits)
            is_first, self._is_beating = not self._is_beating, True
        if is_first:
            self._begin_beating()
        with contextlib.suppress(RedisUnavailable):
            for group, limit in limits.items() if self._others else ():
                if self._of_others(group) + self._own[group] > limit:
                    self.close(limits)
                    return group
        return None

    def close(self, groups: Iterable[Group]) -> None:
        """One less in each of these groups."""
        with self._lock:
            for group in groups:
                self._own[group] -= 1
                self._unwritten[group] = None
                if self._own[group] <= 0:
                    del self._own[group]

    def count(self, group: Group) -> int:
        """How many are open in this group now; without Redis, in this process."""
        with self._lock:
            own = self._own.get(group, 0)
            if not own:
                self._unwritten[group] = None  # the next beat removes the 0 that is written to ask
        with contextlib.suppress(RedisUnavailable):
            return own + (self._of_others(group) if self._others else 0)
        return own

    def beat(self) -> None:
        """Be listed for another moment, learn who else is, and write what has changed."""
        try:
            with boards().client() as client:
                self._exchange(client)
        except Exception as error:
            with self._lock:
                self._begin_again()
            if not isinstance(error, RedisUnavailable):
                raise

    def _exchange(self, client: "Redis") -> None:
        former_id = self._listed_id if self._listed_id != self._id else b""
        answer: Any = client.eval(_BEAT, 1, f"{PREFIX}:{self._name}", self._id, former_id)
        was_listed, *others = answer
        self._listed_id, self._others = self._id, frozenset(others)
        with self._writing:
            self._write_changes(client, all_of_them=not was_listed)

    def _write_changes(self, client: "Redis", *, all_of_them: bool) -> None:
        with self._lock:
            if all_of_them or time.monotonic() - self._rewritten_at > REWRITE_EVERY_S:
                self._unwritten |= dict.fromkeys(self._own)
                self._rewritten_at = time.monotonic()
            counts = {group: self._own[group] for group in islice(self._unwritten, MAX_GROUPS_PER_BEAT)}
            for group in counts:
                del self._unwritten[group]
        pipeline = client.pipeline(transaction=False)
        for group, count in counts.items():
            if count:
                pipeline.eval(_WRITE_AND_READ, 1, self._key(group), self._id, count)
            else:
                pipeline.hdel(self._key(group), self._id)
        answers = pipeline.execute(raise_on_error=False)
        with self._lock:
            for group, answer in zip(counts, answers, strict=True):
                if isinstance(answer, Exception):
                    self._unwritten[group] = None
            if len(self._unwritten) > len(self._own) + MAX_UNWRITTEN:
                self._begin_again()

    def _of_others(self, group: Group) -> int:
        """How many the other processes have open, after this one's count was written."""
        with self._writing, boards().client() as client:
            fields: Any = client.eval(_WRITE_AND_READ, 1, self._key(group), self._id, self._own[group])
        counts = dict(zip(fields[::2], fields[1::2], strict=True))
        return sum(int(counts.get(process, 0)) for process in self._others)

    def _begin_beating(self) -> None:
        """Learn of the others, and let them know of this process."""
        threading.Thread(target=self._run, name=f"open-{self._name}", daemon=True).start()
        self.beat()

    def _run(self) -> None:
        while True:
            time.sleep(BEAT_S)
            try:
                self.beat()
            except Exception:  # the next one may succeed
                log.exception("open counts were not exchanged", action="counts.failed", data={"name": self._name})

    def _key(self, group: Group) -> str:
        """No name or address of a person in a key."""
        return f"{PREFIX}:{self._name}:{hashlib.blake2b(' '.join(group).encode(), digest_size=16).hexdigest()}"
