"""A page over time, and spaces at a glance: reads straight from the tables."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import Row, select, text
from sqlalchemy.exc import OperationalError

from analytics.boards.page_numbers import PageStats, column
from analytics.metrics import CELLS, PAGE_METRICS, Metric
from analytics.windows import HOUR, Window, hour_of
from tenants.db import Tx
from tenants.errors import Invalid

MOST_POINTS = 2_000
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


class Counted(StrEnum):
    """What a series can count."""

    VIEWS = "views"
    LIKES = "likes"


@dataclass(frozen=True)
class Point:
    at: datetime
    value: int


def series(tx: Tx, page_id: int, counted: Counted, *, step: Step, start: datetime, end: datetime) -> list[Point]:
    """The page's views, or the likes that it still has, by the time they happened; 0 where there were none."""
    if not (EARLIEST <= start <= LATEST and EARLIEST <= end <= LATEST):
        said = f"between {EARLIEST:%Y} and {LATEST:%Y}"
        raise Invalid.field("from", said, detail=f"from, to: {said}")
    first, last = step.floor(start.astimezone(UTC)), step.floor(end.astimezone(UTC))
    if not first <= last or (last - first) / step.length >= MOST_POINTS:
        said = f"from must be before to, and at most {MOST_POINTS} {step.value}s apart"
        raise Invalid.field("from", said, detail=said)
    counts = {
        row.at: int(row.value)
        for row in tx.execute(
            _SERIES[counted],
            {"tenant": tx.tenant, "page": page_id, "step": step.value, "start": first, "end": last + step.length},
        )
    }
    points = int((last - first) / step.length) + 1
    moments = (first + place * step.length for place in range(points))
    return [Point(at, counts.get(at, 0)) for at in moments]


_SERIES = {
    Counted.VIEWS: text("""
        SELECT date_trunc(:step, bucket_hour, 'UTC') AS at, sum(views) AS value FROM page_views_hour
        WHERE tenant_id = :tenant AND page_id = :page AND bucket_hour >= :start AND bucket_hour < :end GROUP BY 1
    """),
    Counted.LIKES: text("""
        SELECT date_trunc(:step, created_at, 'UTC') AS at, count(*) AS value FROM page_likes
        WHERE tenant_id = :tenant AND page_id = :page AND created_at >= :start AND created_at < :end GROUP BY 1
    """),
}


@dataclass(frozen=True)
class Overview:
    """What a tenant or a space got in a window: in all, in the window before, and over time.

    Where there is too much to look through in time, there are no points and nothing before.
    """

    total: int
    previous: int | None = None
    points: list[Point] = field(default_factory=list)


# How long each point of an overview is. The last ends with the current hour, so that they add up to the window.
OVERVIEW_STEP = {
    Window.DAY: timedelta(hours=1),
    Window.WEEK: timedelta(hours=6),
    Window.MONTH: timedelta(days=1),
    Window.ALL: timedelta(days=3),
}
OVERVIEW_OF_ALL = timedelta(days=90)
TREND_WITHIN_MS = 3_000


def overview(
    tx: Tx, counted: Counted, window: Window, *, space: str | None, public_only: bool, now: datetime
) -> Overview:
    """By the pages that are in the space now (and public now), and the likes that they still have.

    Read from what is counted and not from the projection, which commits only after it has told everybody to look.
    """
    parameters = {"tenant": tx.tenant, "space": space, "public_only": public_only}
    end, step = hour_of(now) + HOUR, OVERVIEW_STEP[window]
    length = window.length or OVERVIEW_OF_ALL
    start = end - (2 * length if window.length else length)
    try:
        with tx.begin_nested():
            tx.execute(text(f"SET LOCAL statement_timeout = {TREND_WITHIN_MS}"))
            rows = tx.execute(_TREND[counted], {**parameters, "start": start, "end": end, "step": step.total_seconds()})
            counts = {row.bin: int(row.value) for row in rows}
            ever = None if window.length else int(tx.scalar(_EVER[counted], parameters) or 0)
    except OperationalError as error:
        if getattr(error.orig, "sqlstate", None) != "57014":
            raise
        return Overview(int(tx.scalar(_PROJECTED[counted, window], parameters) or 0))
    bins = int(length / step)
    points = [Point(end - (bin_ + 1) * step, counts.get(bin_, 0)) for bin_ in reversed(range(bins))]
    if ever is not None:
        return Overview(ever, None, points)
    within = sum(point.value for point in points)
    return Overview(within, sum(counts.values()) - within, points)


_WANTED = """((CAST(:space AS text) IS NULL AND NOT :public_only) OR c.page_id IN
             (SELECT id FROM pages WHERE tenant_id = :tenant AND (CAST(:space AS text) IS NULL OR space_key = :space)
              AND (NOT :public_only OR visibility = 'public')))"""
_TREND = {
    Counted.VIEWS: text(f"""
        SELECT floor((extract(epoch FROM :end - bucket_hour) - 1) / :step)::int AS bin, sum(views) AS value
        FROM page_views_hour c
        WHERE tenant_id = :tenant AND bucket_hour >= :start AND bucket_hour < :end AND {_WANTED} GROUP BY 1
    """),  # noqa: S608  constants
    Counted.LIKES: text(f"""
        SELECT floor((extract(epoch FROM :end - date_trunc('hour', created_at, 'UTC')) - 1) / :step)::int AS bin,
               count(*) AS value
        FROM page_likes c
        WHERE tenant_id = :tenant AND created_at >= :start AND created_at < :end AND {_WANTED} GROUP BY 1
    """),  # noqa: S608  constants
}
_EVER = {
    counted: text(f"""
        SELECT sum({counted}) FROM page_counters c WHERE tenant_id = :tenant AND {_WANTED}
    """)  # noqa: S608  constants
    for counted in Counted
}
_PROJECTED = {
    (counted, window): text(f"""
        SELECT sum({column(Metric(counted), window)}) FROM page_stats
        WHERE tenant_id = :tenant AND (CAST(:space AS text) IS NULL OR space_key = :space)
          AND (NOT :public_only OR is_public)
    """)  # noqa: S608  constants
    for counted in Counted
    for window in Window
}


def stats(tx: Tx, page_id: int, *, now: datetime) -> dict[str, Any]:
    """Each metric over each window, as the boards have it."""
    row = tx.scalar(select(PageStats).where(PageStats.page_id == page_id))
    numbers: dict[str, Any] = {metric.value: {} for metric in PAGE_METRICS}
    for metric, window in CELLS:
        numbers[metric.value][window.value] = getattr(row, column(metric, window)) if row is not None else 0
    return {**numbers, "as_of": row.computed_at if row is not None else now}


def counts_of(tx: Tx, page_ids: Sequence[int], window: Window) -> dict[int, tuple[int, int]]:
    """Likes and views of these pages in a window: what their scores are made of."""
    likes, views = column(Metric.LIKES, window), column(Metric.VIEWS, window)
    rows = tx.execute(
        select(PageStats.page_id, getattr(PageStats, likes), getattr(PageStats, views)).where(
            PageStats.page_id.in_(page_ids)
        )
    )
    return {row[0]: (row[1], row[2]) for row in rows}


def spaces(tx: Tx, *, after: str | None, limit: int, public_only: bool) -> Sequence[Row[Any]]:
    """The tenant's spaces by their keys: how many pages each has, and what they got in the last seven days.

    With `public_only` those that have public pages, and of these pages only.
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
