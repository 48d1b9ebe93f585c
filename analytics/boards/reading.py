"""Reading boards: from Redis, else from the last snapshot, else from PostgreSQL. The order is the same everywhere.

A page board goes by value, then by page id as text, both descending: a sorted set's own order. A cursor is a position
in that order (value, member), so that going on from it loses nobody who did not move.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import text

from analytics import wake
from analytics.boards import names, redis_store, snapshots, user_numbers, versions
from analytics.boards.names import ALL_TENANTS, Board, Version, summary_key
from analytics.boards.page_numbers import column
from analytics.locks import hold
from analytics.metrics import Metric, Value
from tenants import redis
from tenants.db import Tx, platform_tx, tenant_tx
from tenants.redis import RedisUnavailable


class Source(StrEnum):
    REDIS = "redis"
    SNAPSHOT = "snapshot"
    POSTGRES = "postgres"


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the order of a board."""

    value: Value
    member: str


@dataclass(frozen=True, slots=True)
class Row:
    rank: int
    member: str
    value: Value


@dataclass(frozen=True)
class Listing:
    """A part of a board, and where it came from."""

    rows: Sequence[Row]
    total: int
    version: Version
    source: Source
    as_of: datetime

    @property
    def next(self) -> Position | None:
        """Where it goes on; None at the end."""
        if not self.rows or self.rows[-1].rank >= self.total:
            return None
        return Position(self.rows[-1].value, self.rows[-1].member)


def page(board: Board, *, limit: int, after: Position | None = None, now: datetime) -> Listing:
    """The first `limit` rows, or those after a position."""
    found = _redis_page(board, limit=limit, after=after)
    if found is not None:
        return found
    with inside(board) as tx:
        kept = snapshots.live(tx, board)
        found = _snapshot_page(kept, limit=limit, after=after) if kept is not None else None
        found = found or _postgres_page(tx, board, limit=limit, after=after, now=now)
    return _ask_for_rebuild(board, found)


def true_pages(wanted: Sequence[Board], *, limit: int, now: datetime) -> Iterator[tuple[Board, Listing]]:
    """The first rows of each of a tenant's boards, not from snapshots: what those are made of."""
    for board, found in zip(wanted, _redis_tops(wanted, limit=limit), strict=True):
        if found is not None:
            yield board, found
            continue
        with inside(board) as tx:
            hold(tx, board.tenant_id, shared=True)  # so that nothing is committed between its version and its rows
            yield board, _postgres_page(tx, board, limit=limit, after=None, now=now)


def ranks(board: Board, members: Sequence[str], *, now: datetime) -> Listing:
    """The rows of these members that are on the board, best first."""
    return _redis_ranks(board, members) or _ask_for_rebuild(board, _postgres_ranks(board, members, now=now))


def around(board: Board, member: str, *, n: int, now: datetime) -> Listing:
    """The row of a page or user with the n above and below it; no rows when it is not on the board."""
    return _redis_around(board, member, n) or _ask_for_rebuild(board, _postgres_around(board, member, n, now=now))


def subject(board: Board, member: str) -> str:
    """Whose row it is: the page's id or the user's."""
    return user_numbers.user_of(member) if board.is_users else member


def summaries(board: Board, members: Sequence[str], *, source: Source = Source.REDIS) -> dict[str, Mapping[str, str]]:
    """What to show of these members: from Redis, and from PostgreSQL what is not there.

    A page may have become private since its row was read: of those a public board shows nothing.
    """
    found = {} if source is Source.SNAPSHOT and board.is_public else _redis_summaries(board, members)
    if board.is_public:
        found = {member: fields for member, fields in found.items() if fields.get("public") == "1"}
    missing = [int(member) for member in members if member not in found]
    if missing:
        with inside(board) as tx:
            shown = "is_shared" if board.tenant_id == ALL_TENANTS else "is_public"
            stats = "page_stats s WHERE s.tenant_id = p.tenant_id AND s.page_id = p.id"
            rows = tx.execute(
                text(f"""
                    SELECT p.id, p.tenant_id, p.external_id, p.title, p.url, p.space_key, p.visibility FROM pages p
                    WHERE p.id = ANY(CAST(:ids AS bigint[])) AND (p.tenant_id = :tenant OR :tenant = '{ALL_TENANTS}')
                      AND (NOT :public OR (p.visibility = 'public' AND EXISTS (SELECT FROM {stats} AND s.{shown})))
                """),  # noqa: S608  constants
                {"ids": missing, "tenant": board.tenant_id, "public": board.is_public},
            )
            for row in rows:
                public = row.visibility == "public"
                summary = names.Summary(row.external_id, row.title, row.url, row.space_key, row.tenant_id, public)
                found[str(row.id)] = summary.fields()
    return found


