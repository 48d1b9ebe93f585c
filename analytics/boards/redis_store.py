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
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import orjson

from analytics.boards.board_writes import BoardWrites
from analytics.boards.names import Board, Version
from analytics.metrics import Value
from tenants.redis import key, on_every_server

if TYPE_CHECKING:
    from redis import Redis

MAX_MEMBERS_PER_COMMAND = 2_000
# Where changed boards are published.
CHANNEL = "lb-changed"


# Each script touches one board and its marker atomically: nobody sees half of it, and Redis cannot be emptied between.
PAGES_INTO = """
local function pages_into(board, removed, added)
    for first = 1, #removed, 4000 do
        redis.call('ZREM', board, unpack(removed, first, math.min(first + 3999, #removed)))
    end
    for first = 1, #added, 4000 do
        redis.call('ZADD', board, unpack(added, first, math.min(first + 3999, #added)))
    end
end
"""
USERS_INTO = """
local function users_into(board, lookup, rows)
    for i = 1, #rows, 3 do
        local user, member, value = rows[i], rows[i + 1], rows[i + 2]
        local old = redis.call('HGET', lookup, user)
        if old and old ~= member then redis.call('ZREM', board, old) end
        if member == '' then
            redis.call('HDEL', lookup, user)
        else
            redis.call('ZADD', board, value, member)
            redis.call('HSET', lookup, user, member)
        end
    end
end
"""
# Writes to a board that is being filled too, unless it has lost members.
_UNFINISHED = """
local function into_unfinished(board, filled_to, write)
    local members = redis.call('HGET', filled_to, 'members')
    if not members then return end
    if tonumber(members) ~= redis.call('ZCARD', board) then redis.call('UNLINK', filled_to) return end
    write()
    redis.call('HSET', filled_to, 'members', redis.call('ZCARD', board))
end
"""
_WRITE = f"""{PAGES_INTO}{_UNFINISHED}
local removed, added = cjson.decode(ARGV[1]), cjson.decode(ARGV[2])
into_unfinished(KEYS[3], KEYS[4], function() pages_into(KEYS[3], removed, added) end)
if redis.call('EXISTS', KEYS[2]) == 0 then return 0 end
pages_into(KEYS[1], removed, added)
redis.call('SET', KEYS[2], ARGV[3])
return 1
"""
_REMOVE = f"""{PAGES_INTO}{_UNFINISHED}
local removed = cjson.decode(ARGV[1])
into_unfinished(KEYS[3], KEYS[4], function() pages_into(KEYS[3], removed, {{}}) end)
local number = string.match(redis.call('GET', KEYS[2]) or '', '^%d+')
if not number then return 1 end
if tonumber(number) >= tonumber(ARGV[2]) then return 0 end
pages_into(KEYS[1], removed, {{}})
redis.call('SET', KEYS[2], ARGV[3])
return 1
"""
_WRITE_USERS = f"""{USERS_INTO}{_UNFINISHED}
local rows = cjson.decode(ARGV[1])
into_unfinished(KEYS[4], KEYS[5], function() users_into(KEYS[4], KEYS[6], rows) end)
if redis.call('EXISTS', KEYS[2]) == 0 then return 0 end
users_into(KEYS[1], KEYS[3], rows)
redis.call('SET', KEYS[2], ARGV[2])
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
_MARK_COMPLETE = """
if redis.call('GET', KEYS[1]) == '!' .. ARGV[1] then redis.call('SET', KEYS[1], ARGV[1]) end
"""


def write(redis: "Redis", writes: BoardWrites, versions: Mapping[Board, Version]) -> list[Board]:
    """Write to these boards; returns those without a marker, which were left alone and need a rebuild."""
    ordered = sorted(versions, key=lambda board: board.key)
    with redis.pipeline(transaction=False) as pipe:
        write_summaries(pipe, writes.summaries)
        for board in ordered:
            version = versions[board].dump()
            if board.is_users:
                keys = [board.key, board.marker, board.lookup, board.unfinished, board.filled_to]
                rows = dump_users(writes.users.get(board, {}))
                pipe.eval(_WRITE_USERS, 6, *keys, board.unfinished_lookup, rows, version)
                continue
            removed, values = writes.removed.get(board, []), writes.values.get(board, {})
            arguments = (orjson.dumps(removed), dump_pairs(values.items()), version)
            pipe.eval(_WRITE, 4, board.key, board.marker, board.unfinished, board.filled_to, *arguments)
        written = pipe.execute()[len(writes.summaries) :]
    return [board for board, done in zip(ordered, written, strict=True) if not done]


def remove(redis: "Redis", members: Collection[str], versions: Mapping[Board, Version]) -> list[Board]:
    """Remove pages from boards; returns the boards whose version is not older, which were left alone.

    Needs no lock, unlike what writes values. A board without a marker is filled from what is saved.
    """
    removed = orjson.dumps([*members])
    with redis.pipeline(transaction=False) as pipe:
        for board, version in versions.items():
            keys = (board.key, board.marker, board.unfinished, board.filled_to)
            pipe.eval(_REMOVE, 4, *keys, removed, version.number, version.dump())
        return [board for board, done in zip(versions, pipe.execute(), strict=True) if not done]


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
            pipe.unlink(board.filled_to)
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
    of_boards = (boards, f"lbv:{{{boards}}}", f"lbu:{{{boards}}}", f"{{{boards}}}:new*")
    for pattern in (*of_boards, key("pgs", tenant_id, "*")):
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

    Preceded by `?`: since then one was found missing. By `!`: those that are missing are being rebuilt, and those with
    a marker can be trusted. Without a run id behind it: by a release before, which trusts none meanwhile. Of a cluster,
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


def state(redis: "Redis", tenant_id: str, *, run: str | None = None) -> RedisState:
    """`run`: Redis's run id, if the caller knows it."""
    ready: Any = redis.get(ready_key(tenant_id))
    run = run or run_id(redis)
    if ready is None or ready.lstrip(b"?!") != run.encode():
        return RedisState.RESTARTED
    return RedisState.READY if is_complete(ready) else RedisState.INCOMPLETE


