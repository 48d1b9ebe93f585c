"""Whether Redis has everything that was projected into a tenant's boards, markers and all.

A Redis that hung, or that was away, has boards as they were before, with valid markers, until projections have written
what they could not write meanwhile; one that was restarted may have loaded an old dump. So after each failure and each
lost connection that this process notices, and when it starts, it trusts the boards of no tenant before PostgreSQL has
said that no projection of the tenant is unfinished. Until then it reads them from PostgreSQL. Afterwards a look into a
set is all it costs. The listener (`analytics.boards.listener`) notices faults while nobody reads.
"""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy import text

from analytics.boards import redis_store, versions
from analytics.boards.names import ALL_TENANTS, GLOBAL, Board, boards_in
from analytics.boards.redis_store import RedisState
from analytics.wake import wake
from tenants import redis
from tenants.db import platform_tx, tenant_tx, utcnow
from tenants.redis import RedisUnavailable

if TYPE_CHECKING:
    from redis import Redis

MAX_TENANTS = 100_000

Answer = TypeVar("Answer")


def known_tenants() -> AbstractSet[str]:
    """The tenants whose boards are trusted already: another set after each fault."""
    return redis.boards().outage.known_since


def read_if_trusted(board: Board, read: Callable[[], Answer | None]) -> Answer | None:
    """Return what `read` finds in Redis; None if the board is not trusted, or a fault is noticed before the answer.

    A closed connection is replaced during the read, and the new one may reach a server that has loaded an old dump.
    """
    known = known_tenants()
    answer = read() if is_trusted(board) else None
    # In a cluster whose other nodes are away, each attempt to reach them is such a fault.
    if answer is None or known_tenants() is known or redis.boards().partly_away_s > 0:
        return answer
    return None


def is_known(board: Board) -> bool:
    """Whether the board is trusted already. Asks nobody."""
    return board.tenant_id in known_tenants()


def is_trusted(board: Board) -> bool:
    """Whether the board in Redis may be read. If it is behind, a worker is woken."""
    known = redis.boards().outage.known_since
    if board.tenant_id in known:
        return True
    try:
        with redis.boards().client() as client:
            has_caught_up = _has_caught_up(client, board.tenant_id)
    except RedisUnavailable:
        # In a cluster, boards on other nodes are read there, until `projection` invalidates those that are behind.
        return redis.boards().partly_away_s > 0
    if not has_caught_up:
        wake([board.tenant_id])
        return False
    if len(known) >= MAX_TENANTS:
        known.clear()
    known.add(board.tenant_id)
    return True


def _has_caught_up(client: "Redis", tenant_id: str) -> bool:
    if redis_store.state(client, tenant_id) is RedisState.RESTARTED:
        return False
    if tenant_id != ALL_TENANTS:
        with tenant_tx(tenant_id) as tx:
            return not tx.run(_UNFINISHED, {"tenant": tenant_id})
    # Some tenant's projection is always about to finish, so the global boards are judged by their versions.
    boards = boards_in(ALL_TENANTS, GLOBAL)
    with platform_tx() as tx:
        current = versions.read(tx, boards, now=utcnow())
    return all(redis_store.published_version(client, board) >= current[board].number for board in boards)


_UNFINISHED = text("SELECT member FROM projecting WHERE tenant_id = :tenant LIMIT 1")
