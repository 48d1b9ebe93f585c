"""Pages: what a tenant counts. Created and changed by the tenant's own `external_id`."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from urllib.parse import urlsplit
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKeyConstraint,
    Identity,
    Index,
    Uuid,
    select,
    text,
)
from sqlalchemy import delete as sql_delete
from sqlalchemy.orm import Mapped, mapped_column

from analytics import outbox
from analytics.boards.names import SPACE_KEY
from analytics.outbox import Kind
from tenants import ceilings, users
from tenants.ceilings import Ceiling
from tenants.db import Base, DeletedWithTenant, Tx
from tenants.errors import Invalid, NotFound
from tenants.group_tx import read_one, read_together

EXTERNAL_ID = re.compile(r"[A-Za-z0-9._~:@-]{1,128}")
MAX_TITLE_CHARS = 500
MAX_URL_BYTES = 2048
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class Visibility(StrEnum):
    PRIVATE = "private"
    PUBLIC = "public"


class Page(DeletedWithTenant, Base):
    __tablename__ = "pages"
    __table_args__ = (
        CheckConstraint("visibility IN ('private', 'public')", name="visibility"),
        ForeignKeyConstraint(
            ["tenant_id", "owner_id"], ["users.tenant_id", "users.id"], ondelete="SET NULL (owner_id)"
        ),
        Index("uq_pages_external_id", "tenant_id", "external_id", unique=True),
        Index("ix_pages_space", "tenant_id", "space_key", "id"),
        Index("ix_pages_url", "tenant_id", "url"),
        Index("ix_pages_owner", "tenant_id", "owner_id"),
        Index("ix_pages_public", "tenant_id", "id", postgresql_where=text("visibility = 'public'")),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    external_id: Mapped[str]
    space_key: Mapped[str]
    title: Mapped[str]
    url: Mapped[str]
    owner_id: Mapped[UUID | None] = mapped_column(Uuid)
    visibility: Mapped[str] = mapped_column(server_default=Visibility.PRIVATE)
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]


class PageNotFound(NotFound):
    """The page does not exist, or is another tenant's."""

    def __init__(self, external_id: str) -> None:
        super().__init__(f"There is no page {external_id[:128]!r}")


@dataclass(frozen=True)
class Saved:
    page: Page
    new: bool


def put(
    tx: Tx,
    external_id: str,
    *,
    space: str,
    title: str,
    url: str,
    visibility: str | None = None,
    owner: str | None = None,
    now: datetime,
) -> Saved:
    """Create or change a page. Visibility and owner stay as they are if they are not given (a new page is private)."""
    check(external_id=external_id, space=space, title=title, url=url)
    _require_room(tx, external_id, space)
    owner_id = users.ensure_external(tx, owner, now=now) if owner is not None else None
    row = tx.execute(
        text("""
            INSERT INTO pages AS p
                (tenant_id, external_id, space_key, title, url, owner_id, visibility, created_at, updated_at)
            VALUES (:tenant, :external_id, :space, :title, :url, :owner, COALESCE(:visibility, 'private'), :now, :now)
            ON CONFLICT (tenant_id, external_id) DO UPDATE SET
                space_key = EXCLUDED.space_key, title = EXCLUDED.title, url = EXCLUDED.url,
                owner_id = COALESCE(EXCLUDED.owner_id, p.owner_id),
                visibility = COALESCE(:visibility, p.visibility), updated_at = EXCLUDED.updated_at
            WHERE (p.space_key, p.title, p.url, p.owner_id, p.visibility) IS DISTINCT FROM
                  (EXCLUDED.space_key, EXCLUDED.title, EXCLUDED.url, COALESCE(EXCLUDED.owner_id, p.owner_id),
                   COALESCE(:visibility, p.visibility))
            RETURNING id, xmax = 0 AS new
        """),
        {
            "tenant": tx.tenant,
            "external_id": external_id,
            "space": space,
            "title": title,
            "url": url,
            "owner": owner_id,
            "visibility": visibility,
            "now": now,
        },
    ).one_or_none()
    if row is not None:  # otherwise nothing differs
        if row.new:
            tx.execute(
                text("INSERT INTO page_counters (tenant_id, page_id) VALUES (:tenant, :page)"),
                {"tenant": tx.tenant, "page": row.id},
            )
        outbox.mark_stale(tx, Kind.PAGE, [row.id])
    return Saved(get(tx, external_id), new=row is not None and bool(row.new))


def count(tx: Tx, limit: int) -> int:
    """How many pages there are, counted up to `limit`."""
    counted = text("SELECT count(*) FROM (SELECT FROM pages WHERE tenant_id = :tenant LIMIT :limit) p")
    return int(tx.scalar(counted, {"tenant": tx.tenant, "limit": limit}) or 0)


def count_spaces(tx: Tx, limit: int) -> int:
    """How many spaces have pages, or had pages on boards (whose rows remain), counted up to `limit`."""
    return int(tx.scalar(_SPACES, {"tenant": tx.tenant, "limit": limit}) or 0)


def _require_room(tx: Tx, external_id: str, space: str) -> None:
    """A new page, or a new space, must fit below the tenant's ceiling."""
    known = tx.execute(_KNOWN, {"tenant": tx.tenant, "page": external_id, "space": space}).one()
    if not known.page:
        ceilings.require(tx, Ceiling.PAGES, count)
    if not known.space:
        ceilings.require(tx, Ceiling.SPACES, count_spaces)


_KNOWN = text("""
    SELECT EXISTS (SELECT FROM pages WHERE tenant_id = :tenant AND external_id = :page) AS page,
           EXISTS (SELECT FROM pages WHERE tenant_id = :tenant AND space_key = :space)
           OR EXISTS (SELECT FROM boards WHERE tenant_id = :tenant AND scope = 'space:' || :space) AS space
""")
_SPACES = ceilings.count_values("pages", "space_key", scope="space:")


