"""Likes: at most one for each page and user. Of two events about it, the newer by the time it happened decides.

The SQL function `apply_likes` (migration 0017) has the rule; the group commit calls it. A like that was taken back
keeps its row for a while, with the time of that: an older like that arrives late is then known to be outdated.

Lists of likes are ordered by `liked_at`, newest first. It never goes back: who likes a page again is at the beginning
then. So whoever reads a list slice by slice sees no like twice, and misses none that has not changed meanwhile.
"""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Computed,
    ForeignKeyConstraint,
    Index,
    Select,
    Uuid,
    select,
    text,
    tuple_,
)
from sqlalchemy.orm import InstrumentedAttribute, Mapped, mapped_column

from analytics import outbox
from analytics.outbox import Kind
from tenants.db import Base, TenantOwned, Tx, array


class PageLike(TenantOwned, Base):
    __tablename__ = "page_likes"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id", "page_id"], ["pages.tenant_id", "pages.id"], ondelete="CASCADE"),
        ForeignKeyConstraint(["tenant_id", "user_id"], ["users.tenant_id", "users.id"], ondelete="CASCADE"),
        Index("ix_page_likes_user", "tenant_id", "user_id", "liked_at", "page_id"),
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
            "user_id",
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


def liked_at(tx: Tx, page_id: int, user_id: UUID) -> datetime | None:
    """Since when the user likes the page; None: they do not."""
    return tx.scalar(select(PageLike.liked_at).where(PageLike.page_id == page_id, PageLike.user_id == user_id))


def total(tx: Tx, page_id: int) -> int:
    """How many like the page."""
    counted = text("SELECT likes FROM page_counters WHERE tenant_id = :tenant AND page_id = :page")
    return int(tx.scalar(counted, {"tenant": tx.tenant, "page": page_id}) or 0)


def of_page(tx: Tx, page_id: int, *, after: tuple[datetime, UUID] | None, limit: int) -> list[PageLike]:
    """The likes of a page, newest first, from a position (`liked_at`, `user_id`) on."""
    return list(tx.scalars(_newest(PageLike.page_id == page_id, PageLike.user_id, after, limit)))


def of_user(tx: Tx, user_id: UUID, *, after: tuple[datetime, int] | None, limit: int) -> list[PageLike]:
    """The likes of a user, newest first, from a position (`liked_at`, `page_id`) on."""
    return list(tx.scalars(_newest(PageLike.user_id == user_id, PageLike.page_id, after, limit)))


def _newest(
    whose: ColumnElement[bool], tie: InstrumentedAttribute[Any], after: tuple[datetime, Any] | None, limit: int
) -> Select[PageLike]:
    """Both are read in the order of an index."""
    wanted = select(PageLike).where(whose, PageLike.liked_at.is_not(None))
    if after is not None:
        wanted = wanted.where(tuple_(PageLike.liked_at, tie) < after)
    return wanted.order_by(PageLike.liked_at.desc(), tie.desc()).limit(limit)


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
