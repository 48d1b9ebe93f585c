"""Rebuilding boards from `page_stats` and `user_stats`: after Redis was emptied, for a new space, or by command.

Workers do it in steps, whose order and rests Redis knows: a board without marker is to be filled, one that is being
filled has a position (`analytics.boards.filling`). The tenant's ready key says so until none is left.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import structlog
from sqlalchemy import Row, TextClause, text

from analytics.boards import redis_store, timeline, versions
from analytics.boards.board_sql import in_scope, scope_parameters
from analytics.boards.filling import END, Filling
from analytics.boards.names import ALL_TENANTS, GLOBAL, Board, boards_in
from analytics.boards.page_numbers import COLUMNS
from analytics.boards.redis_store import RedisState
from analytics.boards.summaries import Summary, summary_key
from analytics.locks import lock_boards
from analytics.metrics import Value, column
from tenants import redis
from tenants.db import Tx, platform_tx
from tenants.metrics import Counter

if TYPE_CHECKING:
    from redis import Redis

# On each of a dozen boards: some 0.2 s.
MAX_ROWS_PER_QUERY = 2_000
# At least so much is done in each step, since it first looks which boards are missing.
MIN_STEP_S = 0.1
MAX_SCOPES_LOGGED = 20

log = structlog.get_logger()

REBUILT = Counter("plaudit_boards_rebuilt_total", "Boards rebuilt in Redis.", ["tenant"])


@dataclass
class Rebuilt:
    """The boards that were replaced. `more`: time is over, and others are left."""

    boards: list[Board]
    more: bool


def _never() -> bool:
    return False


def rebuild(
    tx: Tx,
    client: "Redis",
    wanted: Collection[Board],
    *,
    progress: Callable[[int], None] | None = None,
) -> list[Board]:
    """Fill these boards of one tenant again, from the start to the end; returns those replaced. Under its lock."""
    rebuilt, now = list[Board](), tx.scalar(text("SELECT now()"))
    for boards in _together(wanted):
        filling = Filling(client, boards, anew=True)
        _fill(tx, filling, boards, is_over=_never, progress=progress)
        rebuilt += filling.finish(versions.read(tx, boards, now=now))
    _note(rebuilt)
    return rebuilt


def complete(
    tx: Tx,
    client: "Redis",
    found_missing: Collection[Board],
    every: Callable[[], list[Board]],
    *,
    run: str,
    last_run: str | None,
    is_other_server: bool = False,
    is_over: Callable[[], bool] = _never,
) -> Rebuilt:
    """Fill what Redis has lost of a tenant's boards, until `is_over`, which is asked after each chunk. Under its lock.

    A board that is not filled has no marker, and is answered by PostgreSQL. So the next call finds what is left, and
    continues. `run`: Redis's run id. `last_run`: of the Redis in which the boards were last written; if that is another
    one, boards here are as old as those of a server that was restarted.
    """
    owner = tx.tenant_id or ALL_TENANTS
    state, missing = redis_store.state(client, owner, run=run), found_missing
    if last_run not in {None, run} and state is not RedisState.RESTARTED:
        state = RedisState.RESTARTED
        log.error(
            "boards were written in another Redis: every process must have the same REDIS_URL",
            action="boards.elsewhere",
            tenantId=owner,
        )
    if state is RedisState.RESTARTED or is_other_server:
        missing, state = every(), RedisState.INCOMPLETE
        redis_store.forget(client, owner, missing, run=run)
    elif state is RedisState.INCOMPLETE:
        missing = redis_store.without_marker(client, every())
    if state is RedisState.INCOMPLETE:
        redis_store.mark_rebuilding(client, owner, run=run)
    done = _fill_missing(tx, client, missing, is_over=is_over)
    if len(done.boards) < len(missing):
        redis_store.mark_incomplete(client, owner)
    elif state is RedisState.INCOMPLETE:
        redis_store.mark_complete(client, owner, run=run)
    return done


def _fill_missing(tx: Tx, client: "Redis", missing: Collection[Board], *, is_over: Callable[[], bool]) -> Rebuilt:
    done = Rebuilt([], more=False)
    if not missing:
        return done
    now, ends_at = tx.scalar(text("SELECT now()")), time.monotonic() + MIN_STEP_S

    def has_ended() -> bool:
        return time.monotonic() >= ends_at and is_over()

    together = list(_together(missing))
    for place, boards in enumerate(together, 1):
        filling = Filling(client, boards)
        if not _fill(tx, filling, boards, is_over=has_ended):
            done.more = True
            break
        done.boards += filling.finish(versions.read(tx, boards, now=now))
        if place < len(together) and has_ended():
            done.more = True
            break
    _note(done.boards)
    return done


def rebuild_global(*, now: datetime, only_missing: bool = True) -> list[Board]:
    """Rebuild the global boards to the end, from every tenant that shares its public pages. Returns those replaced."""
    if only_missing:
        return complete_global(now=now).boards
    wanted = boards_in(ALL_TENANTS, GLOBAL)
    with platform_tx() as tx, redis.boards().client() as client:
        lock_boards(tx, ALL_TENANTS)
        _start_over_if_other(tx, client, now=now)
        raised, run = versions.advance(tx, wanted, now=now), redis_store.run_id(client)
        redis_store.mark_rebuilding(client, ALL_TENANTS, run=run)
        rebuilt = rebuild(tx, client, wanted)
        if len(rebuilt) == len(wanted):
            redis_store.mark_complete(client, ALL_TENANTS, run=run)
        redis_store.publish(client, raised)
        redis_store.publish_resync(client, ALL_TENANTS)
    return rebuilt


def complete_global(*, now: datetime, is_over: Callable[[], bool] = _never) -> Rebuilt:
    """A step: fill the global boards that Redis has lost, until `is_over` says so."""
    wanted = boards_in(ALL_TENANTS, GLOBAL)
    with platform_tx() as tx, redis.boards().client() as client:
        lock_boards(tx, ALL_TENANTS)
        _start_over_if_other(tx, client, now=now)
        missing = redis_store.without_marker(client, wanted)
        run = redis_store.run_id(client)
        return complete(tx, client, missing, lambda: wanted, run=run, last_run=None, is_over=is_over)


def _start_over_if_other(tx: Tx, client: "Redis", *, now: datetime) -> None:
    """If the global boards were written on another server, delete from Redis whatever else was written there.

    Tenants rebuild the boards that they have, and nobody would those that were lost with the server. The global boards
    are deleted too, and then missing.
    """
    tx.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))  # all of Redis may have to be read
    server = timeline.current(tx)
    if timeline.is_other(timeline.of_global_boards(tx), server):
        wanted = boards_in(ALL_TENANTS, GLOBAL)
        raised = versions.advance(tx, wanted, now=now)
        redis_store.delete_older(client, min(version.number for version in raised.values()))
        redis_store.forget(client, ALL_TENANTS, wanted, run=redis_store.run_id(client))
        redis_store.publish(client, raised)
        redis_store.publish_resync(client, ALL_TENANTS)
    timeline.set_of_global_boards(tx, server)


def _note(rebuilt: Sequence[Board]) -> None:
    for board in rebuilt:
        REBUILT.labels(board.tenant_id).inc()
    if rebuilt:
        scopes = sorted({board.scope for board in rebuilt})
        data = {"boards": len(rebuilt), "scopes": scopes[:MAX_SCOPES_LOGGED]}
        log.info("boards rebuilt", action="boards.rebuilt", tenantId=rebuilt[0].tenant_id, data=data)


def all_boards(tx: Tx) -> list[Board]:
    """Every board that the tenant has: by its spaces and segments, present or past."""
    spaces = tx.scalars(
        text("""
            SELECT space_key FROM page_stats WHERE tenant_id = :tenant GROUP BY space_key
            UNION SELECT split_part(scope, ':', 2) FROM boards WHERE tenant_id = :tenant
                AND (scope LIKE 'space:%' OR scope LIKE 'public:%')
            ORDER BY 1
        """),
        {"tenant": tx.tenant},
    )
    scopes = ["tenant", "public", "users"]
    for space in spaces:
        scopes += [f"space:{space}", f"public:{space}"]
    scopes += tx.scalars(
        text("""
            SELECT 'users:' || segment FROM user_stats WHERE tenant_id = :tenant AND segment IS NOT NULL
            UNION SELECT 'users:' || s.segment FROM user_stats u CROSS JOIN unnest(u.segments[2:]) AS s(segment)
                WHERE u.tenant_id = :tenant AND u.segments[2] IS NOT NULL
            UNION SELECT scope FROM boards WHERE tenant_id = :tenant AND scope LIKE 'users:%' ORDER BY 1
        """),
        {"tenant": tx.tenant},
    ).all()
    return [board for scope in scopes for board in boards_in(tx.tenant, scope)]


def _together(wanted: Collection[Board]) -> Iterator[list[Board]]:
    """These boards of one tenant, grouped by the rows that they are made of: page boards of a scope have the same."""
    of = {board: (board.scope, board.metric.name if board.is_users else "") for board in wanted}
    for rows in sorted({*of.values()}):
        yield [board for board in wanted if of[board] == rows]


def _fill(
    tx: Tx,
    filling: Filling,
    boards: Sequence[Board],
    *,
    is_over: Callable[[], bool],
    progress: Callable[[int], None] | None = None,
) -> bool:
    """Add the rows that are not added yet, some at a time, until `is_over`; returns whether all are."""
    of_users, statement, parameters = boards[0].is_users, _statement(boards[0]), scope_parameters(boards[0])
    first = UUID(int=0) if of_users else 0
    tx.set_statement_timeout(0)
    while filling.position != END:
        rows = tx.run(statement, {**parameters, "after": filling.position or first})
        up_to = END if len(rows) < MAX_ROWS_PER_QUERY else str(rows[-1].user_id if of_users else rows[-1].page_id)
        if of_users:
            filling.add_users(_user_entries(boards, rows), up_to=up_to)
        else:
            filling.add_pages(_page_values(boards, rows), _summaries(boards[0].scope, rows, tx.tenant_id), up_to=up_to)
        if progress is not None:
            progress(len(rows))
        if up_to != END and is_over():
            return False
    return True


def _statement(board: Board) -> TextClause:
    """The next rows of a scope in the order of their key."""
    query, key = (_USERS, "user_id") if board.is_users else (_PAGES, "page_id")
    return text(f"{query} WHERE {in_scope(board)} AND s.{key} > :after ORDER BY s.{key} LIMIT {MAX_ROWS_PER_QUERY}")


_PAGES = f"""
    SELECT s.page_id, s.tenant_id, p.external_id, p.title, p.url, p.space_key, p.visibility = 'public' AS is_public,
           {", ".join(f"s.{name}" for name in COLUMNS)}
    FROM page_stats s LEFT JOIN pages p ON p.tenant_id = s.tenant_id AND p.id = s.page_id
