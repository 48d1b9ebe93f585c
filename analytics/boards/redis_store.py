"""Boards in Redis: how they are written, rebuilt and announced, and whether Redis still has them.

A board is a sorted set `lb:<tenant>:<scope>:<window>:<metric>` (member → value) beside a marker `lbv:…` that holds its
version. A board without its marker does not count: Redis was emptied, and what little was written since would look
like a board and be none. So a projection writes to boards that have their marker, and only a rebuild makes one: it
fills another key, and puts it in place if nothing of it was lost. A command touches one board, and what belongs to it
carries its name as a hash tag, so all this runs on a Redis Cluster too.

Only a projection writes here, one at a time for each tenant, and only absolute values.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import orjson

from analytics.boards.changes import Changes
from analytics.boards.names import Board, Version
from analytics.metrics import Value
from tenants.redis import key

if TYPE_CHECKING:
    from redis import Redis

MEMBERS_A_COMMAND = 2_000
CHANNEL = "lb-changed"


# Each of these touches one board and its marker, at once: nobody sees half of it, and Redis cannot be emptied between.
_WRITE = """
if redis.call('EXISTS', KEYS[2]) == 0 then return 0 end
local removed, pairs = cjson.decode(ARGV[1]), cjson.decode(ARGV[2])
for first = 1, #removed, 4000 do
    redis.call('ZREM', KEYS[1], unpack(removed, first, math.min(first + 3999, #removed)))
end
for first = 1, #pairs, 4000 do
    redis.call('ZADD', KEYS[1], unpack(pairs, first, math.min(first + 3999, #pairs)))
end
redis.call('SET', KEYS[2], ARGV[3])
return 1
"""
_WRITE_USERS = """
if redis.call('EXISTS', KEYS[2]) == 0 then return 0 end
local rows = cjson.decode(ARGV[1])
for i = 1, #rows, 3 do
    local user, member, value = rows[i], rows[i + 1], rows[i + 2]
    local old = redis.call('HGET', KEYS[3], user)
    if old and old ~= member then redis.call('ZREM', KEYS[1], old) end
    if member == '' then
        redis.call('HDEL', KEYS[3], user)
    else
        redis.call('ZADD', KEYS[1], value, member)
        redis.call('HSET', KEYS[3], user, member)
    end
end
redis.call('SET', KEYS[2], ARGV[2])
return 1
"""
_FILL = """
local pairs = cjson.decode(ARGV[1])
for first = 1, #pairs, 4000 do
    redis.call('ZADD', KEYS[1], unpack(pairs, first, math.min(first + 3999, #pairs)))
end
"""
_TAKE_ITS_PLACE = """
if redis.call('ZCARD', KEYS[1]) ~= tonumber(ARGV[1]) then return 0 end
if KEYS[4] and redis.call('HLEN', KEYS[4]) ~= tonumber(ARGV[1]) then return 0 end
for i = 1, #KEYS, 3 do
    if tonumber(ARGV[1]) > 0 then redis.call('RENAME', KEYS[i], KEYS[i + 1]) else redis.call('DEL', KEYS[i + 1]) end
end
redis.call('SET', KEYS[3], ARGV[2])
return 1
"""


def write(redis: "Redis", changes: Changes, versions: Mapping[Board, Version]) -> list[Board]:
    """Write these values; the boards that have no marker, which were left alone and must be rebuilt."""
    ordered = sorted(versions, key=lambda board: board.key)
    with redis.pipeline(transaction=False) as pipe:
        _write_summaries(pipe, changes.summaries)
        for board in ordered:
            version = versions[board].dump()
            if board.is_users:
                places = changes.places.get(board, {})
                rows = [part for user, place in places.items() for part in (user, *(place or ("", 0)))]
                pipe.eval(_WRITE_USERS, 3, board.key, board.marker, board.lookup, orjson.dumps(rows), version)
                continue
            removed, values = changes.removed.get(board, []), changes.values.get(board, {})
            arguments = (orjson.dumps(removed), _pairs(values.items()), version)
            pipe.eval(_WRITE, 2, board.key, board.marker, *arguments)
        written = pipe.execute()[len(changes.summaries) :]
    return [board for board, done in zip(ordered, written, strict=True) if not done]


class Rebuild:
    """Boards filled anew: beside the old ones first, then in their place."""

    def __init__(self, redis: "Redis", boards: Iterable[Board]) -> None:
        self._redis = redis
        self._members = dict.fromkeys(boards, 0)
        with redis.pipeline(transaction=False) as pipe:
            for board in self._members:
                pipe.delete(_beside(board))
                pipe.delete(_lookup_beside(board))
            pipe.execute()

    def add(self, values: Mapping[Board, Mapping[str, Value]], summaries: Mapping[str, Mapping[str, str]]) -> None:
        """More members, none of them twice."""
        with self._redis.pipeline(transaction=False) as pipe:
            _write_summaries(pipe, summaries)
            for board, members in values.items():
                for chunk in _chunks(members.items()):
                    pipe.eval(_FILL, 1, _beside(board), _pairs(chunk))
                self._members[board] += len(members)
            pipe.execute()

    def add_places(self, places: Mapping[Board, Mapping[str, tuple[str, Value]]]) -> None:
        """More users, none of them twice."""
        with self._redis.pipeline(transaction=False) as pipe:
            for board, users in places.items():
                for chunk in _chunks(users.items()):
                    pipe.eval(_FILL, 1, _beside(board), _pairs([place for _, place in chunk]))
                    pipe.hset(_lookup_beside(board), mapping={user: member for user, (member, _) in chunk})
                self._members[board] += len(users)
            pipe.execute()

    def finish(self, versions: Mapping[Board, Version]) -> list[Board]:
        """Put them in place; the boards that were. One that lost members meanwhile (Redis was emptied) is not."""
        with self._redis.pipeline(transaction=False) as pipe:
            for board, members in self._members.items():
                keys = [_beside(board), board.key, board.marker]
                if board.is_users:
                    keys += [_lookup_beside(board), board.lookup]
                pipe.eval(_TAKE_ITS_PLACE, len(keys), *keys, members, versions[board].dump())
            placed = pipe.execute()
        return [board for board, done in zip(self._members, placed, strict=True) if done]


def publish(redis: "Redis", versions: Mapping[Board, Version]) -> None:
    """Tell every process which boards moved, one message for each tenant."""
    by_tenant: dict[str, dict[str, int]] = {}
    for board, version in versions.items():
        by_tenant.setdefault(board.tenant_id, {})[board.topic] = version.number
    for tenant_id, topics in by_tenant.items():
        redis.publish(CHANNEL, orjson.dumps({"tenant": tenant_id, "versions": topics}))


def published(redis: "Redis", board: Board) -> int:
    """The version that Redis has of it; 0 if it has none."""
    marker = redis.get(board.marker)
    return Version.load(marker).number if marker is not None else 0


def without_marker(redis: "Redis", boards: Sequence[Board]) -> list[Board]:
    with redis.pipeline(transaction=False) as pipe:
        for board in boards:
            pipe.exists(board.marker)
        return [board for board, there in zip(boards, pipe.execute(), strict=True) if not there]


def drop_others(redis: "Redis", tenant_id: str, known: Iterable[Board]) -> None:
    """Remove what looks like a board of this tenant and is none."""
    keys = {board.key for board in known}
    for found in redis.scan_iter(match=key("lb", tenant_id, "*"), count=1000):
        if found.decode() not in keys:
            redis.unlink(found)
            redis.unlink(f"lbv:{{{found.decode()}}}")
            redis.unlink(f"lbu:{{{found.decode()}}}")


def forget(redis: "Redis", tenant_id: str) -> None:
    """Remove every key of a tenant that is gone."""
    boards = key("lb", tenant_id, "*")
    for pattern in (boards, f"lbv:{{{boards}}}", f"lbu:{{{boards}}}", key("pgs", tenant_id, "*")):
        for found in redis.scan_iter(match=pattern, count=1000):
            redis.unlink(found)
    redis.unlink(ready_key(tenant_id))


def forget_everything(redis: "Redis") -> None:
    """Remove every board and summary of every tenant, as if Redis had been emptied of them."""
    for pattern in ("lbr:*", "lbv:*", "lbu:*", "lb:*", "{lb:*", "pgs:*"):
        for found in redis.scan_iter(match=pattern, count=1000):
            redis.unlink(found)


# --- Whether Redis still is the one we filled


def ready_key(tenant_id: str) -> str:
    """Which run of the server had every board of the tenant when it was last looked at."""
    return key("lbr", tenant_id)


def run_of(redis: "Redis") -> str:
    """A server that was restarted may hold boards of any age, with their markers: it is another one."""
    return str(redis.info("server")["run_id"])


class Standing(StrEnum):
    """What Redis is to a tenant."""

    READY = "ready"
    LOOK_AGAIN = "look again"  # some boards may be missing
    ANOTHER = "another"  # whatever it holds may be old


def standing(redis: "Redis", tenant_id: str) -> Standing:
    said = redis.get(ready_key(tenant_id))
    if said in {None, b"?"}:
        return Standing.LOOK_AGAIN
    return Standing.READY if said == run_of(redis).encode() else Standing.ANOTHER


def begin_looking(redis: "Redis", tenant_id: str) -> None:
    redis.set(ready_key(tenant_id), "?")


def is_ready(redis: "Redis", tenant_id: str) -> None:
    """Every board is there, unless Redis was emptied, or somebody missed one, since we began to look."""
    redis.set(ready_key(tenant_id), run_of(redis), xx=True)


def look_again(redis: "Redis", tenant_id: str) -> None:
    """Somebody found a board without its marker."""
    redis.delete(ready_key(tenant_id))


def _beside(board: Board) -> str:
    return f"{{{board.key}}}:new"


def _lookup_beside(board: Board) -> str:
    return f"{{{board.key}}}:new-lookup"


def _write_summaries(pipe: Any, summaries: Mapping[str, Mapping[str, str] | None]) -> None:
    for name, fields in summaries.items():
        if fields is None:
            pipe.delete(name)
        else:
            pipe.hset(name, mapping=dict(fields))


def _pairs(values: Iterable[tuple[str, Value]]) -> bytes:
    """As JSON, since packing each as an argument of its own would take most of the time.

    In the board's own order: in a large one neighbours are found more quickly one after the other than here and there.
    """
    ordered = sorted(values, key=itemgetter(1, 0))
    return orjson.dumps([part for member, value in ordered for part in (value, member)])


def _chunks(items: Iterable[Any]) -> Iterator[list[Any]]:
    chunk = list(items)
    for start in range(0, len(chunk), MEMBERS_A_COMMAND):
        yield chunk[start : start + MEMBERS_A_COMMAND]
