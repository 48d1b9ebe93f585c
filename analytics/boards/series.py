"""Counts over time, and summaries of spaces: read from the tables, not from boards."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import Row, TextClause, select, text
from sqlalchemy.exc import OperationalError

from analytics.boards.page_numbers import PageStats
from analytics.metrics import Counted, Metric, column, counted_metrics, page_columns, page_metrics
from analytics.windows import HOUR, Window, hour_of
from tenants.db import Tx
from tenants.errors import Invalid

MAX_POINTS = 2_000
EARLIEST, LATEST = datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)


class Step(StrEnum):
    HOUR = "hour"
    DAY = "day"

    @property
    def length(self) -> timedelta:
        return timedelta(hours=1) if self is Step.HOUR else timedelta(days=1)

    def floor(self, moment: datetime) -> datetime:
        hour = moment.replace(minute=0, second=0, microsecond=0)
        return hour if self is Step.HOUR else hour.replace(hour=0)


@dataclass(frozen=True)
class Point:
    at: datetime
    value: int


def series(tx: Tx, page_id: int, metric: Metric, *, step: Step, start: datetime, end: datetime) -> list[Point]:
    """A page's counts of a counted metric by the time they happened; 0 where there were none."""
    if not (EARLIEST <= start <= LATEST and EARLIEST <= end <= LATEST):
        message = f"between {EARLIEST:%Y} and {LATEST:%Y}"
        raise Invalid.field("from", message, detail=f"from, to: {message}")
    first, last = step.floor(start.astimezone(UTC)), step.floor(end.astimezone(UTC))
    if not first <= last or (last - first) / step.length >= MAX_POINTS:
        message = f"from must be before to, and at most {MAX_POINTS} {step.value}s apart"
        raise Invalid.field("from", message, detail=message)
    counts = {
        row.at: int(row.value)
        for row in tx.execute(
            _SERIES[metric],
            {"tenant": tx.tenant, "page": page_id, "step": step.value, "start": first, "end": last + step.length},
        )
    }
    points = int((last - first) / step.length) + 1
    moments = (first + place * step.length for place in range(points))
    return [Point(at, counts.get(at, 0)) for at in moments]


def _series_sql(source: Counted) -> TextClause:
    return text(f"""
        SELECT date_trunc(:step, {source.time}, 'UTC') AS at, {source.aggregate} AS value FROM {source.table}
        WHERE tenant_id = :tenant AND page_id = :page AND {source.time} >= :start AND {source.time} < :end GROUP BY 1
    """)  # noqa: S608  names from the table of metrics


_SERIES = {metric: _series_sql(source) for metric, source in counted_metrics().items()}


@dataclass(frozen=True)
class Overview:
    """A tenant's or a space's counts in a window: the total, that of the window before, and points over time.

    If reading takes too long, there are no points and no previous total.
    """

    total: int
    previous: int | None = None
    points: list[Point] = field(default_factory=list)


# How far back the trend of the window of all time goes.
TREND_OF_ALL = timedelta(days=90)
MAX_TREND_MS = 3_000


def overview(
    tx: Tx, metric: Metric, window: Window, *, space: str | None, public_only: bool, now: datetime
) -> Overview:
    """The counts of the pages that are in the space now (and public now), with their current likes.

    The last point ends with the current hour, so that the points add up to the window. Read from the counted rows, not
    from `page_stats`: a projection announces a change before it commits.
    """
    parameters = {"tenant": tx.tenant, "space": space, "public_only": public_only}
    end, step = hour_of(now) + HOUR, window.trend_step
    length = window.length or TREND_OF_ALL
    start = end - (2 * length if window.length else length)
    try:
        with tx.begin_nested():
            tx.execute(text(f"SET LOCAL statement_timeout = {MAX_TREND_MS}"))
            rows = tx.execute(_TREND[metric], {**parameters, "start": start, "end": end, "step": step.total_seconds()})
            counts = {row.bin: int(row.value) for row in rows}
            all_time = None if window.length else int(tx.scalar(_ALL_TIME[metric], parameters) or 0)
    except OperationalError as error:
        if getattr(error.orig, "sqlstate", None) != "57014":
            raise
        return Overview(int(tx.scalar(_PROJECTED[metric, window], parameters) or 0))
    bins = int(length / step)
    points = [Point(end - (bin_ + 1) * step, counts.get(bin_, 0)) for bin_ in reversed(range(bins))]
    if all_time is not None:
        return Overview(all_time, None, points)
    within = sum(point.value for point in points)
    return Overview(within, sum(counts.values()) - within, points)


