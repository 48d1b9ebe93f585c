"""Views, counted in buckets of the hour in which they happened. Written by the group commit (`write_page_events`)."""

from datetime import datetime

from sqlalchemy import BigInteger, ForeignKeyConstraint, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from tenants.db import Base, TenantOwned


class PageViewsHour(TenantOwned, Base):
    __tablename__ = "page_views_hour"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id", "page_id"], ["pages.tenant_id", "pages.id"], ondelete="CASCADE"),
        Index("ix_page_views_hour_hour", "tenant_id", text("(bucket_hour AT TIME ZONE 'UTC')"), "page_id"),
    )

    page_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    bucket_hour: Mapped[datetime] = mapped_column(primary_key=True)
    views: Mapped[int] = mapped_column(BigInteger)
    # Those whose first view of the page and day, as received, was in this hour.
    visitors: Mapped[int] = mapped_column(BigInteger, server_default="0")
