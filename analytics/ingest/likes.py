"""Likes: at most one for each page and user; the last change to arrive decides. Written by the group commit."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import BigInteger, ForeignKeyConstraint, Index, Uuid, text
from sqlalchemy.orm import Mapped, mapped_column

from analytics import counters, outbox
from analytics.outbox import Kind
from tenants.db import Base, TenantOwned, Tx, array


class PageLike(TenantOwned, Base):
    __tablename__ = "page_likes"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id", "page_id"], ["pages.tenant_id", "pages.id"], ondelete="CASCADE"),
        ForeignKeyConstraint(["tenant_id", "user_id"], ["users.tenant_id", "users.id"], ondelete="CASCADE"),
        Index("ix_page_likes_user", "tenant_id", "user_id"),
        Index("ix_page_likes_time", "tenant_id", text("(created_at AT TIME ZONE 'UTC')"), "page_id"),
        Index("ix_page_likes_page_time", "tenant_id", "page_id", "created_at"),
    )

    page_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    user_id: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    created_at: Mapped[datetime]


@dataclass(frozen=True)
class LikeChange:
    """A user likes a page, or takes the like back."""

    page_id: int
    user_id: UUID
    liked: bool
    at: datetime


def apply_likes(tx: Tx, changes: Sequence[LikeChange]) -> tuple[list[int], set[int]]:
    """Apply these changes in their order: the page's likes after each, and the pages whose likes differ at the end.

    The pages' counters are locked first, so no other commit can change these pages' likes before this one is over.
    """
    counts = counters.lock(tx, {change.page_id for change in changes})
    pairs = sorted({(one.page_id, one.user_id) for one in changes}, key=lambda pair: (pair[0], str(pair[1])))
    before = _liked(tx, pairs)
    now_liked = dict.fromkeys(pairs, None) | before
    after: list[int] = []
    for change in changes:
        pair = (change.page_id, change.user_id)
        if change.liked != (now_liked[pair] is not None):
            counts[change.page_id] += 1 if change.liked else -1
            now_liked[pair] = change.at if change.liked else None
        after.append(counts[change.page_id])
    _write(tx, before, now_liked)
    changed = {pair[0] for pair in pairs if before.get(pair) != now_liked[pair]}
    _save_counts(tx, {page_id: counts[page_id] for page_id in sorted(changed)})
    return after, changed


def remove_all(tx: Tx, user_id: UUID) -> int:
    """Remove a user's likes from their pages' counters too; how many there were."""
    own = {"tenant": tx.tenant, "user": user_id}
    gone = tx.scalars(
        text("DELETE FROM page_likes WHERE tenant_id = :tenant AND user_id = :user RETURNING page_id"), own
    )
    page_ids = sorted(gone)
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


Pair = tuple[int, UUID]


def _liked(tx: Tx, pairs: Sequence[Pair]) -> dict[Pair, datetime]:
    rows = tx.execute(
        text("""
            SELECT l.page_id, l.user_id, l.created_at
            FROM unnest(CAST(:pages AS bigint[]), CAST(:users AS uuid[])) AS w(page_id, user_id)
            JOIN page_likes l ON l.tenant_id = :tenant AND l.page_id = w.page_id AND l.user_id = w.user_id
        """),
        {"tenant": tx.tenant, **_columns(pairs)},
    )
    return {(row.page_id, row.user_id): row.created_at for row in rows}


def _write(tx: Tx, before: dict[Pair, datetime], after: dict[Pair, datetime | None]) -> None:
    gone = [pair for pair in after if pair in before and after[pair] != before[pair]]
    new = {pair: at for pair, at in after.items() if at is not None and at != before.get(pair)}
    if gone:
        tx.execute(
            text("""
                DELETE FROM page_likes l
                USING unnest(CAST(:pages AS bigint[]), CAST(:users AS uuid[])) AS w(page_id, user_id)
                WHERE l.tenant_id = :tenant AND l.page_id = w.page_id AND l.user_id = w.user_id
            """),
            {"tenant": tx.tenant, **_columns(gone)},
        )
    if new:
        tx.execute(
            text("""
                INSERT INTO page_likes (tenant_id, page_id, user_id, created_at)
                SELECT :tenant, page_id, user_id, created_at
                FROM unnest(CAST(:pages AS bigint[]), CAST(:users AS uuid[]), CAST(:times AS timestamptz[]))
                     AS w(page_id, user_id, created_at)
            """),
            {"tenant": tx.tenant, **_columns(list(new)), "times": list(new.values())},
        )


def _save_counts(tx: Tx, likes: dict[int, int]) -> None:
    if likes:
        tx.execute(
            text("""
                UPDATE page_counters c SET likes = w.likes
                FROM unnest(CAST(:pages AS bigint[]), CAST(:likes AS bigint[])) AS w(page_id, likes)
                WHERE c.tenant_id = :tenant AND c.page_id = w.page_id
            """),
            {"tenant": tx.tenant, "pages": list(likes), "likes": list(likes.values())},
        )


def _columns(pairs: Sequence[Pair]) -> dict[str, list[object]]:
    return {"pages": [page_id for page_id, _ in pairs], "users": [user_id for _, user_id in pairs]}
