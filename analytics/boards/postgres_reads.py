"""Reading boards from PostgreSQL: slower than Redis, and always there."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import text

from analytics.boards import versions
from analytics.boards.board_sql import BoardRows, rows_of
from analytics.boards.names import Board
from analytics.boards.rows import Listing, Position, Row, Source, row_of
from analytics.metrics import Value
from tenants.db import Tx, array


def read_top(tx: Tx, board: Board, *, limit: int, after: Position | None, now: datetime) -> Listing:
    """The first rows, or those after a position."""
    of = rows_of(board)
    position = {} if after is None else {"value": after.value, "member": after.member}
    below = "true" if after is None else f"({of.value} < :value OR ({of.value} = :value AND {of.member} < :member))"
    parameters = {**of.parameters, **position, "limit": limit}
    totals = tx.execute(
        text(f"""
            SELECT count(*) AS total, count(*) FILTER (WHERE NOT {below}) AS above FROM {of.table} s WHERE {of.where}
        """),  # noqa: S608  names from the table of metrics
        parameters,
    ).one()
    rows = tx.execute(
        text(f"""
            SELECT {of.member} AS member, {of.value} AS value FROM {of.table} s WHERE {of.where} AND {below}
            ORDER BY {of.value} DESC, {of.member} DESC LIMIT :limit
        """),  # noqa: S608  names from the table of metrics
        parameters,
    ).all()
    listed = [row_of(board, rank, row.member, row.value) for rank, row in enumerate(rows, totals.above + 1)]
    return _listing(tx, board, listed, totals.total, now=now)


def read_subjects(tx: Tx, board: Board, subjects: Sequence[str], *, now: datetime) -> Listing:
    """The rows of these pages or users."""
    of = rows_of(board)
    parameters = {**of.parameters, "subjects": list(subjects)}
    rows = tx.execute(
        text(f"""
            SELECT m.member, m.value, 1 + (
                SELECT count(*) FROM {of.table} s WHERE {of.where}
                AND ({of.value} > m.value OR ({of.value} = m.value AND {of.member} > m.member COLLATE "C"))
            ) AS rank
            FROM (SELECT {of.member} AS member, {of.value} AS value FROM {of.table} s
                  WHERE {of.where} AND {of.subject}::text = ANY(CAST(:subjects AS text[]))) m
            ORDER BY rank
        """),  # noqa: S608  names from the table of metrics
        parameters,
    ).all()
    return _listing(tx, board, _ranked(board, rows), _total(tx, of), now=now)


def read_around(tx: Tx, board: Board, subject: str, n: int, *, now: datetime) -> Listing:
    """The row of a page or user, with the n above and below it."""
    of = rows_of(board)
    rows = tx.execute(
        text(f"""
            WITH ranked AS (
                SELECT {of.subject}::text AS subject, {of.member} AS member, {of.value} AS value,
                       row_number() OVER (ORDER BY {of.value} DESC, {of.member} DESC) AS rank
                FROM {of.table} s WHERE {of.where}
            ), own AS (SELECT rank FROM ranked WHERE subject = :subject)
            SELECT r.* FROM ranked r, own WHERE r.rank BETWEEN own.rank - :n AND own.rank + :n ORDER BY r.rank
        """),  # noqa: S608  names from the table of metrics
        {**of.parameters, "subject": subject, "n": n},
    ).all()
    return _listing(tx, board, _ranked(board, rows), _total(tx, of), now=now)


def ranks_for(tx: Tx, board: Board, values: Sequence[Value]) -> list[int]:
    """The rank that each value has: one more than there are rows above it."""
    of = rows_of(board)
    above = text(f"""
        SELECT (SELECT count(*) FROM {of.table} s WHERE {of.where} AND {of.value} > v.value) AS above
        FROM unnest(CAST(:values AS {board.metric.sql_type}[])) WITH ORDINALITY AS v(value, place) ORDER BY v.place
    """)  # noqa: S608  names from the table of metrics
    return [row.above + 1 for row in tx.execute(above, {**of.parameters, "values": array(values)})]


def _total(tx: Tx, of: BoardRows) -> int:
    return int(tx.scalar(text(f"SELECT count(*) FROM {of.table} s WHERE {of.where}"), of.parameters) or 0)  # noqa: S608


def _ranked(board: Board, rows: Sequence[Any]) -> list[Row]:
    return [row_of(board, row.rank, row.member, row.value) for row in rows]


def _listing(tx: Tx, board: Board, rows: Sequence[Row], total: int, *, now: datetime) -> Listing:
    version = versions.read(tx, [board], now=now)[board]
    return Listing(rows, total, version, Source.POSTGRES, version.changed_at)
