"""Filling a board in Redis again, step by step: under keys of its own, which replace the old board at the end.

Steps are far apart, and may be taken by several processes. So Redis keeps how far a board is filled beside it
(`filled_to`): the position of the last row, and how many members there are. Between two steps others write: whatever
writes to a board writes to an unfinished one too (`redis_store`), so up to its position it has the values of now. An
unfinished board that has another number of members than it should, or no position, has lost something since Redis was
emptied: it is filled from the start.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from analytics.boards.names import Board, Version
from analytics.boards.redis_store import PAGES_INTO, USERS_INTO, dump_pairs, dump_users, write_summaries
from analytics.metrics import Value

if TYPE_CHECKING:
    from redis import Redis

# An unfinished board that nobody continues for so long is dropped.
KEPT_S = 3_600
START, END = "", "end"

# Every step is one script for each board: nobody sees half of it.
_IS_WHOLE = """
local function is_whole(new, filled_to, position)
    local at = redis.call('HMGET', filled_to, 'position', 'members')
    if at[1] == position and tonumber(at[2]) == redis.call('ZCARD', new) then return true end
    redis.call('UNLINK', filled_to)
    return false
end
local function fill(new, filled_to, position)
    redis.call('HSET', filled_to, 'position', position, 'members', redis.call('ZCARD', new))
    for _, key in ipairs(KEYS) do redis.call('EXPIRE', key, ARGV[4]) end
end
"""
_FILL_PAGES = f"""{_IS_WHOLE}{PAGES_INTO}
if not is_whole(KEYS[1], KEYS[2], ARGV[1]) then return 0 end
pages_into(KEYS[1], {{}}, cjson.decode(ARGV[3]))
fill(KEYS[1], KEYS[2], ARGV[2])
return 1
"""
_FILL_USERS = f"""{_IS_WHOLE}{USERS_INTO}
if not is_whole(KEYS[1], KEYS[2], ARGV[1]) then return 0 end
users_into(KEYS[1], KEYS[3], cjson.decode(ARGV[3]))
fill(KEYS[1], KEYS[2], ARGV[2])
return 1
"""
_RENAME_INTO_PLACE = f"""{_IS_WHOLE}
if not is_whole(KEYS[1], KEYS[2], ARGV[1]) then return 0 end
local members = redis.call('ZCARD', KEYS[1])
if KEYS[5] and redis.call('HLEN', KEYS[5]) ~= members then redis.call('UNLINK', KEYS[2]) return 0 end
local function replace(new, old)
    redis.call('UNLINK', old)
    if members > 0 then redis.call('RENAME', new, old) redis.call('PERSIST', old) end
end
replace(KEYS[1], KEYS[3])
if KEYS[5] then replace(KEYS[5], KEYS[6]) end
redis.call('UNLINK', KEYS[2])
redis.call('SET', KEYS[4], ARGV[2])
return 1
"""


class Filling:
    """Boards that are filled together, from the same rows."""

    def __init__(self, redis: "Redis", boards: Iterable[Board], *, anew: bool = False) -> None:
        """Continue with boards that are all filled up to the same row; begin with the first one otherwise."""
        self._redis = redis
        self._boards = list(boards)
        positions = set() if anew else self._positions()
        (position,) = positions if len(positions) == 1 else (None,)
        if position is None:
            self._begin()
        # The position of the last row that the boards have. Boards that lose rows meanwhile replace nothing.
        self.position: str = position or START

    def add_pages(
        self,
        values: Mapping[Board, Mapping[str, Value]],
        summaries: Mapping[str, Mapping[str, str]],
        *,
        up_to: str = END,
    ) -> None:
        """Add pages, whose last one has this position."""
        with self._redis.pipeline(transaction=False) as pipe:
            write_summaries(pipe, summaries)
            for board in self._boards:
                added = dump_pairs(values.get(board, {}).items())
                pipe.eval(_FILL_PAGES, 2, board.unfinished, board.filled_to, self.position, up_to, added, KEPT_S)
            pipe.execute()
        self.position = up_to

    def add_users(self, entries: Mapping[Board, Mapping[str, tuple[str, Value]]], *, up_to: str = END) -> None:
        """Add users, whose last one has this position."""
        with self._redis.pipeline(transaction=False) as pipe:
            for board in self._boards:
                keys, added = (board.unfinished, board.filled_to, board.unfinished_lookup), entries.get(board, {})
                pipe.eval(_FILL_USERS, 3, *keys, self.position, up_to, dump_users(added), KEPT_S)
            pipe.execute()
        self.position = up_to

    def finish(self, versions: Mapping[Board, Version]) -> list[Board]:
        """Replace the old boards; returns those replaced. One that has lost members is not."""
        with self._redis.pipeline(transaction=False) as pipe:
            for board in self._boards:
                keys = [board.unfinished, board.filled_to, board.key, board.marker]
                if board.is_users:
                    keys += [board.unfinished_lookup, board.lookup]
                pipe.eval(_RENAME_INTO_PLACE, len(keys), *keys, self.position, versions[board].dump())
            replaced = pipe.execute()
        return [board for board, done in zip(self._boards, replaced, strict=True) if done]

    def _positions(self) -> set[str | None]:
        with self._redis.pipeline(transaction=False) as pipe:
            for board in self._boards:
                pipe.hget(board.filled_to, "position")
            return {position.decode() if position is not None else None for position in pipe.execute()}

    def _begin(self) -> None:
        with self._redis.pipeline(transaction=False) as pipe:
            for board in self._boards:
                pipe.unlink(board.unfinished)
                pipe.unlink(board.unfinished_lookup)
                pipe.hset(board.filled_to, mapping={"position": START, "members": 0})
                pipe.expire(board.filled_to, KEPT_S)
            pipe.execute()