def is_complete(ready: Any) -> bool:
    """Whether a tenant's boards were all there at the last check: by what its ready key holds."""
    return ready is not None and ready[:1] not in {b"?", b"!"}


def forget(redis: "Redis", tenant_id: str, boards: Sequence[Board], *, run: str) -> None:
    """Have all of a tenant's boards be missing: what Redis has of them is of another server, or of any age.

    If this process dies before the end they are still not trusted.
    """
    invalidate(redis, boards)
    redis.set(ready_key(tenant_id), f"?{run}")


def mark_rebuilding(redis: "Redis", tenant_id: str, *, run: str) -> None:
    """The caller rebuilds what is missing, and then marks it as complete."""
    redis.set(ready_key(tenant_id), f"!{run}")


def mark_complete(redis: "Redis", tenant_id: str, *, run: str) -> None:
    """All boards are there. Unless Redis was emptied, or somebody has found one missing, since `mark_rebuilding`."""
    redis.eval(_MARK_COMPLETE, 1, ready_key(tenant_id), run)


def mark_incomplete(redis: "Redis", tenant_id: str) -> None:
    """Somebody found a board without its marker."""
    redis.eval(_MARK_INCOMPLETE, 1, ready_key(tenant_id))


def write_summaries(pipe: Any, summaries: Mapping[str, Mapping[str, str] | None]) -> None:
    for name, fields in summaries.items():
        if fields is None:
            pipe.delete(name)
        else:
            pipe.hset(name, mapping=dict(fields))


def dump_pairs(values: Iterable[tuple[str, Value]]) -> bytes:
    """As JSON, since packing each value as an argument of its own would take most of the time.

    In the board's own order, because inserting neighbours one after the other is quicker in a large sorted set.
    """
    ordered = sorted(values, key=itemgetter(1, 0))
    return orjson.dumps([part for member, value in ordered for part in (value, member)])


def dump_users(entries: Mapping[str, tuple[str, Value] | None]) -> bytes:
    """As JSON: user, member (empty: none) and value of each."""
    return orjson.dumps([part for user, entry in entries.items() for part in (user, *(entry or ("", 0)))])
