"""Visitors of pages: who is the same, who is a robot, and the rows by which each is counted once a page and day.

A visitor from a browser is a hash of tenant, network and agent, with a random salt of the day that is deleted after two
days: neither network nor agent is stored, and nobody can compute the hash again. A visitor with a name is a hash of the
tenant's own id of the user: the reader that a site has signed for, or the `user` of a server's view. The group commit
writes their rows in the transaction of the view (`admit_visits`), so a visitor is counted exactly once, without Redis.
"""

import hashlib
import hmac
import secrets
import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import BigInteger, Boolean, Date, ForeignKeyConstraint, Index, Integer, LargeBinary, Uuid, text
from sqlalchemy.orm import Mapped, mapped_column

from analytics.comparing import Chunk, Found
from tenants.db import Base, TenantOwned, Tx, array, platform_tx

# Days after which rows are deleted: of browsers with the salt, of named visitors with the ids of events.
BROWSER_DAYS = 2
NAMED_DAYS = 40
# How far back rows are compared with the counts of hours, which are kept for at least 31 days.
CHECKED = timedelta(days=30)
# The part of a User-Agent header that is compared with the list of robots and distinguishes visitors.
MAX_AGENT_CHARS = 512


class PageVisitor(TenantOwned, Base):
    """A visitor of a page on a day (UTC)."""

    __tablename__ = "page_visitors"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id", "page_id"], ["pages.tenant_id", "pages.id"], ondelete="CASCADE"),
        Index("ix_page_visitors_day", "tenant_id", "is_named", "day"),
        Index("ix_page_visitors_named", "tenant_id", "visitor", postgresql_where=text("is_named")),
    )

    page_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    day: Mapped[date] = mapped_column(Date, primary_key=True)
    visitor: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    is_named: Mapped[bool] = mapped_column(Boolean)
    # Page loads in a browser that were counted, and the last of them.
    loads: Mapped[int] = mapped_column(Integer)
    loaded_at: Mapped[datetime]


class PageVisitorNetwork(TenantOwned, Base):
    """How many visitors without a name a page had from a network on a day."""

    __tablename__ = "page_visitor_networks"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id", "page_id"], ["pages.tenant_id", "pages.id"], ondelete="CASCADE"),
        Index("ix_page_visitor_networks_day", "tenant_id", "day"),
    )

    page_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    day: Mapped[date] = mapped_column(Date, primary_key=True)
    network: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    visitors: Mapped[int] = mapped_column(Integer)


class VisitorSalt(Base):
    __tablename__ = "visitor_salts"

    day: Mapped[date] = mapped_column(Date, primary_key=True)
    salt: Mapped[bytes] = mapped_column(LargeBinary)


class Visit(NamedTuple):
    """Whose view it is."""

    visitor: UUID
    # Where a visitor without a name comes from.
    network: UUID | None = None
    # Whether it is a page load in a browser, of which repeats are not counted. A server's view has an id for that.
    is_load: bool = False


class Visitors:
    """Recognises the visitors of a day. Keeps the salt in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._salts: dict[date, bytes] = {}

    def identify(self, tenant_id: str, *, network: str, agent: str, now: datetime) -> Visit:
        """The visitor with this address and agent."""
        salt = self._salt(now.astimezone(UTC).date())
        return Visit(
            _hash(salt, "visitor", tenant_id, network, agent), _hash(salt, "network", tenant_id, network), is_load=True
        )

    def _salt(self, day: date) -> bytes:
        with self._lock:
            salt = self._salts.get(day)
        if salt is not None:
            return salt
        salt = salt_of(day)
        with self._lock:
            self._salts = {kept: value for kept, value in self._salts.items() if kept >= day - timedelta(days=1)}
            self._salts[day] = salt
        return salt


def salt_of(day: date) -> bytes:
    """The salt of this day, the same in all processes. The first who asks creates it."""
    with platform_tx() as tx:
        known = tx.scalar(_SALT, {"day": day})
        if known is None:
            tx.execute(
                text("INSERT INTO visitor_salts (day, salt) VALUES (:day, :salt) ON CONFLICT (day) DO NOTHING"),
                {"day": day, "salt": secrets.token_bytes(32)},
            )
            known = tx.scalar(_SALT, {"day": day})
        return bytes(known or b"")


_SALT = text("SELECT salt FROM visitor_salts WHERE day = :day")


@lru_cache(maxsize=10_000)
def named(user: str) -> UUID:
    """The visitor who is this user of a tenant, by the tenant's own id."""
    return UUID(bytes=hashlib.blake2b(f"user\0{user}".encode(), digest_size=16).digest())


