"""Reading boards from Redis. None: Redis is unavailable, or does not have the board."""

from collections.abc import Callable, Sequence
from typing import Any

from analytics.boards.names import Board, Version
from analytics.boards.rows import Listing, Position, Row, Source, row_of
from analytics.metrics import Value
from tenants import redis
from tenants.redis import RedisUnavailable

# Scripts, so that no member moves between finding a position and reading on from it.
_AFTER = """
local key, value, member, limit = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local function below(a, b)
    for i = 1, math.min(#a, #b) do
        local x, y = string.byte(a, i), string.byte(b, i)
        if x ~= y then return x < y end
    end
    return #a < #b
end
local above = redis.call('ZCOUNT', key, '(' .. value, '+inf')
local low, high = 0, redis.call('ZCOUNT', key, value, value)
while low < high do
    local middle = math.floor((low + high) / 2)
    if below(redis.call('ZREVRANGE', key, above + middle, above + middle)[1], member) then
        high = middle
    else
        low = middle + 1
    end
end
local start = above + low
return {start, redis.call('ZCARD', key), redis.call('ZREVRANGE', key, start, start + limit - 1, 'WITHSCORES')}
"""
_TOP = """
local rows = redis.call('ZREVRANGE', KEYS[1], 0, tonumber(ARGV[1]) - 1, 'WITHSCORES')
return {redis.call('GET', KEYS[2]) or '', redis.call('ZCARD', KEYS[1]), rows}
"""
_AROUND = """
local member = ARGV[1]
if KEYS[2] then member = redis.call('HGET', KEYS[2], member) or '' end
local rank = redis.call('ZREVRANK', KEYS[1], member)
if not rank then return {0, redis.call('ZCARD', KEYS[1]), {}} end
local start = math.max(rank - tonumber(ARGV[2]), 0)
local rows = redis.call('ZREVRANGE', KEYS[1], start, rank + tonumber(ARGV[2]), 'WITHSCORES')
return {start, redis.call('ZCARD', KEYS[1]), rows}
"""

_ABOVE = """
local above = {}
for place, value in ipairs(ARGV) do above[place] = redis.call('ZCOUNT', KEYS[1], '(' .. value, '+inf') end
return above
"""


def read_top(board: Board, *, limit: int, after: Position | None) -> Listing | None:
    """The first rows, or those after a position."""

    def ask(pipe: Any) -> None:
        if after is None:
            pipe.zcard(board.key)
            pipe.zrange(board.key, 0, limit - 1, desc=True, withscores=True)
        else:
            pipe.eval(_AFTER, 1, board.key, repr(after.value), after.member, limit)

    found = _ask(board, ask)
    if found is None:
        return None
    version, answers = found
    if after is None:
        total, pairs = answers
        return _listing(_rows(board, 0, [part for pair in pairs for part in pair]), total, version)
    start, total, flat = answers[0]
    return _listing(_rows(board, start, flat), total, version)


def read_tops(boards: Sequence[Board], *, limit: int) -> list[Listing | None]:
    """The first rows of many boards, in one round trip."""
    try:
        with redis.boards().client() as client, client.pipeline(transaction=False) as pipe:
            for board in boards:
                pipe.eval(_TOP, 2, board.key, board.marker, limit)
            answers = pipe.execute()
    except RedisUnavailable:
        return [None] * len(boards)
    return [
        _listing(_rows(board, 0, flat), total, Version.load(marker)) if marker else None
        for board, (marker, total, flat) in zip(boards, answers, strict=True)
    ]


def read_subjects(board: Board, subjects: Sequence[str]) -> Listing | None:
    """The rows of these pages or users."""

    def ask(pipe: Any) -> None:
        pipe.zcard(board.key)
        for subject in subjects:
            _eval_around(pipe, board, subject, 0)

    found = _ask(board, ask)
    if found is None:
        return None
    version, (total, *answers) = found
    rows = [row for start, _, flat in answers for row in _rows(board, start, flat)]
    return _listing(sorted(rows, key=lambda row: row.rank), total, version)


def read_around(board: Board, subject: str, n: int) -> Listing | None:
    """The row of a page or user, with the n above and below it."""
    found = _ask(board, lambda pipe: _eval_around(pipe, board, subject, n))
    if found is None:
        return None
    version, ((start, total, flat),) = found
    return _listing(_rows(board, start, flat), total, version)


def ranks_for(board: Board, values: Sequence[Value]) -> list[int] | None:
    """The rank that each value has: one more than there are rows above it."""
    found = _ask(board, lambda pipe: pipe.eval(_ABOVE, 1, board.key, *values))
    return None if found is None else [int(above) + 1 for above in found[1][0]]


def _eval_around(pipe: Any, board: Board, subject: str, n: int) -> None:
    keys = (board.key, board.lookup) if board.is_users else (board.key,)
    pipe.eval(_AROUND, len(keys), *keys, subject, n)


def _ask(board: Board, ask: Callable[[Any], object]) -> tuple[Version, list[Any]] | None:
    """The answers together with the board's marker, at one moment; None without the marker."""
    try:
        with redis.boards().client() as client, client.pipeline(transaction=True) as pipe:
            pipe.get(board.marker)
            ask(pipe)
            marker, *answers = pipe.execute()
    except RedisUnavailable:
        return None
    return (Version.load(marker), answers) if marker is not None else None


def _listing(rows: Sequence[Row], total: int, version: Version) -> Listing:
    return Listing(rows, int(total), version, Source.REDIS, version.changed_at)


def _rows(board: Board, start: int, flat: Sequence[Any]) -> list[Row]:
    return [
        row_of(board, int(start) + place, bytes(member).decode(), value)
        for place, (member, value) in enumerate(zip(flat[::2], flat[1::2], strict=True), 1)
    ]
