"""Filling boards anew from `page_stats`: after Redis was emptied, for a new space, or by command."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID

import structlog
from prometheus_client import Counter
from sqlalchemy import Row, text

from analytics import metrics
from analytics.boards import names, redis_store, versions
from analytics.boards.names import ALL_TENANTS, GLOBAL, Board, boards_in, summary_key
from analytics.boards.page_numbers import COLUMNS
from analytics.boards.redis_store import Rebuild, Standing
from analytics.locks import hold
from analytics.metrics import Value
from tenants import redis
from tenants.db import Tx, platform_tx

if TYPE_CHECKING:
    from redis import Redis

CHUNK = 5_000
MOST_TOLD = 20

log = structlog.get_logger()

REBUILT = Counter("plaudit_boards_rebuilt_total", "Boards filled anew.", ["tenant"])


def rebuild(
    tx: Tx,
    client: "Redis",
    wanted: Collection[Board],
    *,
    progress: Callable[[int], None] | None = None,
) -> list[Board]:
    """Fill these boards of one tenant anew from its numbers, scope by scope. Under the tenant's lock."""
    rebuilt: list[Board] = []
    tx.execute(text("SET LOCAL statement_timeout = 0"))
    current = versions.read(tx, wanted, now=tx.scalar(text("SELECT now()")))
    for scope in sorted({board.scope for board in wanted}):
        of_scope = [board for board in wanted if board.scope == scope]
        filling = Rebuild(client, of_scope)
        for rows in _users_in(tx, of_scope[0]) if of_scope[0].is_users else _stats_in(tx, scope):
            if of_scope[0].is_users:
                filling.add_places(_places(of_scope, rows))
            else:
                filling.add(_values(of_scope, rows), _summaries(scope, rows, tx.tenant_id))
            if progress is not None:
                progress(len(rows))
        rebuilt += filling.finish({board: current[board] for board in of_scope})
    for board in rebuilt:
        REBUILT.labels(board.tenant_id).inc()
    if rebuilt:
        scopes = sorted({board.scope for board in rebuilt})
        told = {"boards": len(rebuilt), "scopes": scopes[:MOST_TOLD]}
        log.info("boards filled anew", action="boards.rebuilt", tenantId=rebuilt[0].tenant_id, data=told)
    return rebuilt


def rebuild_global(*, only_missing: bool = True) -> list[Board]:
    """Fill the global boards anew, from every tenant that shares its public pages."""
    with platform_tx() as tx:
        hold(tx, ALL_TENANTS)
        with redis.boards().client() as client, looking(client, ALL_TENANTS) as standing:
            every = boards_in(ALL_TENANTS, GLOBAL)
            some = only_missing and standing is not Standing.ANOTHER
            wanted = redis_store.without_marker(client, every) if some else every
            return rebuild(tx, client, wanted) if wanted else []


@contextmanager
def looking(client: "Redis", tenant_id: str) -> Iterator[Standing]:
    """What Redis is to a tenant, while all of its boards are looked at; ready afterwards, if nothing came between."""
    standing = redis_store.standing(client, tenant_id)
    if standing is not Standing.READY:
        redis_store.begin_looking(client, tenant_id)
    yield standing
    if standing is not Standing.READY:
        redis_store.is_ready(client, tenant_id)


def all_boards(tx: Tx) -> list[Board]:
    """Every board that the tenant has, by its pages' spaces and its users' segments."""
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
            UNION SELECT scope FROM boards WHERE tenant_id = :tenant AND scope LIKE 'users:%' ORDER BY 1
        """),
        {"tenant": tx.tenant},
    ).all()
    return [board for scope in scopes for board in boards_in(tx.tenant, scope)]


def _stats_in(tx: Tx, scope: str) -> Iterator[Sequence[Row[Any]]]:
    """The numbers of the pages in a scope, a chunk at a time, by their ids."""
    kind, _, space = scope.partition(":")
    where = ["s.page_id > :after"]
    if scope != GLOBAL:
        where.append("s.tenant_id = :tenant")
    if space:
        where.append("s.space_key = :space")
    if kind == "public":
        where.append("s.is_public")
    if scope == GLOBAL:
        where.append("s.is_shared")
    query = text(f"""
        SELECT s.page_id, s.tenant_id, p.external_id, p.title, p.url, p.space_key, p.visibility = 'public' AS is_public,
               {", ".join(f"s.{name}" for name in COLUMNS)}
        FROM page_stats s LEFT JOIN pages p ON p.tenant_id = s.tenant_id AND p.id = s.page_id
        WHERE {" AND ".join(where)} ORDER BY s.page_id LIMIT {CHUNK}
    """)  # noqa: S608  fixed parts
    after = 0
    while True:
        rows = tx.run(query, {"tenant": tx.tenant_id, "space": space, "after": after}).all()
        if rows:
            yield rows
        if len(rows) < CHUNK:
            return
        after = rows[-1].page_id


def _users_in(tx: Tx, board: Board) -> Iterator[Sequence[Row[Any]]]:
    """The standings of the users on a board's scope, a chunk at a time."""
    query = text("""
        SELECT * FROM user_stats WHERE tenant_id = :tenant AND metric = :metric AND user_id > :after
          AND (CAST(:segment AS text) IS NULL OR segment = :segment) ORDER BY user_id LIMIT :limit
    """)
    after = UUID(int=0)
    while True:
        named = {"tenant": tx.tenant, "metric": board.metric.value, "segment": board.part}
        rows = tx.run(query, {**named, "after": after, "limit": CHUNK}).all()
        if rows:
            yield rows
        if len(rows) < CHUNK:
            return
        after = rows[-1].user_id


def _places(wanted: Sequence[Board], rows: Sequence[Row[Any]]) -> dict[Board, dict[str, tuple[str, Value]]]:
    return {
        board: {
            str(row.user_id): (getattr(row, f"member_{board.window}"), getattr(row, f"value_{board.window}"))
            for row in rows
            if getattr(row, f"value_{board.window}") > 0
        }
        for board in wanted
    }


def _values(wanted: Sequence[Board], rows: Sequence[Row[Any]]) -> dict[Board, dict[str, Value]]:
    first = 7  # the columns before the numbers
    places = {cell: first + place for place, cell in enumerate(metrics.CELLS)}
    values: dict[Board, dict[str, Value]] = {}
    for board in wanted:
        place = places[board.metric, board.window]
        values[board] = {str(row[0]): row[place] for row in rows if row[place]}
    return values


def _summaries(scope: str, rows: Sequence[Row[Any]], tenant_id: str | None) -> dict[str, Mapping[str, str]]:
    """What rows show of these pages; once is enough, with the scope that has them all."""
    if scope not in {"tenant", GLOBAL}:
        return {}
    owner = tenant_id or ALL_TENANTS
    return {
        summary_key(owner, str(row.page_id)): names.Summary(
            row.external_id, row.title, row.url, row.space_key, row.tenant_id, row.is_public
        ).fields()
        for row in rows
        if row.external_id is not None
    }
