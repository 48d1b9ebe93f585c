"""Boards in Redis: writing, rebuilding and announcing them, and whether Redis still has them.

A board is a sorted set `lb:<tenant>:<scope>:<window>:<metric>` (member → value) beside a marker `lbv:…` that has its
version. A board without its marker is not valid: Redis was emptied, and whatever was written since would look like a
board of a few rows. So a projection writes only to boards that have their marker, and only a rebuild sets one: it fills
another key, and renames it into place if nothing of it was lost. A command touches one board, and everything that
belongs to a board carries its key as a hash tag, so that on a Redis Cluster it is on one node. A tenant's boards are
on all nodes.

Only the holder of the tenant's board lock writes values here (a projection, a rebuild), and only absolute ones. The
removal of a deleted tenant needs no lock (`remove`).
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import orjson
import structlog

from analytics.boards.board_writes import BoardWrites
from analytics.boards.names import Board, Version
from analytics.metrics import Value
from tenants.redis import key, on_every_server

if TYPE_CHECKING:
    from redis import Redis

MAX_MEMBERS_PER_COMMAND = 2_000
# Where changed boards are published.
CHANNEL = "lb-changed"

log = structlog.get_logger()


# Each script touches one board and its marker atomically: nobody sees half of it, and Redis cannot be emptied between.
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
_REMOVE = """
local number = string.match(redis.call('GET', KEYS[2]) or '', '^%d+')
if not number then return 1 end
if tonumber(number) >= tonumber(ARGV[2]) then return 0 end
local removed = cjson.decode(ARGV[1])
for first = 1, #removed, 4000 do
    redis.call('ZREM', KEYS[1], unpack(removed, first, math.min(first + 3999, #removed)))
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
_RENAME_INTO_PLACE = """
if redis.call('ZCARD', KEYS[1]) ~= tonumber(ARGV[1]) then return 0 end
if KEYS[4] and redis.call('HLEN', KEYS[4]) ~= tonumber(ARGV[1]) then return 0 end
for i = 1, #KEYS, 3 do
    if tonumber(ARGV[1]) > 0 then redis.call('RENAME', KEYS[i], KEYS[i + 1]) else redis.call('DEL', KEYS[i + 1]) end
end
redis.call('SET', KEYS[3], ARGV[2])
return 1
"""
_DELETE_OLDER = """
local number = string.match(redis.call('GET', KEYS[2]) or '', '^%d+')
if not number or tonumber(number) >= tonumber(ARGV[1]) then return 0 end
redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3])
return 1
"""

_MARK_INCOMPLETE = """
local ready = redis.call('GET', KEYS[1])
if ready and string.sub(ready, 1, 1) ~= '?' then redis.call('SET', KEYS[1], '?' .. string.gsub(ready, '^!', '')) end
"""
_FINISH_REBUILDING = """
local ready = redis.call('GET', KEYS[1])
if ready == ARGV[1] then redis.call('SET', KEYS[1], ARGV[2]) end
if ready == '?' .. string.sub(ARGV[1], 2) then redis.call('SET', KEYS[1], '?' .. ARGV[2]) end
"""


def write(redis: "Redis", writes: BoardWrites, versions: Mapping[Board, Version]) -> list[Board]:
    """Write to these boards; returns those without a marker, which were left alone and need a rebuild."""
    ordered = sorted(versions, key=lambda board: board.key)
    with redis.pipeline(transaction=False) as pipe:
        _write_summaries(pipe, writes.summaries)
        for board in ordered:
            version = versions[board].dump()
            if board.is_users:
                entries = writes.users.get(board, {})
                rows = [part for user, entry in entries.items() for part in (user, *(entry or ("", 0)))]
                pipe.eval(_WRITE_USERS, 3, board.key, board.marker, board.lookup, orjson.dumps(rows), version)
                continue
            removed, values = writes.removed.get(board, []), writes.values.get(board, {})
            arguments = (orjson.dumps(removed), _pairs(values.items()), version)
            pipe.eval(_WRITE, 2, board.key, board.marker, *arguments)
        written = pipe.execute()[len(writes.summaries) :]
    return [board for board, done in zip(ordered, written, strict=True) if not done]


def remove(redis: "Redis", members: Collection[str], versions: Mapping[Board, Version]) -> list[Board]:
    """Remove pages from boards; returns the boards whose version is not older, which were left alone.

    Needs no lock, unlike what writes values. A board without a marker is filled from what is saved.
    """
    removed = orjson.dumps([*members])
    with redis.pipeline(transaction=False) as pipe:
        for board, version in versions.items():
            pipe.eval(_REMOVE, 2, board.key, board.marker, removed, version.number, version.dump())
        return [board for board, done in zip(versions, pipe.execute(), strict=True) if not done]


class Rebuild:
    """Boards filled again: under keys of their own first, which then replace the old ones."""

    def __init__(self, redis: "Redis", boards: Iterable[Board]) -> None:
        self._redis = redis
        self._members = dict.fromkeys(boards, 0)
        with redis.pipeline(transaction=False) as pipe:
            for board in self._members:
                pipe.delete(_new_key(board))
                pipe.delete(_new_lookup(board))
            pipe.execute()

    def add_pages(
        self, values: Mapping[Board, Mapping[str, Value]], summaries: Mapping[str, Mapping[str, str]]
    ) -> None:
        """Add pages, none of them twice."""
        with self._redis.pipeline(transaction=False) as pipe:
            _write_summaries(pipe, summaries)
            for board, members in values.items():
                for chunk in _chunks(members.items()):
                    pipe.eval(_FILL, 1, _new_key(board), _pairs(chunk))
                self._members[board] += len(members)
            pipe.execute()

    def add_users(self, entries: Mapping[Board, Mapping[str, tuple[str, Value]]]) -> None:
        """Add users, none of them twice."""
        with self._redis.pipeline(transaction=False) as pipe:
            for board, users in entries.items():
                for chunk in _chunks(users.items()):
                    pipe.eval(_FILL, 1, _new_key(board), _pairs([entry for _, entry in chunk]))
                    pipe.hset(_new_lookup(board), mapping={user: member for user, (member, _) in chunk})
                self._members[board] += len(users)
            pipe.execute()

    def finish(self, versions: Mapping[Board, Version]) -> list[Board]:
        """Replace the old boards; returns those replaced. One that lost members (Redis was emptied) is not."""
        with self._redis.pipeline(transaction=False) as pipe:
            for board, members in self._members.items():
                keys = [_new_key(board), board.key, board.marker]
                if board.is_users:
                    keys += [_new_lookup(board), board.lookup]
                pipe.eval(_RENAME_INTO_PLACE, len(keys), *keys, members, versions[board].dump())
            replaced = pipe.execute()
        return [board for board, done in zip(self._members, replaced, strict=True) if done]


def publish(redis: "Redis", versions: Mapping[Board, Version], summaries: Iterable[str] = ()) -> None:
    """Publish to every process these versions, and whose summaries changed: one message for each tenant."""
    by_tenant: dict[str, tuple[dict[str, int], list[str]]] = {}
    for board, version in versions.items():
        by_tenant.setdefault(board.tenant_id, ({}, []))[0][board.topic] = version.number
    for name in summaries:
        _, tenant_id, page_id = name.split(":")
        by_tenant.setdefault(tenant_id, ({}, []))[1].append(page_id)
    for tenant_id, (topics, page_ids) in by_tenant.items():
        message = {"tenant": tenant_id, "versions": topics, **({"summaries": page_ids} if page_ids else {})}
        redis.publish(CHANNEL, orjson.dumps(message))


def publish_resync(redis: "Redis", tenant_id: str) -> None:
    """Have every process read again whatever it has of this tenant: it may be of commits that were lost."""
    redis.publish(CHANNEL, orjson.dumps({"tenant": tenant_id, "versions": {}, "resync": True}))


def published_version(redis: "Redis", board: Board) -> int:
    """The version that Redis has of a board; 0: none."""
    marker = redis.get(board.marker)
    return Version.load(marker).number if marker is not None else 0


def without_marker(redis: "Redis", boards: Sequence[Board]) -> list[Board]:
    with redis.pipeline(transaction=False) as pipe:
        for board in boards:
            pipe.exists(board.marker)
        return [board for board, there in zip(boards, pipe.execute(), strict=True) if not there]


def invalidate(redis: "Redis", boards: Sequence[Board]) -> None:
    """Have these boards be missing, until they are rebuilt. On a cluster: where a node can be reached."""
    with redis.pipeline(transaction=False) as pipe:
        for tenant_id in {board.tenant_id for board in boards}:
            mark_incomplete(pipe, tenant_id)
        for board in boards:
            pipe.unlink(board.marker)
        pipe.execute()


def delete_others(redis: "Redis", tenant_id: str, known: Iterable[Board]) -> None:
    """Remove the keys of boards that this tenant does not have."""
    keys = {board.key for board in known}
    for found in redis.scan_iter(match=key("lb", tenant_id, "*"), count=1000):
        if found.decode() not in keys:
            redis.unlink(found)
            redis.unlink(f"lbv:{{{found.decode()}}}")
            redis.unlink(f"lbu:{{{found.decode()}}}")


def delete_tenant(redis: "Redis", tenant_id: str) -> int:
    """Remove every key of a tenant that was deleted; how many there were. Nobody writes them any more."""
    boards, deleted = key("lb", tenant_id, "*"), 0
    for pattern in (boards, f"lbv:{{{boards}}}", f"lbu:{{{boards}}}", key("pgs", tenant_id, "*")):
        found = redis.scan_iter(match=pattern, count=10_000)
        while keys := list(islice(found, MAX_MEMBERS_PER_COMMAND)):
            unlink(redis, keys)
            deleted += len(keys)
    redis.unlink(ready_key(tenant_id))
    return deleted


def unlink(redis: "Redis", keys: Iterable[Any]) -> None:
    """Remove keys, on whatever nodes they are, in one round trip."""
    with redis.pipeline(transaction=False) as pipe:
        for one in keys:
            pipe.unlink(one)
        pipe.execute()


def delete_older(redis: "Redis", number: int) -> None:
    """Remove every board of every tenant whose version is below this number. They are missing then: needs no lock."""
    markers = redis.scan_iter(match="lbv:*", count=10_000)
    while boards := [marker.decode()[len("lbv:{") : -1] for marker in islice(markers, MAX_MEMBERS_PER_COMMAND)]:
        with redis.pipeline(transaction=False) as pipe:
            for board in boards:
                pipe.eval(_DELETE_OLDER, 3, board, f"lbv:{{{board}}}", f"lbu:{{{board}}}", number)
            deleted = pipe.execute()
        for tenant_id in {board.split(":")[1] for board, done in zip(boards, deleted, strict=True) if done}:
            mark_incomplete(redis, tenant_id)


# --- Whether Redis still has what was written to it


class RedisState(StrEnum):
    """Which of a tenant's boards in Redis can be trusted."""

    READY = "ready"  # all of them
    INCOMPLETE = "incomplete"  # those with a marker: some may be missing
    RESTARTED = "restarted"  # none: a server that was restarted may have loaded an old dump, markers included


def ready_key(tenant_id: str) -> str:
    """Holds the run id of the server that had every board of the tenant at the last check.

    Preceded by `?`: since then one was found missing. By `!`: those that are missing are being rebuilt. Of a cluster,
    one node has the key and others the boards, so nothing is known without it: they may have been restarted.
    """
    return key("lbr", tenant_id)


def run_id(redis: "Redis") -> str:
    """Changes with every start of the server; on a cluster also if another node becomes a primary.

    A replica that was promoted may not have the last writes. It has another run id, or at least another replication id:
    a former primary that is one again was not restarted.
    """
    servers = on_every_server(redis, "INFO", "server")
    if len(servers) == 1:
        return str(servers[0]["run_id"])
    histories = on_every_server(redis, "INFO", "replication")
    ids = sorted([server["run_id"] for server in servers] + [history["master_replid"] for history in histories])
    return hashlib.blake2b(" ".join(ids).encode(), digest_size=20).hexdigest()


def state(redis: "Redis", tenant_id: str) -> RedisState:
    return _state(redis.get(ready_key(tenant_id)), run_id(redis))


def _state(ready: Any, run: str) -> RedisState:
    if ready is None or ready.lstrip(b"?!") != run.encode():
        return RedisState.RESTARTED
    return RedisState.READY if is_complete(ready) else RedisState.INCOMPLETE


def is_complete(ready: Any) -> bool:
    """Whether a tenant's boards were all there at the last check: by what its ready key holds."""
    return ready is not None and ready[:1] not in {b"?", b"!"}


@contextmanager
def completing(redis: "Redis", tenant_id: str, *, last_run: str | None = None) -> Iterator[RedisState]:
    """The state, while the caller rebuilds what is missing; ready afterwards.

    `last_run`: of the server in which the boards were last written. If that is another one, boards here are as old as
    those of a server that was restarted.

    Unless Redis was emptied, or somebody found a board missing (`mark_incomplete`), meanwhile: both change the key. In
    the second case the boards are incomplete, also if the server was restarted before: whatever has a marker now was
    rebuilt since.
    """
    run = run_id(redis)
    before = _state(redis.get(ready_key(tenant_id)), run)
    if last_run not in {None, run} and before is not RedisState.RESTARTED:
        before = RedisState.RESTARTED
        log.error(
            "boards were written in another Redis: every process must have the same REDIS_URL",
            action="boards.elsewhere",
            tenantId=tenant_id,
        )
    if before is RedisState.READY:
        yield before
        return
    # If this process dies here, old boards of a restarted server are still not trusted.
    rebuilding = f"!{run if before is RedisState.INCOMPLETE else ''}"
    redis.set(ready_key(tenant_id), rebuilding)
    yield before
    redis.eval(_FINISH_REBUILDING, 1, ready_key(tenant_id), rebuilding, run)


def mark_incomplete(redis: "Redis", tenant_id: str) -> None:
    """Somebody found a board without its marker."""
    redis.eval(_MARK_INCOMPLETE, 1, ready_key(tenant_id))


def _new_key(board: Board) -> str:
    return f"{{{board.key}}}:new"


def _new_lookup(board: Board) -> str:
    return f"{{{board.key}}}:new-lookup"


def _write_summaries(pipe: Any, summaries: Mapping[str, Mapping[str, str] | None]) -> None:
    for name, fields in summaries.items():
        if fields is None:
            pipe.delete(name)
        else:
            pipe.hset(name, mapping=dict(fields))


def _pairs(values: Iterable[tuple[str, Value]]) -> bytes:
    """As JSON, since packing each value as an argument of its own would take most of the time.

    In the board's own order, because inserting neighbours one after the other is quicker in a large sorted set.
    """
    ordered = sorted(values, key=itemgetter(1, 0))
    return orjson.dumps([part for member, value in ordered for part in (value, member)])


def _chunks(items: Iterable[Any]) -> Iterator[list[Any]]:
    chunk = list(items)
    for start in range(0, len(chunk), MAX_MEMBERS_PER_COMMAND):
        yield chunk[start : start + MAX_MEMBERS_PER_COMMAND]
