"""Likes: at most one for each page and user. Of two events about it, the newer by the time it happened decides.

The SQL function `apply_likes` (migration 0017) has the rule; the group commit calls it. A like that was taken back
keeps its row for a while, with the time of that: an older like that arrives late is then known to be outdated.
"""

from datetime import datetime
from uuid import UUID

from sqlalchemy import BigInteger, Boolean, Computed, ForeignKeyConstraint, Index, Uuid, text
from sqlalchemy.orm import Mapped, mapped_column

from analytics import outbox
from analytics.outbox import Kind
from tenants.db import Base, TenantOwned, Tx, array


class PageLike(TenantOwned, Base):
    __tablename__ = "page_likes"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id", "page_id"], ["pages.tenant_id", "pages.id"], ondelete="CASCADE"),
        ForeignKeyConstraint(["tenant_id", "user_id"], ["users.tenant_id", "users.id"], ondelete="CASCADE"),
        Index("ix_page_likes_user", "tenant_id", "user_id"),
        Index(
            "ix_page_likes_time",
            "tenant_id",
            text("(liked_at AT TIME ZONE 'UTC')"),
            "page_id",
            postgresql_where=text("liked_at IS NOT NULL"),
        ),
        Index(
            "ix_page_likes_page_time",
            "tenant_id",
            "page_id",
            "liked_at",
            postgresql_where=text("liked_at IS NOT NULL"),
        ),
        Index("ix_page_likes_unliked", "tenant_id", "decided_at", postgresql_where=text("liked_at IS NULL")),
    )

    page_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    user_id: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    # Since when the page is liked: what windows, series and lists count. NULL: the like was taken back.
    liked_at: Mapped[datetime | None]
    # When the newest event about it happened.
    decided_at: Mapped[datetime]
    liked: Mapped[bool] = mapped_column(Boolean, Computed("liked_at IS NOT NULL", persisted=True), nullable=True)


def remove_all(tx: Tx, user_id: UUID) -> int:
    """Remove a user's likes, from their pages' counters too; how many there were."""
    own = {"tenant": tx.tenant, "user": user_id}
    gone = tx.execute(
        text("DELETE FROM page_likes WHERE tenant_id = :tenant AND user_id = :user RETURNING page_id, liked"), own
    )
    page_ids = sorted(row.page_id for row in gone if row.liked)
    if page_ids:
        tx.execute(
            text("""
                UPDATE page_counters SET likes = likes - 1
                WHERE tenant_id = :tenant AND page_id = ANY(CAST(:pages AS bigint[]))
            """),
            {"tenant": tx.tenant, "pages": array(page_ids)},
        )
        outbox.mark_stale(tx, Kind.PAGE, page_ids)
    return len(page_ids)