def visit_of(user: str | None, at: datetime, *, now: datetime) -> Visit | None:
    """Whose a server's view is; None if it names nobody, or happened so long ago that visitors are not kept."""
    if user is None or (now - at).days >= NAMED_DAYS - 1:
        return None
    return Visit(named(user))


def pages_of(tx: Tx, user: str) -> list[Any]:
    """Which pages a named visitor saw on which days, as long as it is kept."""
    return list(
        tx.execute(
            text("""
                SELECT v.page_id, p.external_id AS page, v.day FROM page_visitors v
                JOIN pages p ON p.tenant_id = v.tenant_id AND p.id = v.page_id
                WHERE v.tenant_id = :tenant AND v.visitor = :visitor AND v.is_named ORDER BY v.day, p.id
            """),
            {"tenant": tx.tenant, "visitor": named(user)},
        )
    )


def lock(tx: Tx, user: str) -> list[Any]:
    """Lock the rows of a named visitor, in the order in which others write them. Returns their pages and days."""
    rows = tx.execute(
        text("""
            SELECT page_id, day FROM page_visitors WHERE tenant_id = :tenant AND visitor = :visitor AND is_named
            ORDER BY page_id, day FOR UPDATE
        """),
        {"tenant": tx.tenant, "visitor": named(user)},
    )
    return list(rows)


def forget(tx: Tx, user: str) -> int:
    """Delete the rows of a named visitor, before any user is locked. They stay counted."""
    rows = lock(tx, user)
    tx.execute(
        text("""
            DELETE FROM page_visitors v
            USING unnest(CAST(:pages AS bigint[]), CAST(:days AS date[])) AS own(page_id, day)
            WHERE v.tenant_id = :tenant AND v.visitor = :visitor AND v.page_id = own.page_id AND v.day = own.day
        """),
        {
            "tenant": tx.tenant,
            "visitor": named(user),
            "pages": array(row.page_id for row in rows),
            "days": array(row.day for row in rows),
        },
    )
    return len(rows)


def differences(tx: Tx, chunk: Chunk) -> Iterator[Found]:
    """For `plaudit check`: the pages and days with more visitors than their hours have counted. Fewer are right: rows
    are deleted, and what they counted stays."""
    for row in tx.execute(_UNCOUNTED, {**chunk.parameters, "since": chunk.now.astimezone(UTC).date() - CHECKED}):
        yield "page_visitors", f"{row.page} {row.day}", row.visitors, int(row.counted)


_UNCOUNTED = text("""
    SELECT p.external_id AS page, v.day, v.visitors, COALESCE(h.visitors, 0) AS counted
    FROM (SELECT page_id, day, count(*) AS visitors FROM page_visitors
          WHERE tenant_id = :tenant AND page_id > :after AND page_id <= :last AND day >= CAST(:since AS date)
          GROUP BY page_id, day) v
    JOIN pages p ON p.tenant_id = :tenant AND p.id = v.page_id
    LEFT JOIN (SELECT page_id, CAST(bucket_hour AT TIME ZONE 'UTC' AS date) AS day, sum(visitors) AS visitors
               FROM (SELECT page_id, bucket_hour, visitors FROM page_views_hour
                     WHERE tenant_id = :tenant AND page_id > :after AND page_id <= :last
                       AND bucket_hour AT TIME ZONE 'UTC' >= CAST(:since AS date)
                     UNION ALL SELECT CAST(member AS bigint), hour, visitors FROM outbox
                     WHERE tenant_id = :tenant AND kind = 'views') counted
               GROUP BY page_id, 2) h ON h.page_id = v.page_id AND h.day = v.day
    WHERE v.visitors > COALESCE(h.visitors, 0) ORDER BY v.day, v.page_id
""")


@lru_cache(maxsize=10_000)
def is_bot(agent: str) -> bool:
    """Whether a maintained list has this agent as a robot. An empty agent is a robot too."""
    import crawleruseragents  # reads its list when it is imported

    return not agent.strip() or bool(crawleruseragents.is_crawler(agent, case_sensitive=False))


def _hash(salt: bytes, *parts: str) -> UUID:
    return UUID(bytes=hmac.digest(salt, "\n".join(parts).encode(), "sha256")[:16])
