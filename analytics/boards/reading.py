"""Reading boards, with subjects and movement.

`read(board, part, now=…)` is the one way to a board's rows. A part is `Top` (the first rows, or those after a
position: from Redis, else from the live snapshot, else from PostgreSQL), `Only` (some pages or users) or `Around` (one
with its neighbours; both from Redis, else from PostgreSQL), or `AsOf` (the board at the end of an earlier day, from its
sealed snapshot).

No source answers with an older version than the asker has seen (`at_least`), if PostgreSQL has a newer one. Redis
answers only while it has everything that was projected (`caught_up`).
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from analytics.boards import caught_up, postgres_reads, redis_reads, redis_store, snapshots, summaries, versions
from analytics.boards.board_sql import transaction_for
from analytics.boards.kept import NO_RANKS_FOR_S, BoardMemory
from analytics.boards.names import Board
from analytics.boards.ranks import RankQuestion
from analytics.boards.rows import Listing, Position, Row, Source
from analytics.boards.snapshots import RanksOfADay
from analytics.locks import lock_boards
from analytics.metrics import Value
from analytics.wake import wake
from tenants import redis
from tenants.db import STATEMENT_TIMEOUT_MS, Tx
from tenants.redis import RedisUnavailable

# How often it reads on in place of rows that may not be shown.
MAX_REFILLS = 10
# How long a reader who has seen a version waits for its commit.
MAX_COMMIT_WAIT_MS = 1_000
# Below every row: who has no points is on no board.
END = Position(0, "")


@dataclass(frozen=True)
class Top:
    limit: int
    after: Position | None = None


@dataclass(frozen=True)
class Only:
    subjects: Sequence[str]


@dataclass(frozen=True)
class Around:
    subject: str
    n: int


@dataclass(frozen=True)
class AsOf:
    day: date
    limit: int
    after: Position | None = None


Part = Top | Only | Around | AsOf


class ShownRow(NamedTuple):
    """A row as a reader sees it."""

    rank: int
    value: Value
    subject: str
    # What is shown of the page or user; None: the page was deleted since.
    shown: Mapping[str, Any] | None
    # Places gained since the end of the day before; None: unknown, or not on the board then.
    rank_change: int | None
    is_new: bool


@dataclass(frozen=True)
class ShownBoard:
    """Some rows of a board as a reader sees them."""

    board: Board
    rows: Sequence[ShownRow]
    total: int
    version: int
    source: Source
    as_of: datetime
    # Where it continues; None at the end, or where it does not continue.
    next: Position | None
    # How many rows above the last one may not be shown, as far as it is known: they have no rank.
    hidden: int = 0
    # See `Listing`.
    is_newest: bool = True


def read(
    board: Board,
    part: Part,
    *,
    now: datetime,
    at_least: int = 0,
    with_movement: bool = True,
    memory: BoardMemory | None = None,
) -> ShownBoard:
    """Read a part of a board. Raises NoSnapshot for a day without a record.

    `at_least`: a version that the asker has seen. An older one is the answer only if PostgreSQL has none that is newer:
    the version was lost with a server, or was never ours. Raises Busy while it may still be committed.
    `memory`: what this process keeps of boards; used for what Redis answers.

    Rows of users who were erased, and are on the board until the next projection, are passed over: those below move up,
    and as many more are read. Single rows have the ranks that they have among those who stay.
    """
    hidden = 0
    if board.is_users and isinstance(part, Top) and part.after is not None:
        with transaction_for(board) as tx:
            (hidden,) = postgres_reads.count_leaving(tx, board, above=[part.after])

    def read_part(part: Part, hidden: int) -> ShownBoard:
        listing, total, day = _listing(board, part, now=now, at_least=at_least)
        if board.is_users and isinstance(part, Only | Around):
            listing = _without_leaving(board, listing)
            total = listing.total
        return _show(board, part, listing, total, day, with_movement=with_movement, memory=memory, hidden=hidden)

    shown = read_part(part, hidden)
    for _ in range(MAX_REFILLS):
        if not isinstance(part, Top) or shown.next is None or len(shown.rows) == part.limit:
            break
        more = read_part(Top(part.limit - len(shown.rows), shown.next), shown.hidden)
        is_newest = shown.is_newest and more.is_newest
        rows = [*shown.rows, *more.rows]
        shown = replace(more, rows=rows, version=shown.version, as_of=shown.as_of, is_newest=is_newest)
    return shown


def read_together(
    asked: Sequence[tuple[Board, Top | Around]], *, now: datetime, memory: BoardMemory
) -> list[ShownBoard | None]:
    """Read parts of several boards of pages, in two round trips to Redis, and nothing from PostgreSQL.

    None: only `read` can, or must once, so that the next time it is in memory. `Top` only from the first row on.
    """
    known = caught_up.known_tenants()
    listings = redis_reads.read_together([(board, _command(board, part)) for board, part in asked])
    if caught_up.known_tenants() is not known:  # a fault was noticed: maybe what answered is another server
        return [None] * len(asked)
    shown = {
        (board.tenant_id, row.subject)
        for (board, _), listing in zip(asked, listings, strict=True)
        if listing is not None
        for row in listing.rows
    }
    summaries.fetch(shown, memory)
    return [
        _show(board, part, listing, listing.total, now.date(), with_movement=True, memory=memory)
        if listing is not None and board.tenant_id in known and _is_in_memory(board, listing, now.date(), memory)
        else None
        for (board, part), listing in zip(asked, listings, strict=True)
    ]


def _is_in_memory(board: Board, listing: Listing, day: date, memory: BoardMemory) -> bool:
    """Whether all that rows show besides their values is kept: their pages, and the ranks of the day before."""
    if not memory.is_trusted() or memory.ranks.get((board, day - timedelta(days=1))) is None:
        return not listing.rows
    fields = memory.summaries.get_all((board.tenant_id, row.subject) for row in listing.rows)
    return all(one is not None and (not board.is_public or one.get("public") == "1") for one in fields)


def _command(board: Board, part: Top | Around) -> redis.Command:
    match part:
        case Top(limit, None):
            return redis_reads.top_command(board, limit)
        case Around(subject, n):
            return redis_reads.around_command(board, subject, n)
        case _:
            raise ValueError(f"not read together with others: {part}")


def _show(
    board: Board,
    part: Part,
    listing: Listing,
    total: int,
    day: date,
    *,
    with_movement: bool,
    memory: BoardMemory | None,
    hidden: int = 0,
) -> ShownBoard:
    """A part that was read, as a reader sees it. `hidden`: how many rows above it nobody may see."""
    if listing.source is not Source.REDIS or (memory is not None and not memory.is_trusted()):
        memory = None
    subjects = [row.subject for row in listing.rows]
    shown = summaries.of_subjects(board, subjects, trust_redis=listing.source is not Source.SNAPSHOT, memory=memory)
    has_ranks = isinstance(part, AsOf) or (board.is_users and not isinstance(part, Top))
    rows: list[Row] = []
    for row in listing.rows:
        if not _may_be_shown(board, row, shown):
            hidden += 1
        else:  # an earlier day's ranks stay what they were
            rows.append(row if not hidden or has_ranks else row._replace(rank=row.rank - hidden))
    before = _ranks_before(board, day, memory) if with_movement and rows else None
    return ShownBoard(
        board=board,
        rows=[_shown_row(row, shown, before) for row in rows],
        total=total if has_ranks else total - hidden,
        version=listing.version.number,
        source=listing.source,
        as_of=listing.as_of,
        next=listing.next if isinstance(part, Top | AsOf) else None,
        hidden=hidden,
        is_newest=listing.is_newest,
    )


def _without_leaving(board: Board, listing: Listing) -> Listing:
    """Single rows of a board of users, with their ranks among those who stay."""
    positions = [*(Position(row.value, row.member) for row in listing.rows), END]
    with transaction_for(board) as tx:
        *above, of_all = postgres_reads.count_leaving(tx, board, above=positions)
    rows = [row._replace(rank=row.rank - leaving) for row, leaving in zip(listing.rows, above, strict=True)]
    return replace(listing, rows=rows, total=listing.total - of_all)


def ranks_for(tx: Tx, question: RankQuestion) -> list[int | None]:
    """The ranks that entries have on a board of the transaction's tenant. None: far down, while Redis is away."""
    if not question.asked:
        return []
    ranks = caught_up.read_if_trusted(question.board, lambda: redis_reads.ranks_together([question])[0])
    return ranks if ranks is not None else postgres_reads.ranks_for(tx, question)