def get(tx: Tx, external_id: str, *, public_only: bool = False) -> Page:
    """The page. With `public_only` a private page does not exist."""
    page = tx.scalar(select(Page).where(Page.external_id == external_id))
    if page is None or (public_only and page.visibility != Visibility.PUBLIC):
        raise PageNotFound(external_id)
    return page


def list_(tx: Tx, *, space: str | None, before: int | None, limit: int, public_only: bool) -> list[Page]:
    """Newest first."""
    query = select(Page).order_by(Page.id.desc()).limit(limit)
    if public_only:
        query = query.where(text("pages.visibility = 'public'"))  # a literal: the partial index needs one
    if space is not None:
        query = query.where(Page.space_key == space)
    if before is not None:
        query = query.where(Page.id < before)
    return list(tx.scalars(query))


def ids_of(tx: Tx, external_ids: Sequence[str], *, public_only: bool) -> dict[str, str]:
    """External id → our id, of those that exist. With `public_only` private pages do not."""
    rows = tx.execute(
        text(
            "SELECT external_id, id FROM pages WHERE tenant_id = :tenant"
            " AND external_id = ANY(CAST(:names AS text[])) AND (NOT :public_only OR visibility = 'public')"
        ),
        {"tenant": tx.tenant, "names": list(external_ids), "public_only": public_only},
    )
    return {row.external_id: str(row.id) for row in rows}


def find_ids(names: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """(tenant, external id) → our id, of those that exist, private ones too: in one round trip, for several tenants."""
    wanted: dict[str, list[str]] = {}
    for tenant_id, external_id in names:
        wanted.setdefault(tenant_id, []).append(external_id)
    statement = "SELECT external_id, id FROM pages WHERE tenant_id = %s AND external_id = ANY(%s::text[])"
    answers = read_together([(tenant_id, statement, (tenant_id, ids)) for tenant_id, ids in wanted.items()])
    pairs = zip(wanted, answers, strict=True)
    return {(tenant_id, row.external_id): str(row.id) for tenant_id, rows in pairs for row in rows}


def find_id(tenant_id: str, external_id: str, *, public_only: bool) -> str | None:
    """Our id of a page, in one round trip; with `public_only` a private page does not exist."""
    statement = "SELECT id FROM pages WHERE tenant_id = %s AND external_id = %s AND (NOT %s OR visibility = 'public')"
    row = read_one(tenant_id, statement, (tenant_id, external_id, public_only))
    return str(row.id) if row is not None else None


def has_space(tx: Tx, space: str) -> bool:
    return tx.scalar(select(Page.id).where(Page.space_key == space).limit(1)) is not None


def delete(tx: Tx, external_id: str) -> None:
    """Delete a page with its likes and views. Its counter is locked first, as in every write to a page."""
    page_id = tx.scalar(
        text("""
            SELECT p.id FROM pages p JOIN page_counters c ON c.tenant_id = p.tenant_id AND c.page_id = p.id
            WHERE p.tenant_id = :tenant AND p.external_id = :page FOR UPDATE OF c
        """),
        {"tenant": tx.tenant, "page": external_id},
    )
    if page_id is None:
        raise PageNotFound(external_id)
    tx.execute(sql_delete(Page).where(Page.id == page_id))
    outbox.mark_stale(tx, Kind.PAGE, [page_id])


def find_by_url(tx: Tx, url: str) -> str | None:
    """The external id of the page at this address; if there is none, of the page at the address without its query."""
    exact = url.split("#", 1)[0]
    candidates = list(dict.fromkeys([exact, exact.split("?", 1)[0]]))
    known = tx.execute(select(Page.url, Page.external_id).where(Page.url.in_(candidates)).order_by(Page.id)).all()
    by_url = {row.url: row.external_id for row in reversed(known)}
    return next((by_url[candidate] for candidate in candidates if candidate in by_url), None)


def owners(tx: Tx, pages: Collection[Page]) -> dict[UUID, str]:
    """The ids of these pages' owners: the tenant's own, or ours where there is none."""
    wanted = {page.owner_id for page in pages if page.owner_id is not None}
    if not wanted:
        return {}
    rows = tx.execute(select(users.User.id, users.User.external_id).where(users.User.id.in_(wanted)))
    return {row.id: row.external_id or str(row.id) for row in rows}


def check(*, external_id: str, space: str, title: str, url: str) -> None:
    errors: dict[str, str] = {}
    if EXTERNAL_ID.fullmatch(external_id) is None:
        errors["external_id"] = "1 to 128 of A-Z, a-z, 0-9 and . _ ~ : @ -"
    if SPACE_KEY.fullmatch(space) is None:
        errors["space"] = "1 to 64 of A-Z, a-z, 0-9 and . _ ~ -"
    if not title.strip() or len(title) > MAX_TITLE_CHARS or _CONTROL.search(title):
        errors["title"] = f"1 to {MAX_TITLE_CHARS} characters, no control characters"
    if not is_url(url):
        errors["url"] = f"an http or https address, or a path, of at most {MAX_URL_BYTES} bytes"
    if errors:
        raise Invalid.fields(errors)


def is_url(url: str) -> bool:
    """Whether a page may be at this address, and a link may lead there. Browsers read a backslash as a slash."""
    if not 1 <= len(url.encode()) <= MAX_URL_BYTES or "\\" in url or _CONTROL.search(url):
        return False
    if url.startswith("/") and not url.startswith("//"):
        return True
    try:
        parts = urlsplit(url)
        has_valid_port = parts.port is None or parts.port > 0  # a port out of range raises ValueError
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.hostname) and has_valid_port