_WANTED = """((CAST(:space AS text) IS NULL AND NOT :public_only) OR c.page_id IN
             (SELECT id FROM pages WHERE tenant_id = :tenant AND (CAST(:space AS text) IS NULL OR space_key = :space)
              AND (NOT :public_only OR visibility = 'public')))"""


def _trend_sql(source: Counted) -> TextClause:
    hour = f"date_trunc('hour', {source.time}, 'UTC')"
    return text(f"""
        SELECT floor((extract(epoch FROM :end - {hour}) - 1) / :step)::int AS bin, {source.aggregate} AS value
        FROM {source.table} c
        WHERE tenant_id = :tenant AND {source.time} >= :start AND {source.time} < :end AND {_WANTED} GROUP BY 1
    """)  # noqa: S608  names from the table of metrics


_TREND = {metric: _trend_sql(source) for metric, source in counted_metrics().items()}
_ALL_TIME = {
    metric: text(f"SELECT sum({source.total}) FROM page_counters c WHERE tenant_id = :tenant AND {_WANTED}")  # noqa: S608  names from the table of metrics
    for metric, source in counted_metrics().items()
}
_PROJECTED = {
    (metric, window): text(f"""
        SELECT sum({column(metric, window)}) FROM page_stats
        WHERE tenant_id = :tenant AND (CAST(:space AS text) IS NULL OR space_key = :space)
          AND (NOT :public_only OR is_public)
    """)  # noqa: S608  names from the table of metrics
    for metric in counted_metrics()
    for window in Window
}


def stats(tx: Tx, page_id: int, *, now: datetime) -> dict[str, Any]:
    """A page's value of each metric over each window, as on the boards."""
    row = tx.scalar(select(PageStats).where(PageStats.page_id == page_id))
    numbers: dict[str, Any] = {metric.name: {} for metric in page_metrics()}
    for name, (metric, window) in page_columns().items():
        numbers[metric.name][window.value] = getattr(row, name) if row is not None else 0
    return {**numbers, "as_of": row.computed_at if row is not None else now}


def counts_of(tx: Tx, page_ids: Sequence[int], window: Window) -> dict[int, dict[str, int]]:
    """The counts of these pages in a window by metric name: the inputs of their scores."""
    names = {metric.name: column(metric, window) for metric in counted_metrics()}
    rows = tx.scalars(select(PageStats).where(PageStats.page_id.in_(page_ids)))
    return {row.page_id: {name: getattr(row, column_) for name, column_ in names.items()} for row in rows}


def spaces(tx: Tx, *, after: str | None, limit: int, public_only: bool) -> Sequence[Row[Any]]:
    """The tenant's spaces by their keys: how many pages each has, and their counts of the last seven days.

    With `public_only` only public pages are counted, and only spaces that have some are listed.
    """
    return tx.execute(
        text("""
            SELECT p.space_key AS space, count(*) AS pages,
                   count(*) FILTER (WHERE p.visibility = 'public') AS public_pages,
                   COALESCE(sum(s.views_7d), 0)::bigint AS views_7d, COALESCE(sum(s.likes_7d), 0)::bigint AS likes_7d
            FROM pages p LEFT JOIN page_stats s ON s.tenant_id = p.tenant_id AND s.page_id = p.id
            WHERE p.tenant_id = :tenant AND (CAST(:after AS text) IS NULL OR p.space_key > :after)
              AND (NOT :public_only OR p.visibility = 'public')
            GROUP BY p.space_key ORDER BY p.space_key LIMIT :limit
        """),
        {"tenant": tx.tenant, "after": after, "limit": limit, "public_only": public_only},
    ).all()