def known_ranks_together(questions: Sequence[RankQuestion]) -> list[list[int | None] | None]:
    """The ranks that entries have on several boards, in one round trip to Redis. None: only `ranks_for` can tell."""
    known = caught_up.known_tenants()
    ranks = redis_reads.ranks_together(questions)
    if caught_up.known_tenants() is not known:
        return [None] * len(questions)
    return [
        of_one if question.board.tenant_id in known else None for question, of_one in zip(questions, ranks, strict=True)
    ]


def _listing(board: Board, part: Part, *, now: datetime, at_least: int) -> tuple[Listing, int, date]:
    """The rows, how many the board has, and the day whose movement they show."""
    if isinstance(part, AsOf):
        with transaction_for(board) as tx:
            snapshot = snapshots.require_sealed(tx, board, part.day)
        return snapshot.all_of(limit=part.limit, after=part.after), snapshot.total, part.day
    listing = caught_up.read_if_trusted(board, partial(_from_redis, board, part))
    if listing is None or listing.version.number < at_least:
        newer = _newer_than(listing, board, part, now=now, at_least=at_least)
        if listing is None and caught_up.is_known(board):
            _ask_for_rebuild(board, newer)
        listing = newer
    return listing, listing.total, now.date()


def _from_redis(board: Board, part: Top | Only | Around) -> Listing | None:
    match part:
        case Top(limit, after):
            return redis_reads.read_top(board, limit=limit, after=after)
        case Only(subjects):
            return redis_reads.read_subjects(board, subjects)
        case Around(subject, n):
            return redis_reads.read_around(board, subject, n)


