"""Overviews: the counts of a board's scope in a window, in the window before, and over time."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import TextClause, text
from sqlalchemy.exc import OperationalError

from analytics.boards.board_sql import in_scope, pages_in_scope, scope_parameters
from analytics.boards.names import Board
from analytics.boards.series import Point
from analytics.metrics import column, counted_metrics
from analytics.windows import HOUR, hour_of
from tenants.db import Tx

# How far back the trend of the window of all time goes.
TREND_OF_ALL = timedelta(days=90)
MAX_TREND_MS = 3_000


@dataclass(frozen=True)
class Overview:
    """A scope's counts in a window: the total, that of the window before, and points over time.

    If reading takes too long, there are no points and no previous total.
    """

    total: int
    previous: int | None = None
    points: list[Point] = field(default_factory=list)


def read(tx: Tx, board: Board, *, now: datetime) -> Overview:
    """The counts of the pages that are in the board's scope now, by its metric, which must be a counted one.

    The last point ends with the current hour, so that the points add up to the window. Read from the counted rows, not
    from `page_stats`: a projection publishes a change before it commits.
    """
    window = board.window
    end, step = hour_of(now) + HOUR, window.trend_step
    length = window.length or TREND_OF_ALL
    start = end - (2 * length if window.length else length)
    of_scope = scope_parameters(board)
    try:
        with tx.begin_nested():
            tx.execute(text(f"SET LOCAL statement_timeout = {MAX_TREND_MS}"))
            times = {"start": start, "end": end, "step": step.total_seconds()}
            counts = {row.bin: int(row.value) for row in tx.execute(_trend(board), {**of_scope, **times})}
            all_time = None if window.length else _sum(tx, _all_time(board), of_scope)
    except OperationalError as error:
        if getattr(error.orig, "sqlstate", None) != "57014":
            raise
        return Overview(_sum(tx, _projected(board), of_scope))
    bins = int(length / step)
    points = [Point(end - (bin_ + 1) * step, counts.get(bin_, 0)) for bin_ in reversed(range(bins))]
    if all_time is not None:
        return Overview(all_time, None, points)
    within = sum(point.value for point in points)
    return Overview(within, sum(counts.values()) - within, points)


def _sum(tx: Tx, statement: TextClause, parameters: dict[str, Any]) -> int:
    return int(tx.scalar(statement, parameters) or 0)


def _trend(board: Board) -> TextClause:
    source = counted_metrics()[board.metric]
    hour = f"date_trunc('hour', {source.time}, 'UTC')"
    return text(f"""
        SELECT floor((extract(epoch FROM :end - {hour}) - 1) / :step)::int AS bin, {source.aggregate} AS value
        FROM {source.table} c
        WHERE tenant_id = :tenant AND {source.time} >= :start AND {source.time} < :end AND {_of_pages(board)} GROUP BY 1
    """)  # noqa: S608  names from the table of metrics


def _all_time(board: Board) -> TextClause:
    total = counted_metrics()[board.metric].total
    return text(f"SELECT sum({total}) FROM page_counters c WHERE tenant_id = :tenant AND {_of_pages(board)}")  # noqa: S608  names from the table of metrics


def _projected(board: Board) -> TextClause:
    return text(f"SELECT sum({column(board.metric, board.window)}) FROM page_stats s WHERE {in_scope(board)}")  # noqa: S608  names from the table of metrics


def _of_pages(board: Board) -> str:
    """Which counted rows `c` are of the scope's pages. All of a tenant's are, without asking for its pages."""
    if board.scope == "tenant":
        return "true"
    return f"c.page_id IN (SELECT p.id FROM pages p WHERE {pages_in_scope(board)})"  # noqa: S608  our own names