def _redis_summaries(board: Board, members: Sequence[str]) -> dict[str, Mapping[str, str]]:
    try:
        with redis.boards().client() as client, client.pipeline(transaction=False) as pipe:
            for member in members:
                pipe.hgetall(summary_key(board.tenant_id, member))
            answers = pipe.execute()
    except RedisUnavailable:
        return {}
    return {
        member: {name.decode(): value.decode() for name, value in fields.items()}
        for member, fields in zip(members, answers, strict=True)
        if fields
    }


def page_ids(tenant_id: str, external_ids: Sequence[str], *, public_only: bool) -> dict[str, str]:
    """The members that these pages of the tenant are on its boards: external id → member."""
    with tenant_tx(tenant_id) as tx:
        rows = tx.execute(
            text(
                "SELECT external_id, id FROM pages WHERE tenant_id = :tenant"
                " AND external_id = ANY(CAST(:names AS text[])) AND (NOT :public_only OR visibility = 'public')"
            ),
            {"tenant": tenant_id, "names": list(external_ids), "public_only": public_only},
        )
        return {row.external_id: str(row.id) for row in rows}


def inside(board: Board) -> AbstractContextManager[Tx]:
    """A transaction that sees the board's rows."""
    return platform_tx() if board.tenant_id == ALL_TENANTS else tenant_tx(board.tenant_id)


# --- Redis ----------------------------------------------------------------------------------------------------------

# These run inside Redis, so that nobody moves between finding a place and reading on from it.
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


def _redis_page(board: Board, *, limit: int, after: Position | None) -> Listing | None:
    """None: Redis cannot say."""

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


def _redis_tops(wanted: Sequence[Board], *, limit: int) -> list[Listing | None]:
    """The tops of many boards, in one round trip; None where Redis cannot say."""
    try:
        with redis.boards().client() as client, client.pipeline(transaction=False) as pipe:
            for board in wanted:
                pipe.eval(_TOP, 2, board.key, board.marker, limit)
            answers = pipe.execute()
    except RedisUnavailable:
        return [None] * len(wanted)
    return [
        _listing(_rows(board, 0, flat), total, Version.load(marker)) if marker else None
        for board, (marker, total, flat) in zip(wanted, answers, strict=True)
    ]


def _redis_ranks(board: Board, members: Sequence[str]) -> Listing | None:
    def ask(pipe: Any) -> None:
        pipe.zcard(board.key)
        for member in members:
            _eval_around(pipe, board, member, 0)

    found = _ask(board, ask)
    if found is None:
        return None
    version, (total, *answers) = found
    rows = [row for start, _, flat in answers for row in _rows(board, start, flat)]
    return _listing(sorted(rows, key=lambda row: row.rank), total, version)


def _redis_around(board: Board, member: str, n: int) -> Listing | None:
    found = _ask(board, lambda pipe: _eval_around(pipe, board, member, n))
    if found is None:
        return None
    version, ((start, total, flat),) = found
    return _listing(_rows(board, start, flat), total, version)


def _eval_around(pipe: Any, board: Board, subject: str, n: int) -> None:
    keys = (board.key, board.lookup) if board.is_users else (board.key,)
    pipe.eval(_AROUND, len(keys), *keys, subject, n)


def _ask(board: Board, ask: Callable[[Any], object]) -> tuple[Version, list[Any]] | None:
    """What Redis answers together with the board's marker, at one moment; None without the marker."""
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
        Row(int(start) + place, bytes(member).decode(), _load(board, value))
        for place, (member, value) in enumerate(zip(flat[::2], flat[1::2], strict=True), 1)
    ]


def _load(board: Board, value: Any) -> Value:
    return float(value) if board.metric is Metric.SCORE else int(float(value))


def _ask_for_rebuild(board: Board, found: Listing) -> Listing:
    """Redis did not have the board: have all of the tenant's looked at. In an empty one there is nothing to fill."""
    if found.total:
        with contextlib.suppress(RedisUnavailable), redis.boards().client() as client:
            redis_store.look_again(client, board.tenant_id)
            wake.wake([board.tenant_id])
    return found


# --- The last snapshot ----------------------------------------------------------------------------------------------


def _snapshot_page(kept: "snapshots.Kept", *, limit: int, after: Position | None) -> Listing | None:
    """None: it goes on below what the snapshot holds."""
    start = 0
    if after is not None:
        place = (after.value, after.member)
        start = sum((row.value, row.member) >= place for row in kept.rows)
    if start + limit > len(kept.rows) < kept.total:
        return None
    return Listing(kept.rows[start : start + limit], kept.total, kept.version, Source.SNAPSHOT, kept.taken_at)


def sealed_page(kept: "snapshots.Kept", *, limit: int, after: Position | None) -> Listing:
    """A part of a board as it was: as far as the snapshot goes."""
    bounded = replace(kept, total=len(kept.rows))
    found = _snapshot_page(bounded, limit=limit, after=after)
    assert found is not None  # noqa: S101  it holds all that it counts
    return found


