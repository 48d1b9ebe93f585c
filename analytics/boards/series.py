"""A page's counts over time: read from the counted rows, not from boards."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from sqlalchemy import TextClause, text

from analytics.metrics import Counted, Metric, counted_metrics
from analytics.windows import Window
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

    @property
    def usual_window(self) -> Window:
        """What is read by this step unless a caller says otherwise."""
        return Window.WEEK if self is Step.HOUR else Window.MONTH

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
