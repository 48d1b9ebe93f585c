"""Rollups: each page's numbers over each window, computed from likes and hourly buckets.

`page_stats` is what boards are made of. Its cost follows what changed: a page is computed anew when something of it
moved (the outbox says so), when hours of it left a window (`slide`), when the weights changed (`to_reweigh`), or when
the tenant began or stopped sharing its public pages (`to_reshare`).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, Double, ForeignKey, Index, Integer, text
from sqlalchemy.orm import Mapped, mapped_column

from analytics import outbox, scoring
from analytics.boards.names import Summary, scopes_of
from analytics.metrics import CELLS, NOTHING, Metric, Value
from analytics.scoring import Weights
from analytics.windows import LONGEST, SLIDING, Window, crossed, hour_of
from tenants.db import Base, TenantOwned, Tx, array

# A worker that was away for long catches up in steps of this many hours, each a transaction of its own.
MOST_HOURS_A_STEP = 24
REWEIGH_A_STEP = 5_000
RESHARE_A_STEP = 5_000


class PageStats(TenantOwned, Base):
    """A page's numbers, and the space and visibility under which it is on the boards."""

    __tablename__ = "page_stats"
    __table_args__ = (
        Index("ix_page_stats_space", "tenant_id", "space_key"),
        Index("ix_page_stats_public", "tenant_id", "is_shared", "page_id", postgresql_where=text("is_public")),
    )

    tenant_id: Mapped[str] = mapped_column(
        ForeignKey("tenants.id", ondelete="CASCADE"), primary_key=True, sort_order=-1
    )
    page_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    space_key: Mapped[str]
    is_public: Mapped[bool]
    is_shared: Mapped[bool]
    likes_1d: Mapped[int] = mapped_column(BigInteger)
    likes_7d: Mapped[int] = mapped_column(BigInteger)
    likes_30d: Mapped[int] = mapped_column(BigInteger)
    likes_all: Mapped[int] = mapped_column(BigInteger)
    views_1d: Mapped[int] = mapped_column(BigInteger)
    views_7d: Mapped[int] = mapped_column(BigInteger)
    views_30d: Mapped[int] = mapped_column(BigInteger)
    views_all: Mapped[int] = mapped_column(BigInteger)
    score_1d: Mapped[float] = mapped_column(Double)
    score_7d: Mapped[float] = mapped_column(Double)
    score_30d: Mapped[float] = mapped_column(Double)
    score_all: Mapped[float] = mapped_column(Double)
    page_updated_at: Mapped[datetime]
    computed_at: Mapped[datetime]


class Projection(TenantOwned, Base):
    """How far a tenant's projection has come: in time, and through its pages under new weights."""

    __tablename__ = "projections"

    tenant_id: Mapped[str] = mapped_column(
        ForeignKey("tenants.id", ondelete="CASCADE"), primary_key=True, sort_order=-1
    )
    slid_to: Mapped[datetime]
    weights_version: Mapped[int] = mapped_column(Integer, server_default="0")
    # While pages are scored by new weights, the last one that was.
    reweighed_to: Mapped[int | None] = mapped_column(BigInteger)


def column(metric: Metric, window: Window) -> str:
    return f"{metric}_{window}"


COLUMNS = tuple(column(*cell) for cell in CELLS)


@dataclass(frozen=True)
class Page:
    """A page as it is on the boards: where, and with which numbers."""

    space: str
    is_public: bool
    is_shared: bool
    updated_at: datetime
    values: tuple[Value, ...]

    @property
    def scopes(self) -> list[str]:
        return scopes_of(self.space, is_public=self.is_public, is_shared=self.is_shared)


@dataclass(frozen=True)
class Rolled:
    """A page before and now; None: it was on no board, or is not any more."""

    page_id: int
    before: Page | None
    now: Page | None
    summary: Summary | None

    @property
    def member(self) -> str:
        return str(self.page_id)


def position(tx: Tx, *, now: datetime) -> tuple[Projection, bool]:
    """How far this tenant's projection has come, and whether it has only begun."""
    row = tx.get(Projection, tx.tenant)
    if row is not None:
        return row, False
    row = Projection(tenant_id=tx.tenant, slid_to=hour_of(now), weights_version=0)
    tx.add(row)
    tx.flush()
    return row, True


def slide(tx: Tx, projection: Projection, *, now: datetime) -> bool:
    """Mark what left a window since the last time as stale; whether there are more hours to go."""
    before, hour = projection.slid_to, hour_of(now)
    if hour <= before:
        return False
    after = min(hour, before + timedelta(hours=MOST_HOURS_A_STEP))
    for span in crossed(before, after):
        for statement, kind in ((_MARK_CROSSED, outbox.Kind.PAGE), (_MARK_USERS_CROSSED, outbox.Kind.USER)):
            tx.run(statement, {"tenant": tx.tenant, "start": span.start, "end": span.end, "kind": kind.value})
    projection.slid_to = after
    return after < hour


