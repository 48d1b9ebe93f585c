"""Where PostgreSQL has a board's rows: the one place that turns a scope into SQL."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from analytics.boards.names import Board
from analytics.metrics import column
from tenants.db import Tx, platform_tx, tenant_tx


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
    terms = [] if board.is_global else ["s.tenant_id = :tenant"]
    if board.is_users:
        terms.append("s.metric = :metric")
    if board.scope_key is not None:
        terms.append("s.segment = :scope_key" if board.is_users else "s.space_key = :scope_key")
    if board.is_global:
        terms.append("s.is_shared")
    elif board.is_public:
        terms.append("s.is_public")
    return " AND ".join(terms)


def scope_parameters(board: Board) -> dict[str, Any]:
    return {"tenant": board.tenant_id, "scope_key": board.scope_key, "metric": board.metric.name}


def transaction_for(board: Board) -> AbstractContextManager[Tx]:
    """A transaction that sees the board's rows."""
    return platform_tx() if board.is_global else tenant_tx(board.tenant_id)
