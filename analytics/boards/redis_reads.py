"""Reading boards from Redis. None: Redis is unavailable, or does not have the board."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from analytics.boards.names import Board, Version
from analytics.boards.ranks import Entry, RankQuestion
from analytics.boards.rows import Listing, Position, Row, Source, row_of
from tenants import redis
from tenants.redis import RedisUnavailable

# Scripts, so that a board does not change between its marker and its rows, or between finding a position and reading on
# from it. The keys are the board and its marker; each returns the marker first, empty if there is none.
_TOP = """
local rows = redis.call('ZREVRANGE', KEYS[1], 0, tonumber(ARGV[1]) - 1, 'WITHSCORES')
return {redis.call('GET', KEYS[2]) or '', 0, redis.call('ZCARD', KEYS[1]), rows}
"""
_BELOW = """
local function below(a, b)
    for i = 1, math.min(#a, #b) do
        local x, y = string.byte(a, i), string.byte(b, i)
        if x ~= y then return x < y end
    end
    return #a < #b
end
"""
_AFTER = (
    _BELOW
    + """
local key, value, member, limit = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
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
local rows = redis.call('ZREVRANGE', key, start, start + limit - 1, 'WITHSCORES')
return {redis.call('GET', KEYS[2]) or '', start, redis.call('ZCARD', key), rows}
"""
)
_AROUND = """
local member = ARGV[1]
if KEYS[3] then member = redis.call('HGET', KEYS[3], member) or '' end
local marker, total = redis.call('GET', KEYS[2]) or '', redis.call('ZCARD', KEYS[1])
local rank = redis.call('ZREVRANK', KEYS[1], member)
if not rank then return {marker, 0, total, {}} end
local start = math.max(rank - tonumber(ARGV[2]), 0)
local rows = redis.call('ZREVRANGE', KEYS[1], start, rank + tonumber(ARGV[2]), 'WITHSCORES')
return {marker, start, total, rows}
"""
_SUBJECTS = """
local found = {}
for i, subject in ipairs(ARGV) do
    local member = subject
    if KEYS[3] then member = redis.call('HGET', KEYS[3], subject) or '' end
    local rank = redis.call('ZREVRANK', KEYS[1], member)
    if rank then found[#found + 1] = {rank, redis.call('ZREVRANGE', KEYS[1], rank, rank, 'WITHSCORES')} end
end
return {redis.call('GET', KEYS[2]) or '', 0, redis.call('ZCARD', KEYS[1]), {}, found}
"""
# The arguments are a number of users and their ids, then a value and a member for each row that is asked about.
_AT_OR_ABOVE = (
    _BELOW
    + """
local key, users = KEYS[1], tonumber(ARGV[1])
local found, above = {}, {}
for i = 2, users + 1 do
    local member = redis.call('HGET', KEYS[3], ARGV[i])
    local value = member and redis.call('ZSCORE', key, member)
    if value then
        found[#found + 1] = value
        found[#found + 1] = member
    end
end
for i = users + 2, #ARGV, 2 do
    local value, member = ARGV[i], ARGV[i + 1]
    local higher = redis.call('ZCOUNT', key, '(' .. value, '+inf')
    local low, high = 0, redis.call('ZCOUNT', key, value, value)
    -- Who has just reached a value is below all others who have it: compare with the last of them first.
    local middle = high - 1
    while low < high do
        if below(redis.call('ZREVRANGE', key, higher + middle, higher + middle)[1], member) then
            high = middle
        else
            low = middle + 1
        end
        middle = math.floor((low + high) / 2)
    end
    above[#above + 1] = higher + low
end
return {redis.call('GET', KEYS[2]) or '', above, found}
"""
)


def read_top(board: Board, *, limit: int, after: Position | None) -> Listing | None:
    """The first rows, or those after a position."""
    if after is None:
        return _read(board, _TOP, limit)
    return _read(board, _AFTER, repr(after.value), after.member, limit)


def read_tops(boards: Sequence[Board], *, limit: int) -> list[Listing | None]:
    """The first rows of many boards, in one round trip."""
    return read_together([(board, top_command(board, limit)) for board in boards])


def read_together(asked: Sequence[tuple[Board, redis.Command]]) -> list[Listing | None]:
    """What `top_command` and `around_command` ask of several boards, in one round trip."""
    try:
        answers = redis.boards().read(*(command for _, command in asked))
    except RedisUnavailable:
        return [None] * len(asked)
    return [_listing(board, answer) for (board, _), answer in zip(asked, answers, strict=True)]


def top_command(board: Board, limit: int) -> redis.Command:
    return ("EVAL", _TOP, *_keys(board), limit)


def around_command(board: Board, subject: str, n: int) -> redis.Command:
    return ("EVAL", _AROUND, *_keys(board), subject, n)


def read_subjects(board: Board, subjects: Sequence[str]) -> Listing | None:
    """The rows of these pages or users."""
    answer = _ask(board, _SUBJECTS, *subjects)
    if answer is None:
        return None
    *of_board, found = answer
    listing = _listing(board, of_board)
    if listing is None:
        return None
    rows = [row for rank, flat in found for row in _rows(board, rank, flat)]
    return replace(listing, rows=sorted(rows, key=lambda row: row.rank))


def read_around(board: Board, subject: str, n: int) -> Listing | None:
    """The row of a page or user, with the n above and below it."""
    return _read(board, _AROUND, subject, n)


def ranks_together(questions: Sequence[RankQuestion]) -> list[list[int | None] | None]:
    """The ranks that entries have on boards of users, in one round trip. The cost does not depend on the rank."""
    try:
        answers = redis.boards().read(*(_ranks_command(question) for question in questions))
    except RedisUnavailable:
        return [None] * len(questions)
    return [_ranks(question, answer) for question, answer in zip(questions, answers, strict=True)]


def _ranks_command(question: RankQuestion) -> redis.Command:
    asked = [part for value, member in question.asked for part in (value, member)]
    return ("EVAL", _AT_OR_ABOVE, *_keys(question.board), len(question.current), *question.current, *asked)


def _ranks(question: RankQuestion, answer: Sequence[Any] | None) -> list[int | None] | None:
    marker, above, found = answer or (b"", [], [])
    return question.ranks(above, _entries(found)) if marker else None


def _entries(flat: Sequence[bytes]) -> list[Entry]:
    return [Entry(int(float(value)), member.decode()) for value, member in zip(flat[::2], flat[1::2], strict=True)]


def _keys(board: Board) -> tuple[Any, ...]:
    """The number of a script's keys, and the keys. On boards of users a member is found by the user's id."""
    keys = (board.key, board.marker, board.lookup) if board.is_users else (board.key, board.marker)
    return len(keys), *keys


def _read(board: Board, script: str, *arguments: Any) -> Listing | None:
    answer = _ask(board, script, *arguments)
    return _listing(board, answer) if answer is not None else None


def _ask(board: Board, script: str, *arguments: Any) -> Sequence[Any] | None:
    try:
        answer: Sequence[Any] = redis.boards().read(("EVAL", script, *_keys(board), *arguments))[0]
    except RedisUnavailable:
        return None
    return answer


def _listing(board: Board, answer: Sequence[Any] | None) -> Listing | None:
    """A script's answer; None if its node is away, or the board has no marker."""
    if answer is None:
        return None
    marker, start, total, flat = answer
    if not marker:
        return None
    version = Version.load(marker)
    return Listing(_rows(board, start, flat), int(total), version, Source.REDIS, version.changed_at)


def _rows(board: Board, start: int, flat: Sequence[Any]) -> list[Row]:
    return [
        row_of(board, int(start) + place, member.decode(), value)
        for place, (member, value) in enumerate(zip(flat[::2], flat[1::2], strict=True), 1)
    ]