_MARK_CROSSED = text("""
    INSERT INTO outbox (tenant_id, kind, member)
    SELECT :tenant, :kind, page_id::text FROM (
        SELECT page_id FROM page_views_hour
        WHERE tenant_id = :tenant AND bucket_hour AT TIME ZONE 'UTC' >= CAST(:start AS timestamptz) AT TIME ZONE 'UTC'
          AND bucket_hour AT TIME ZONE 'UTC' < CAST(:end AS timestamptz) AT TIME ZONE 'UTC'
        UNION
        SELECT page_id FROM page_likes
        WHERE tenant_id = :tenant AND created_at AT TIME ZONE 'UTC' >= CAST(:start AS timestamptz) AT TIME ZONE 'UTC'
          AND created_at AT TIME ZONE 'UTC' < CAST(:end AS timestamptz) AT TIME ZONE 'UTC'
    ) crossed
""")


_MARK_USERS_CROSSED = text("""
    INSERT INTO outbox (tenant_id, kind, member)
    SELECT DISTINCT :tenant, :kind, user_id::text FROM user_points_hour
    WHERE tenant_id = :tenant AND bucket_hour AT TIME ZONE 'UTC' >= CAST(:start AS timestamptz) AT TIME ZONE 'UTC'
      AND bucket_hour AT TIME ZONE 'UTC' < CAST(:end AS timestamptz) AT TIME ZONE 'UTC'
""")


def to_reweigh(tx: Tx, projection: Projection, weights: Weights) -> tuple[list[int], bool]:
    """The next pages to be scored by new weights, and whether there are more after them."""
    if projection.weights_version == weights.version and projection.reweighed_to is None:
        return [], False
    if projection.weights_version != weights.version:
        projection.weights_version, projection.reweighed_to = weights.version, 0
    pages = list(
        tx.scalars(
            text(
                "SELECT page_id FROM page_stats WHERE tenant_id = :tenant AND page_id > :after"
                " ORDER BY page_id LIMIT :limit"
            ),
            {"tenant": tx.tenant, "after": projection.reweighed_to, "limit": REWEIGH_A_STEP},
        )
    )
    more = len(pages) == REWEIGH_A_STEP
    projection.reweighed_to = pages[-1] if more else None
    return pages, more


def to_reshare(tx: Tx, *, shared: bool) -> tuple[list[int], bool]:
    """The next public pages that are not shared as the setting says, and whether there are more after them."""
    pages = list(
        tx.scalars(
            text("""
                SELECT page_id FROM page_stats WHERE tenant_id = :tenant AND is_public AND is_shared = :differs
                ORDER BY page_id LIMIT :limit
            """),
            {"tenant": tx.tenant, "differs": not shared, "limit": RESHARE_A_STEP},
        )
    )
    return pages, len(pages) == RESHARE_A_STEP


def reweighing(tx: Tx, weights: Weights) -> tuple[int, int]:
    """How many pages are scored by these weights, of how many."""
    row = tx.execute(
        text("""
            SELECT count(*) AS total,
                   count(*) FILTER (WHERE p.weights_version = :version
                                    AND (p.reweighed_to IS NULL OR s.page_id <= p.reweighed_to)) AS done
            FROM page_stats s LEFT JOIN projections p ON p.tenant_id = s.tenant_id WHERE s.tenant_id = :tenant
        """),
        {"tenant": tx.tenant, "version": weights.version},
    ).one()
    return int(row.done), int(row.total)


def compute(tx: Tx, page_ids: Collection[int], *, now: datetime, weights: Weights, shared: bool) -> list[Rolled]:
    """These pages' numbers as of now, beside what they were. Reads only."""
    hour = hour_of(now)
    rows = tx.run(
        _COMPUTE,
        {
            "tenant": tx.tenant,
            "pages": array(sorted(page_ids)),
            "end": hour + timedelta(hours=1),
            "oldest": hour - LONGEST + timedelta(hours=1),
            **{f"start_{window}": window.start(hour) for window in SLIDING},
        },
    )
    return [_rolled(tx.tenant, row, weights, shared=shared) for row in rows]