"""  # noqa: S608  names from the table of metrics
_USERS = "SELECT s.* FROM user_stats s"


def _user_entries(boards: Sequence[Board], rows: Sequence[Row[Any]]) -> dict[Board, dict[str, tuple[str, Value]]]:
    entries: dict[Board, dict[str, tuple[str, Value]]] = {}
    for board in boards:
        member, value = f"member_{board.window}", f"value_{board.window}"
        entries[board] = {
            str(row.user_id): (getattr(row, member), getattr(row, value)) for row in rows if getattr(row, value) > 0
        }
    return entries


def _page_values(boards: Sequence[Board], rows: Sequence[Row[Any]]) -> dict[Board, dict[str, Value]]:
    values: dict[Board, dict[str, Value]] = {}
    for board in boards:
        name = column(board.metric, board.window)
        values[board] = {str(row.page_id): value for row in rows if (value := getattr(row, name))}
    return values


def _summaries(scope: str, rows: Sequence[Row[Any]], tenant_id: str | None) -> dict[str, Mapping[str, str]]:
    """What rows show of these pages: written once, with the scope that has them all."""
    if scope not in {"tenant", GLOBAL}:
        return {}
    owner = tenant_id or ALL_TENANTS
    return {
        summary_key(owner, str(row.page_id)): Summary(
            row.external_id, row.title, row.url, row.space_key, row.tenant_id, row.is_public
        ).fields()
        for row in rows
        if row.external_id is not None
    }
