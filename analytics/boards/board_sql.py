"""Where PostgreSQL has a board's rows: the one place that turns a scope into SQL.

Tables have one name each in these expressions: `s` is page_stats or user_stats, `p` is pages.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from analytics.boards.names import Board
from analytics.metrics import column
from tenants import segments
from tenants.db import Tx, platform_tx, tenant_tx

_IN_SEGMENT = f"({' OR '.join(f's.{column} = :scope_key' for column in segments.COLUMNS)})"


@dataclass(frozen=True)
class BoardRows:
    """SQL expressions over the table `s`: whose row it is, its value, and its member in a sorted set's own order."""

    table: str
    subject: str
    value: str
    member: str
    # The rows that are on the board, by the parameters below.
    where: str
    parameters: dict[str, Any]


def rows_of(board: Board) -> BoardRows:
    if board.is_users:
        value, member = f"s.value_{board.window}", f's.member_{board.window} COLLATE "C"'
        table, subject = "user_stats", "s.user_id"
    else:
        value, member = f"s.{column(board.metric, board.window)}", 's.page_id::text COLLATE "C"'
        table, subject = "page_stats", "s.page_id"
    return BoardRows(table, subject, value, member, f"{value} > 0 AND {in_scope(board)}", scope_parameters(board))


def in_scope(board: Board) -> str:
    """Which rows `s` of page_stats or user_stats are in the board's scope, whatever their value."""
    if board.is_users:
        return _all_of(_of_tenant(board, "s"), "s.metric = :metric", board.scope_key and _IN_SEGMENT)
    return _all_of(_of_tenant(board, "s"), board.scope_key and "s.space_key = :scope_key", _public_numbers(board))


def pages_in_scope(board: Board) -> str:
    """Which rows `p` of pages are in a tenant's page scope, by what the page is now, projected or not."""
    is_public = "p.visibility = 'public'" if board.is_public else None
    return _all_of(_of_tenant(board, "p"), board.scope_key and "p.space_key = :scope_key", is_public)


def may_show(board: Board) -> str:
    """Which rows `p` of pages a row of the board may show, whatever their space is now.

    A public board shows only pages that are public now and are on such boards by their saved numbers.
    """
    if not board.is_public:
        return _of_tenant(board, "p") or "true"
    numbers = f"""EXISTS (SELECT FROM page_stats s WHERE s.tenant_id = p.tenant_id AND s.page_id = p.id
                          AND {_public_numbers(board)})"""
    return _all_of(_of_tenant(board, "p"), "p.visibility = 'public'", numbers)


def scope_parameters(board: Board) -> dict[str, Any]:
    return {"tenant": board.tenant_id, "scope_key": board.scope_key, "metric": board.metric.name}


def transaction_for(board: Board) -> AbstractContextManager[Tx]:
    """A transaction that sees the board's rows."""
    return platform_tx() if board.is_global else tenant_tx(board.tenant_id)


def _of_tenant(board: Board, table: str) -> str | None:
    return None if board.is_global else f"{table}.tenant_id = :tenant"


def _public_numbers(board: Board) -> str | None:
    if board.is_global:
        return "s.is_shared"
    return "s.is_public" if board.is_public else None


def _all_of(*terms: str | None) -> str:
    return " AND ".join(term for term in terms if term)
