"""Likes: one for each page and user; order of arrival decides. Written by the group commit."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import BigInteger, ForeignKeyConstraint, Index, Uuid, text
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
        Index("ix_page_likes_time", "tenant_id", text("(created_at AT TIME ZONE 'UTC')"), "page_id"),
        Index("ix_page_likes_page_time", "tenant_id", "page_id", "created_at"),
    )

    page_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    user_id: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    created_at: Mapped[datetime]


class PageCounter(TenantOwned, Base):
    """A page's likes and views of all time, exact at any moment."""

    __tablename__ = "page_counters"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id", "page_id"], ["pages.tenant_id", "pages.id"], ondelete="CASCADE"),
    )

    page_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    likes: Mapped[int] = mapped_column(BigInteger, server_default="0")
    views: Mapped[int] = mapped_column(BigInteger, server_default="0")
    # Of these, how many were in buckets that are no longer kept.
    views_purged: Mapped[int] = mapped_column(BigInteger, server_default="0")


@dataclass(frozen=True)
class Wish:
    """Somebody wants to like a page, or not to."""

    page_id: int
    user_id: UUID
    liked: bool
    at: datetime


def settle(tx: Tx, wishes: Sequence[Wish]) -> tuple[list[int], set[int]]:
    """Grant these wishes in their order: the page's likes after each, and the pages whose likes moved.

    The pages' counters are locked in the order of their ids, so that two commits never wait for each other in a
    circle, and no other commit can change these pages' likes before this one is over.
    """
    page_ids = sorted({wish.page_id for wish in wishes})
    counts = {
        row.page_id: row.likes
        for row in tx.execute(
            text("""
                SELECT page_id, likes FROM page_counters
                WHERE tenant_id = :tenant AND page_id = ANY(CAST(:pages AS bigint[]))
                ORDER BY page_id FOR UPDATE
            """),
            {"tenant": tx.tenant, "pages": page_ids},
        )
    }
    pairs = sorted({(wish.page_id, wish.user_id) for wish in wishes}, key=lambda pair: (pair[0], str(pair[1])))
    before = _liked(tx, pairs)
    now_liked = dict.fromkeys(pairs, None) | before
    after: list[int] = []
    for wish in wishes:
        pair = (wish.page_id, wish.user_id)
        if wish.liked != (now_liked[pair] is not None):
            counts[wish.page_id] += 1 if wish.liked else -1
            now_liked[pair] = wish.at if wish.liked else None
        after.append(counts[wish.page_id])
    _write(tx, before, now_liked)
    moved = {pair[0] for pair in pairs if before.get(pair) != now_liked[pair]}
    _count(tx, {page_id: counts[page_id] for page_id in sorted(moved)})
    return after, moved


def hold(tx: Tx, page_ids: Sequence[int]) -> None:
    """Lock these pages' counters, in the order of their ids, as everybody does who changes their likes."""
    tx.execute(
        text("""
            SELECT page_id FROM page_counters WHERE tenant_id = :tenant AND page_id = ANY(CAST(:pages AS bigint[]))
            ORDER BY page_id FOR UPDATE
        """),
        {"tenant": tx.tenant, "pages": array(page_ids)},
    )


def take_all_back(tx: Tx, user_id: UUID) -> int:
    """Remove a user's likes, and what they counted for; how many they were."""
    own = {"tenant": tx.tenant, "user": user_id}
    gone = tx.scalars(
        text("DELETE FROM page_likes WHERE tenant_id = :tenant AND user_id = :user RETURNING page_id"), own
    )
    taken = sorted(gone)
    if taken:
        tx.execute(
            text("""
                UPDATE page_counters SET likes = likes - 1
                WHERE tenant_id = :tenant AND page_id = ANY(CAST(:pages AS bigint[]))
            """),
            {"tenant": tx.tenant, "pages": array(taken)},
        )
        outbox.mark_stale(tx, Kind.PAGE, taken)
    return len(taken)


def recount(tx: Tx, page_ids: Sequence[int]) -> None:
    """Set these pages' counters to what their likes and buckets add up to."""
    hold(tx, page_ids)
    tx.execute(
        text("""
            UPDATE page_counters c SET
                likes = (SELECT count(*) FROM page_likes l WHERE l.tenant_id = :tenant AND l.page_id = c.page_id),
                views = c.views_purged + (SELECT COALESCE(sum(v.views), 0) FROM page_views_hour v
                                          WHERE v.tenant_id = :tenant AND v.page_id = c.page_id)
            WHERE c.tenant_id = :tenant AND c.page_id = ANY(CAST(:pages AS bigint[]))
        """),
        {"tenant": tx.tenant, "pages": array(page_ids)},
    )


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


def _count(tx: Tx, likes: dict[int, int]) -> None:
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
