"""Page numbers: each page's value of each metric over each window, computed from what was counted.

`page_stats` is what page boards are made of. Its columns follow from the tables of metrics and windows.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from operator import itemgetter
from typing import Any

from sqlalchemy import BigInteger, Double, Index, select, text
from sqlalchemy.orm import Mapped, mapped_column

from analytics.boards.names import page_scopes
from analytics.boards.summaries import Summary
from analytics.metrics import Computed, Counted, Value, column, counted_metrics, page_columns, page_metrics
from analytics.scoring import Weights
from analytics.windows import SLIDING, Window, bounds
from tenants.db import Base, DeletedWithTenant, Tx, array
from tenants.group_tx import read_one

COLUMNS = tuple(page_columns())
ALL_ZERO: tuple[Value, ...] = (0,) * len(COLUMNS)


class PageStats(DeletedWithTenant, Base):
    """A page's numbers, and the space and visibility under which it is on the boards."""

    __tablename__ = "page_stats"
    __table_args__ = (
        Index("ix_page_stats_space", "tenant_id", "space_key"),
        Index("ix_page_stats_public", "tenant_id", "is_shared", "page_id", postgresql_where=text("is_public")),
    )

    page_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    space_key: Mapped[str]
    is_public: Mapped[bool]
    is_shared: Mapped[bool]
    page_updated_at: Mapped[datetime]
    computed_at: Mapped[datetime]


for _name, (_metric, _window) in page_columns().items():
    setattr(PageStats, _name, mapped_column(BigInteger if _metric.is_whole else Double, nullable=False))


@dataclass(frozen=True)
class PageNumbers:
    """A page on the boards: in which scopes, and with which values, in the order of COLUMNS."""

    space: str
    is_public: bool
    is_shared: bool
    updated_at: datetime
    values: tuple[Value, ...]

    @cached_property
    def scopes(self) -> list[str]:
        return page_scopes(self.space, is_public=self.is_public, is_shared=self.is_shared)


@dataclass(frozen=True)
class PageChange:
    """A page's numbers as they are saved, and as they are now; None: on no board."""

    page_id: int
    before: PageNumbers | None
    now: PageNumbers | None
    summary: Summary | None

    @cached_property
    def member(self) -> str:
        return str(self.page_id)


def stats(tenant_id: str, external_id: str, *, public_only: bool, now: datetime) -> dict[str, Any] | None:
    """A page's value of each metric over each window, as on the boards. None: there is no such page."""
    row = read_one(tenant_id, _STATS, (tenant_id, external_id, public_only))
    if row is None:
        return None
    numbers: dict[str, Any] = {metric.name: {} for metric in page_metrics()}
    for name, (metric, window) in page_columns().items():
        numbers[metric.name][window.value] = getattr(row, name) if row.computed_at is not None else 0
    return {**numbers, "as_of": row.computed_at or now}


def counts_of(tx: Tx, page_ids: Sequence[int], window: Window) -> dict[int, dict[str, int]]:
    """The counts of these pages in a window by metric name: the inputs of their scores."""
    names = {metric.name: column(metric, window) for metric in counted_metrics()}
    rows = tx.scalars(select(PageStats).where(PageStats.page_id.in_(page_ids)))
    return {row.page_id: {name: getattr(row, column_) for name, column_ in names.items()} for row in rows}


def compute(
    tx: Tx, page_ids: Collection[int], *, now: datetime, weights: Weights, shared: bool, add: bool = False
) -> list[PageChange]:
    """These pages' numbers as of now, beside the saved ones. Only reads.

    `shared`: whether the tenant shares its public pages with the global boards. `add`: the saved numbers are those of
    this hour, but for what the outbox has. Then a page whose rows there all name hours that are in every window has the
    same change in each of them: what its totals have more than the saved ones. Outbox and totals are of one moment,
    since they are read by one statement. Without it, or if a row says otherwise, everything is counted again.
    """
    parameters = {"tenant": tx.tenant, "pages": array(sorted(page_ids)), "add": add, **bounds(now)}
    rows = tx.run(_COMPUTE, parameters)
    return list(_changes(tx.tenant, rows, weights, shared=shared))


