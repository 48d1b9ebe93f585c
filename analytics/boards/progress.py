"""The progress of each tenant's projection: in time, and through its pages when all must be computed again.

The cost of a projection follows what changed. A page is computed again when it got counts or was edited (it is
in the outbox), when hours of it left a window (`slide`), when the weights changed (`to_reweigh`), or when the tenant
began or stopped sharing its public pages (`to_reshare`).
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import BigInteger, Integer, text
from sqlalchemy.orm import Mapped, mapped_column

from analytics import outbox
from analytics.metrics import counted_metrics
from analytics.outbox import Kind
from analytics.scoring import Weights
from analytics.windows import crossed, hour_of
from tenants.db import Base, DeletedWithTenant, Query, Tx

# After a long stop a worker catches up in steps of this many hours, each a transaction of its own.
MAX_HOURS_PER_STEP = 24
MAX_PAGES_PER_STEP = 500


class Projection(DeletedWithTenant, Base):
    """One row for each tenant that was ever projected."""

    __tablename__ = "projections"

    slid_to: Mapped[datetime]
    weights_version: Mapped[int] = mapped_column(Integer, server_default="0")
    # While pages are given new weights: the last page that has them.
    reweighed_to: Mapped[int | None] = mapped_column(BigInteger)
    # Counts the plans of projections: only the last one may be carried out.
    step: Mapped[int] = mapped_column(BigInteger, server_default="0")
    # On which its boards were last written in Redis: see `analytics.boards.timeline`.
    server: Mapped[str | None]
    # The run id of the Redis in which they were.
    redis_run: Mapped[str | None]


def get_or_create(tx: Tx, *, now: datetime) -> tuple[Projection, bool]:
    """This tenant's progress, and whether it is new."""
    row = tx.get(Projection, tx.tenant)
    if row is not None:
        return row, False
    row = Projection(tenant_id=tx.tenant, slid_to=hour_of(now), weights_version=0, step=0)
    tx.add(row)
    tx.flush()
    return row, True


def raising_step(tenant_id: str) -> Query:
    """The query that raises the number of the step, and returns it: no plan that was made before is carried out."""
    return _RAISE_STEP, {"tenant": tenant_id}


def finding_planned(tenant_id: str, step: int) -> Query:
    """The query that finds a row if the plan of this step is still the last one."""
    return _FIND_PLANNED, {"tenant": tenant_id, "step": step}


def set_server(tx: Tx, server: str | None) -> None:
    """The boards in Redis are those of this server."""
    statement = text("UPDATE projections SET server = :server WHERE tenant_id = :tenant")
    tx.run(statement, {"tenant": tx.tenant, "server": server})


def set_redis(tx: Tx, run: str) -> None:
    """The boards were last written in this Redis."""
    statement = text("UPDATE projections SET redis_run = :run WHERE tenant_id = :tenant")
    tx.run(statement, {"tenant": tx.tenant, "run": run})


def slide(tx: Tx, projection: Projection, *, now: datetime) -> bool:
    """Mark as stale what entered or left a window since the last time. Returns whether hours are left."""
    before, hour = projection.slid_to, hour_of(now)
    if hour <= before:
        return False
    after = min(hour, before + timedelta(hours=MAX_HOURS_PER_STEP))
    for span in crossed(before, after):
        parameters = {"start": span.start, "end": span.end}
        outbox.mark_selected_stale(tx, Kind.PAGE, _PAGES_CROSSED, parameters)
        outbox.mark_selected_stale(tx, Kind.USER, _USERS_CROSSED, parameters)
    projection.slid_to = after
    return after < hour


@dataclass(frozen=True)
class Reweighing:
    """The next pages to be scored by new weights; and once they are, by which weights up to which page pages are."""

    pages: list[int]
    weights_version: int
    reweighed_to: int | None

    @property
    def has_more(self) -> bool:
        return self.reweighed_to is not None

    def is_change_of(self, projection: Projection) -> bool:
        before = (projection.weights_version, projection.reweighed_to)
        return before != (self.weights_version, self.reweighed_to)

    def save(self, tx: Tx) -> None:
        position = {"version": self.weights_version, "to": self.reweighed_to}
        tx.run(_SAVE_REWEIGHING, {"tenant": tx.tenant, **position})


def to_reweigh(tx: Tx, projection: Projection, weights: Weights) -> Reweighing:
    after = projection.reweighed_to
    if projection.weights_version != weights.version:
        after = 0
    if after is None:
        return Reweighing([], weights.version, None)
    pages = list(
        tx.scalars(
            text(
                "SELECT page_id FROM page_stats WHERE tenant_id = :tenant AND page_id > :after"
                " ORDER BY page_id LIMIT :limit"
            ),
            {"tenant": tx.tenant, "after": after, "limit": MAX_PAGES_PER_STEP},
        )
    )
    more = len(pages) == MAX_PAGES_PER_STEP
    return Reweighing(pages, weights.version, pages[-1] if more else None)


def to_reshare(tx: Tx, *, shared: bool) -> tuple[list[int], bool]:
    """The next public pages whose sharing differs from the setting, and whether there are more after them."""
    pages = list(
        tx.scalars(
            text("""
                SELECT page_id FROM page_stats WHERE tenant_id = :tenant AND is_public AND is_shared = :differs
                ORDER BY page_id LIMIT :limit
            """),
            {"tenant": tx.tenant, "differs": not shared, "limit": MAX_PAGES_PER_STEP},
        )
    )
    return pages, len(pages) == MAX_PAGES_PER_STEP


def reweighing(tx: Tx, weights: Weights) -> tuple[int, int]:
    """How many pages have scores with these weights, and how many pages there are."""
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


def _in_span(time: str) -> str:
    """The condition in the form of the indexes on time."""
    moment = f"{time} AT TIME ZONE 'UTC'"
    start, end = (f"CAST(:{bound} AS timestamptz) AT TIME ZONE 'UTC'" for bound in ("start", "end"))
    return f"tenant_id = :tenant AND {moment} >= {start} AND {moment} < {end}"


_PAGES_CROSSED = " UNION ".join(
    f"SELECT page_id::text FROM {source.table} WHERE {_in_span(source.time)}"  # noqa: S608  names from the table of metrics
    for source in counted_metrics().values()
)
_USERS_CROSSED = f"SELECT DISTINCT user_id::text FROM user_points_hour WHERE {_in_span('bucket_hour')}"  # noqa: S608  constants

_RAISE_STEP = text("UPDATE projections SET step = step + 1 WHERE tenant_id = :tenant RETURNING step")

_FIND_PLANNED = text("SELECT 1 FROM projections WHERE tenant_id = :tenant AND step = :step")

_SAVE_REWEIGHING = text("""
    UPDATE projections SET weights_version = :version, reweighed_to = :to WHERE tenant_id = :tenant
""")
