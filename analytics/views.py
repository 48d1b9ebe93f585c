"""Views, counted in hourly buckets at the hour they happened. Written by the group commit."""

from collections.abc import Collection, Mapping
from datetime import datetime

from sqlalchemy import BigInteger, ForeignKeyConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from analytics.outbox import Kind
from tenants.db import Base, TenantOwned, Tx


class PageViewsHour(TenantOwned, Base):
    __tablename__ = "page_views_hour"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id", "page_id"], ["pages.tenant_id", "pages.id"], ondelete="CASCADE"),
    )

    page_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    bucket_hour: Mapped[datetime] = mapped_column(primary_key=True)
    views: Mapped[int] = mapped_column(BigInteger)


def hour_of(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)


def count(tx: Tx, views: Mapping[tuple[int, datetime], int], *, also_stale: Collection[int] = ()) -> None:
    """Add these views to their buckets, and mark their pages (and these others) as stale, in one statement.

    In the order of the keys: two commits never wait for each other in a circle.
    """
    keys = sorted(views)
    tx.run(
        _COUNT,
        {
            "tenant": tx.tenant,
            "pages": [page_id for page_id, _ in keys],
            "hours": [hour for _, hour in keys],
            "views": [views[key] for key in keys],
            "stale": [str(page_id) for page_id in sorted({page_id for page_id, _ in keys} | set(also_stale))],
            "kind": Kind.PAGE.value,
        },
    )


_COUNT = text("""
    WITH counted AS (
        INSERT INTO page_views_hour AS b (tenant_id, page_id, bucket_hour, views)
        SELECT :tenant, page_id, bucket_hour, views
        FROM unnest(CAST(:pages AS bigint[]), CAST(:hours AS timestamptz[]), CAST(:views AS bigint[]))
             AS w(page_id, bucket_hour, views)
        ON CONFLICT (tenant_id, page_id, bucket_hour) DO UPDATE SET views = b.views + EXCLUDED.views
    )
    INSERT INTO outbox (tenant_id, kind, member)
    SELECT :tenant, :kind, member FROM unnest(CAST(:stale AS text[])) AS member
""")