def _rolled(tenant_id: str, row: Any, weights: Weights, *, shared: bool) -> Rolled:
    before = now = summary = None
    if row.old_space is not None:
        before = Page(row.old_space, row.old_public, row.old_shared, row.old_updated_at, tuple(row[OLD_VALUES:]))
    if row.space_key is not None:
        counts = tuple(row[NEW_COUNTS:OLD_VALUES])
        windows = len(Window)
        scores = tuple(
            scoring.score(weights, likes=likes, views=views)
            for likes, views in zip(counts[:windows], counts[windows:], strict=True)
        )
        public = row.visibility == "public"
        now = Page(row.space_key, public, public and shared, row.updated_at, counts + scores)
        summary = Summary(row.external_id, row.title, row.url, row.space_key, tenant_id, public)
        if now.values == NOTHING:  # on no board, and not worth a row
            now = None
    return Rolled(row.page_id, before, now, summary)


def save(tx: Tx, rolled: Sequence[Rolled], *, now: datetime) -> None:
    """Keep these numbers."""
    gone = [entry.page_id for entry in rolled if entry.now is None and entry.before is not None]
    if gone:
        tx.run(_FORGET, {"tenant": tx.tenant, "pages": array(gone)})
    kept = [(entry.page_id, entry.now) for entry in rolled if entry.now is not None and entry.now != entry.before]
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


# The columns of _COMPUTE before the numbers, of which there are likes and views now, and then all of them as kept.
NEW_COUNTS = 11
OLD_VALUES = NEW_COUNTS + 2 * len(Window)

_COMPUTE = text(f"""
    SELECT w.page_id, p.space_key, p.visibility, p.external_id, p.title, p.url, p.updated_at,
           s.space_key AS old_space, s.is_public AS old_public, s.is_shared AS old_shared,
           s.page_updated_at AS old_updated_at,
           l.in_1d, l.in_7d, l.in_30d, COALESCE(c.likes, 0),
           v.in_1d, v.in_7d, v.in_30d, COALESCE(c.views, 0),
           {", ".join(f"s.{name}" for name in COLUMNS)}
    FROM unnest(CAST(:pages AS bigint[])) AS w(page_id)
    LEFT JOIN pages p ON p.tenant_id = :tenant AND p.id = w.page_id
    LEFT JOIN page_counters c ON c.tenant_id = :tenant AND c.page_id = w.page_id
    LEFT JOIN page_stats s ON s.tenant_id = :tenant AND s.page_id = w.page_id
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE created_at >= :start_1d) AS in_1d,
               count(*) FILTER (WHERE created_at >= :start_7d) AS in_7d, count(*) AS in_30d
        FROM page_likes
        WHERE tenant_id = :tenant AND page_id = w.page_id AND created_at >= :oldest AND created_at < :end
    ) l
    CROSS JOIN LATERAL (
        SELECT COALESCE(sum(views) FILTER (WHERE bucket_hour >= :start_1d), 0)::bigint AS in_1d,
               COALESCE(sum(views) FILTER (WHERE bucket_hour >= :start_7d), 0)::bigint AS in_7d,
               COALESCE(sum(views), 0)::bigint AS in_30d
        FROM page_views_hour
        WHERE tenant_id = :tenant AND page_id = w.page_id AND bucket_hour >= :oldest AND bucket_hour < :end
    ) v
""")  # noqa: S608  names of ours

_FORGET = text("DELETE FROM page_stats WHERE tenant_id = :tenant AND page_id = ANY(CAST(:pages AS bigint[]))")

_TYPES = {Metric.LIKES: "bigint", Metric.VIEWS: "bigint", Metric.SCORE: "double precision"}
_SAVE = text(f"""
    INSERT INTO page_stats (tenant_id, page_id, space_key, is_public, is_shared, page_updated_at, computed_at,
                            {", ".join(COLUMNS)})
    SELECT :tenant, page_id, space_key, is_public, is_shared, page_updated_at, :now, {", ".join(COLUMNS)}
    FROM unnest(CAST(:pages AS bigint[]), CAST(:spaces AS text[]), CAST(:public AS boolean[]),
                CAST(:shared AS boolean[]), CAST(:updated AS timestamptz[]),
                {", ".join(f"CAST(:{column(*cell)} AS {_TYPES[cell[0]]}[])" for cell in CELLS)})
         AS w(page_id, space_key, is_public, is_shared, page_updated_at, {", ".join(COLUMNS)})
    ON CONFLICT (tenant_id, page_id) DO UPDATE SET
        space_key = EXCLUDED.space_key, is_public = EXCLUDED.is_public, is_shared = EXCLUDED.is_shared,
        page_updated_at = EXCLUDED.page_updated_at, computed_at = EXCLUDED.computed_at,
        {", ".join(f"{name} = EXCLUDED.{name}" for name in COLUMNS)}
""")  # noqa: S608  names of ours