def _changes(tenant_id: str, rows: Sequence[Any], weights: Weights, *, shared: bool) -> Iterator[PageChange]:
    if not rows:
        return
    saved_values = _by_name(rows[0], [f"saved_{name}" for name in COLUMNS])
    counts = _by_name(rows[0], [column(metric, window) for window in Window for metric in counted_metrics()])
    for row in rows:
        before = now = summary = None
        if row.saved_space is not None:
            before = PageNumbers(
                row.saved_space, row.saved_public, row.saved_shared, row.saved_updated_at, saved_values(row)
            )
        if row.space_key is not None:
            public = row.visibility == "public"
            summary = Summary(row.external_id, row.title, row.url, row.space_key, tenant_id, public)
            values = _values(counts(row), weights)
            if values != ALL_ZERO:  # else it is on no board, and not worth a row
                now = PageNumbers(row.space_key, public, public and shared, row.updated_at, values)
        yield PageChange(row.page_id, before, now, summary)


def _by_name(first: Any, names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Reads these columns of rows like the first one; their positions are looked up once."""
    positions = {name: position for position, name in enumerate(first._fields)}
    getter: Callable[[Any], tuple[Any, ...]] = itemgetter(*(positions[name] for name in names))
    return getter


def _values(counts: Sequence[int], weights: Weights) -> tuple[Value, ...]:
    """Every metric over every window, in the order of COLUMNS; `counts` are by window, then by counted metric."""
    names = [metric.name for metric in counted_metrics()]
    by_window: list[Mapping[str, int]] = [
        dict(zip(names, counts[start : start + len(names)], strict=True)) for start in range(0, len(counts), len(names))
    ]
    values: list[Value] = []
    for metric in page_metrics():
        match metric.source:
            case Counted():
                values += [counted[metric.name] for counted in by_window]
            case Computed(value):
                values += [value(weights, counted) for counted in by_window]
    return tuple(values)


def save(tx: Tx, changes: Sequence[PageChange], *, now: datetime) -> None:
    """Write the numbers that differ from the saved ones."""
    gone = [change.page_id for change in changes if change.now is None and change.before is not None]
    if gone:
        tx.run(_DELETE, {"tenant": tx.tenant, "pages": array(gone)})
    kept = [(one.page_id, one.now) for one in changes if one.now is not None and one.now != one.before]
    if kept:
        tx.run(
            _SAVE,
            {
                "tenant": tx.tenant,
                "pages": array(page_id for page_id, _ in kept),
                "spaces": [page.space for _, page in kept],
                "public": array("t" if page.is_public else "f" for _, page in kept),
                "shared": array("t" if page.is_shared else "f" for _, page in kept),
                "updated": [page.updated_at for _, page in kept],
                "now": now,
                **{name: array(page.values[place] for _, page in kept) for place, name in enumerate(COLUMNS)},
            },
        )


def _counts_sql(name: str, source: Counted) -> str:
    """A page's counts in each sliding window, as one row with a column for each."""
    sums = ", ".join(
        f"COALESCE({source.aggregate} FILTER (WHERE {source.time} >= :start_{window}), 0)::bigint AS {name}_{window}"
        for window in SLIDING
    )
    return f"""
        CROSS JOIN LATERAL (
            SELECT {sums} FROM {source.table}
            WHERE NOT saved.is_base
              AND tenant_id = :tenant AND page_id = w.page_id AND {source.time} >= :oldest AND {source.time} < :end
        ) {name}_counts
    """  # noqa: S608  names from the table of metrics


def _values_sql(name: str, source: Counted) -> str:
    """A page's counts in each window: counted, or added to the saved ones."""
    totals = f"COALESCE(c.{source.total}, 0)"
    added = (
        f"CASE WHEN saved.is_base THEN s.{name}_{window} + {totals} - s.{name}_{Window.ALL}"
        f" ELSE {name}_counts.{name}_{window} END AS {name}_{window}"
        for window in SLIDING
    )
    return ", ".join((*added, f"{totals} AS {name}_{Window.ALL}"))


_COUNTED = {metric.name: source for metric, source in counted_metrics().items()}
_COMPUTE = text(f"""
    WITH changed AS MATERIALIZED (
        SELECT DISTINCT o.member FROM outbox o WHERE :add AND o.tenant_id = :tenant AND o.kind = 'page'
        AND (o.hour IS NULL OR o.hour < :newest OR o.hour >= :end)
    )
    SELECT w.page_id, p.space_key, p.visibility, p.external_id, p.title, p.url, p.updated_at,
           s.space_key AS saved_space, s.is_public AS saved_public, s.is_shared AS saved_shared,
           s.page_updated_at AS saved_updated_at,
           {", ".join(_values_sql(name, source) for name, source in _COUNTED.items())},
           {", ".join(f"s.{name} AS saved_{name}" for name in COLUMNS)}
    FROM unnest(CAST(:pages AS bigint[])) AS w(page_id)
    LEFT JOIN pages p ON p.tenant_id = :tenant AND p.id = w.page_id
    LEFT JOIN page_counters c ON c.tenant_id = :tenant AND c.page_id = w.page_id
    LEFT JOIN page_stats s ON s.tenant_id = :tenant AND s.page_id = w.page_id
    LEFT JOIN changed ON changed.member = w.page_id::text
    CROSS JOIN LATERAL (SELECT :add AND s.page_id IS NOT NULL AND changed.member IS NULL AS is_base) saved
    {"".join(_counts_sql(name, source) for name, source in _COUNTED.items())}
""")  # noqa: S608  names from the table of metrics

_STATS = f"""
    SELECT s.computed_at, {", ".join(f's."{name}"' for name in COLUMNS)}
    FROM pages p LEFT JOIN page_stats s ON s.tenant_id = p.tenant_id AND s.page_id = p.id
    WHERE p.tenant_id = %s AND p.external_id = %s AND (NOT %s OR p.visibility = 'public')
"""  # noqa: S608  names from the table of metrics

_DELETE = text("DELETE FROM page_stats WHERE tenant_id = :tenant AND page_id = ANY(CAST(:pages AS bigint[]))")

_SAVE = text(f"""
    INSERT INTO page_stats (tenant_id, page_id, space_key, is_public, is_shared, page_updated_at, computed_at,
                            {", ".join(COLUMNS)})
    SELECT t.id, w.page_id, w.space_key, w.is_public, w.is_shared, w.page_updated_at, CAST(:now AS timestamptz),
           {", ".join(f"w.{name}" for name in COLUMNS)}
    FROM tenants t CROSS JOIN
         unnest(CAST(:pages AS bigint[]), CAST(:spaces AS text[]), CAST(:public AS boolean[]),
                CAST(:shared AS boolean[]), CAST(:updated AS timestamptz[]),
                {", ".join(f"CAST(:{name} AS {metric.sql_type}[])" for name, (metric, _) in page_columns().items())})
         AS w(page_id, space_key, is_public, is_shared, page_updated_at, {", ".join(COLUMNS)})
    WHERE t.id = :tenant
    ON CONFLICT (tenant_id, page_id) DO UPDATE SET
        space_key = EXCLUDED.space_key, is_public = EXCLUDED.is_public, is_shared = EXCLUDED.is_shared,
        page_updated_at = EXCLUDED.page_updated_at, computed_at = EXCLUDED.computed_at,
        {", ".join(f"{name} = EXCLUDED.{name}" for name in COLUMNS)}
""")  # noqa: S608  names from the table of metrics