# --- PostgreSQL -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rows:
    """Where PostgreSQL has a board's rows: table, whose they are, value, member in a sorted set's own order, which."""

    table: str
    subject: str
    value: str
    member: str
    where: str

    def parameters(self, board: Board, **more: Any) -> dict[str, Any]:
        return {"tenant": board.tenant_id, "part": board.part, "metric": board.metric.value, **more}


def _postgres_page(tx: Tx, board: Board, *, limit: int, after: Position | None, now: datetime) -> Listing:
    of = _of(board)
    position = {} if after is None else {"value": after.value, "member": after.member}
    below = "true" if after is None else f"({of.value} < :value OR ({of.value} = :value AND {of.member} < :member))"
    parameters = of.parameters(board, limit=limit, **position)
    totals = tx.execute(
        text(f"""
            SELECT count(*) AS total, count(*) FILTER (WHERE NOT {below}) AS above FROM {of.table} s WHERE {of.where}
        """),  # noqa: S608
        parameters,
    ).one()
    rows = tx.execute(
        text(f"""
            SELECT {of.member} AS member, {of.value} AS value FROM {of.table} s WHERE {of.where} AND {below}
            ORDER BY {of.value} DESC, {of.member} DESC LIMIT :limit
        """),  # noqa: S608
        parameters,
    ).all()
    listed = [Row(totals.above + place, row.member, row.value) for place, row in enumerate(rows, 1)]
    return _from_postgres(tx, board, listed, totals.total, now=now)


def _postgres_ranks(board: Board, members: Sequence[str], *, now: datetime) -> Listing:
    of = _of(board)
    with inside(board) as tx:
        parameters = of.parameters(board, members=list(members))
        rows = tx.execute(
            text(f"""
                SELECT m.member, m.value, 1 + (
                    SELECT count(*) FROM {of.table} s WHERE {of.where}
                    AND ({of.value} > m.value OR ({of.value} = m.value AND {of.member} > m.member COLLATE "C"))
                ) AS rank
                FROM (SELECT {of.member} AS member, {of.value} AS value FROM {of.table} s
                      WHERE {of.where} AND {of.subject}::text = ANY(CAST(:members AS text[]))) m
                ORDER BY rank
            """),  # noqa: S608
            parameters,
        ).all()
        total = tx.scalar(text(f"SELECT count(*) FROM {of.table} s WHERE {of.where}"), parameters)  # noqa: S608
        return _from_postgres(tx, board, [Row(r.rank, r.member, r.value) for r in rows], total or 0, now=now)


def _postgres_around(board: Board, member: str, n: int, *, now: datetime) -> Listing:
    of = _of(board)
    with inside(board) as tx:
        parameters = of.parameters(board, subject=member, n=n)
        rows = tx.execute(
            text(f"""
                WITH ranked AS (
                    SELECT {of.subject}::text AS subject, {of.member} AS member, {of.value} AS value,
                           row_number() OVER (ORDER BY {of.value} DESC, {of.member} DESC) AS rank
                    FROM {of.table} s WHERE {of.where}
                ), own AS (SELECT rank FROM ranked WHERE subject = :subject)
                SELECT r.* FROM ranked r, own WHERE r.rank BETWEEN own.rank - :n AND own.rank + :n ORDER BY r.rank
            """),  # noqa: S608
            parameters,
        ).all()
        total = tx.scalar(text(f"SELECT count(*) FROM {of.table} s WHERE {of.where}"), parameters)  # noqa: S608
        return _from_postgres(tx, board, [Row(r.rank, r.member, r.value) for r in rows], total or 0, now=now)


def _of(board: Board) -> _Rows:
    if board.is_users:
        value, part = f"s.value_{board.window}", "" if board.part is None else " AND s.segment = :part"
        where = f"{value} > 0 AND s.tenant_id = :tenant AND s.metric = :metric{part}"
        return _Rows("user_stats", "s.user_id", value, f's.member_{board.window} COLLATE "C"', where)
    value = f"s.{column(board.metric, board.window)}"
    wheres = [f"{value} > 0"]
    if board.tenant_id != ALL_TENANTS:
        wheres.append("s.tenant_id = :tenant")
    if board.part is not None:
        wheres.append("s.space_key = :part")
    if board.tenant_id == ALL_TENANTS:
        wheres.append("s.is_shared")
    elif board.is_public:
        wheres.append("s.is_public")
    return _Rows("page_stats", "s.page_id", value, 's.page_id::text COLLATE "C"', " AND ".join(wheres))


def _from_postgres(tx: Tx, board: Board, rows: Sequence[Row], total: int, *, now: datetime) -> Listing:
    version = versions.read(tx, [board], now=now)[board]
    return Listing(rows, total, version, Source.POSTGRES, version.changed_at)
