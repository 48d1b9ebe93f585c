"""Rebuilding boards from `page_stats` and `user_stats`: after Redis was emptied, for a new space, or by command."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import structlog
from sqlalchemy import Row, text

from analytics.boards import redis_store, timeline, versions
from analytics.boards.board_sql import in_scope, scope_parameters
from analytics.boards.names import ALL_TENANTS, GLOBAL, Board, boards_in
from analytics.boards.page_numbers import COLUMNS
from analytics.boards.redis_store import Rebuild, RedisState
from analytics.boards.summaries import Summary, summary_key
from analytics.locks import lock_boards
from analytics.metrics import Value, column
from tenants import redis
from tenants.db import Tx, platform_tx
from tenants.metrics import Counter

if TYPE_CHECKING:
    from redis import Redis

MAX_ROWS_PER_QUERY = 5_000
MAX_SCOPES_LOGGED = 20

log = structlog.get_logger()

REBUILT = Counter("plaudit_boards_rebuilt_total", "Boards rebuilt in Redis.", ["tenant"])


def rebuild(
    tx: Tx,
    client: "Redis",
    wanted: Collection[Board],
    *,
    progress: Callable[[int], None] | None = None,
) -> list[Board]:
    """Fill these boards of one tenant again, scope by scope; returns those replaced. Under the tenant's lock."""
    rebuilt: list[Board] = []
    if not wanted:
        return rebuilt
    tx.set_statement_timeout(0)
    current = versions.read(tx, wanted, now=tx.scalar(text("SELECT now()")))
    for scope in sorted({board.scope for board in wanted}):
        in_this_scope = [board for board in wanted if board.scope == scope]
        filling = Rebuild(client, in_this_scope)
        for boards, rows in _rows_of(tx, in_this_scope):
            if boards[0].is_users:
                filling.add_users(_user_entries(boards, rows))
            else:
                filling.add_pages(_page_values(boards, rows), _summaries(scope, rows, tx.tenant_id))
            if progress is not None:
                progress(len(rows))
        rebuilt += filling.finish({board: current[board] for board in in_this_scope})
    for board in rebuilt:
        REBUILT.labels(board.tenant_id).inc()
    if rebuilt:
        scopes = sorted({board.scope for board in rebuilt})
        data = {"boards": len(rebuilt), "scopes": scopes[:MAX_SCOPES_LOGGED]}
        log.info("boards rebuilt", action="boards.rebuilt", tenantId=rebuilt[0].tenant_id, data=data)
    return rebuilt


def rebuild_global(*, now: datetime, only_missing: bool = True) -> list[Board]:
    """Rebuild the global boards, from every tenant that shares its public pages.

    If they were written on another server, whatever else was written there is deleted from Redis: tenants rebuild the
    boards that they have, and nobody would those that were lost with the server.
    """
    wanted = boards_in(ALL_TENANTS, GLOBAL)
    with platform_tx() as tx:
        lock_boards(tx, ALL_TENANTS)
        tx.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))  # all of Redis may have to be read
        server = timeline.current(tx)
        is_other = timeline.is_other(timeline.of_global_boards(tx), server)
        raised = versions.advance(tx, wanted, now=now) if is_other or not only_missing else {}
        with redis.boards().client() as client:
            if is_other:
                redis_store.delete_older(client, min(version.number for version in raised.values()))
            with redis_store.completing(client, ALL_TENANTS) as state:
                if only_missing and not raised and state is not RedisState.RESTARTED:
                    wanted = redis_store.without_marker(client, wanted)
                rebuilt = rebuild(tx, client, wanted)
            if raised:
                redis_store.publish(client, raised)
                redis_store.publish_resync(client, ALL_TENANTS)
        timeline.set_of_global_boards(tx, server)
    return rebuilt


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


def _rows_of(tx: Tx, boards: Sequence[Board]) -> Iterator[tuple[Sequence[Board], Sequence[Row[Any]]]]:
    """The saved numbers of a scope, some rows at a time, with the boards that are made of them."""
    if not boards[0].is_users:
        for rows in _by_key(tx, boards[0], _PAGES, "page_id", 0):
            yield boards, rows
        return
    for metric in dict.fromkeys(board.metric for board in boards):
        of_metric = [board for board in boards if board.metric is metric]
        for rows in _by_key(tx, of_metric[0], _USERS, "user_id", UUID(int=0)):
            yield of_metric, rows


def _by_key(tx: Tx, board: Board, query: str, key: str, after: int | UUID) -> Iterator[Sequence[Row[Any]]]:
    """The rows of a scope in the order of their key, a bounded number at a time."""
    statement = text(
        f"{query} WHERE {in_scope(board)} AND s.{key} > :after ORDER BY s.{key} LIMIT {MAX_ROWS_PER_QUERY}"
    )
    while True:
        rows = tx.run(statement, {**scope_parameters(board), "after": after})
        if rows:
            yield rows
        if len(rows) < MAX_ROWS_PER_QUERY:
            return
        after = getattr(rows[-1], key)


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