def _newer_than(
    behind: Listing | None, board: Board, part: Top | Only | Around, *, now: datetime, at_least: int
) -> Listing:
    """The part from PostgreSQL, at this version or a newer one; if it has none that is newer, what Redis answered."""
    with transaction_for(board) as tx:
        current = versions.read(tx, [board], now=now)[board].number
        if behind is not None and current <= behind.version.number:
            return behind
        if current >= at_least:
            return _from_postgres(tx, board, part, now=now, at_least=at_least, current=current)
    _wait_for_commit(board)
    with transaction_for(board) as tx:
        current = versions.read(tx, [board], now=now)[board].number
        return _from_postgres(tx, board, part, now=now, at_least=min(at_least, current), current=current)


def is_newest(board: Board, version: int, *, now: datetime) -> bool:
    """Whether PostgreSQL has no newer version than this one. Raises Busy while one may still be committed."""
    _wait_for_commit(board)
    with transaction_for(board) as tx:
        return versions.read(tx, [board], now=now)[board].number <= version


def _wait_for_commit(board: Board) -> None:
    """Redis shows a change some moments before its commit, which whoever has the lock may be about to do.

    The lock is released at once: a projection only tries it, and readers of the boards would never leave it.
    """
    with transaction_for(board) as tx:
        tx.set_statement_timeout(MAX_COMMIT_WAIT_MS)
        lock_boards(tx, board.tenant_id, shared=True)
        tx.set_statement_timeout(STATEMENT_TIMEOUT_MS)


def _from_postgres(
    tx: Tx, board: Board, part: Top | Only | Around, *, now: datetime, at_least: int, current: int
) -> Listing:
    """Read the live snapshot if it has the first rows at this version or a newer one, else the numbers.

    `current`: the version that PostgreSQL has.
    """
    match part:
        case Top(limit, after):
            snapshot = snapshots.live(tx, board, now=now)
            if snapshot is not None and snapshot.version.number >= at_least:
                listing = snapshot.part(limit=limit, after=after)
                if listing is not None:
                    return replace(listing, is_newest=snapshot.version.number >= current)
            return postgres_reads.read_top(tx, board, limit=limit, after=after, now=now)
        case Only(subjects):
            return postgres_reads.read_subjects(tx, board, subjects, now=now)
        case Around(subject, n):
            return postgres_reads.read_around(tx, board, subject, n, now=now)


def _ask_for_rebuild(board: Board, listing: Listing) -> None:
    """Redis did not have the board: have the tenant's boards checked, unless the board is empty."""
    if listing.total:
        with contextlib.suppress(RedisUnavailable), redis.boards().client() as client:
            redis_store.mark_incomplete(client, board.tenant_id)
            wake([board.tenant_id])


def _may_be_shown(board: Board, row: Row, shown: Mapping[str, Any]) -> bool:
    """A public board shows no row of a page that became private; a user board none of an erased user."""
    return row.subject in shown or not (board.is_public or board.is_users)


def _ranks_before(board: Board, day: date, memory: BoardMemory | None) -> RanksOfADay | None:
    """The ranks at the end of the day before."""
    yesterday = day - timedelta(days=1)
    kept = memory.ranks.get((board, yesterday)) if memory is not None else None
    if kept is not None:
        return kept[0]
    with transaction_for(board) as tx:
        ranks = snapshots.ranks_on(tx, board, yesterday)
    if memory is not None:
        memory.ranks.keep((board, yesterday), (ranks,), for_s=NO_RANKS_FOR_S if ranks is None else None)
    return ranks


def _shown_row(row: Row, shown: Mapping[str, Mapping[str, Any]], before: RanksOfADay | None) -> ShownRow:
    rank = before.ranks.get(row.subject) if before is not None else None
    return ShownRow(
        rank=row.rank,
        value=row.value,
        subject=row.subject,
        shown=shown.get(row.subject),
        rank_change=rank - row.rank if rank is not None else None,
        is_new=before is not None and rank is None and before.is_whole,
    )
