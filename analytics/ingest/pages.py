"""Pages: what a tenant counts, named by the tenant's own `external_id`. (`page_writes` creates and changes them.)"""

import re
from collections.abc import Collection, Iterable, Sequence
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
from sqlalchemy.orm import Mapped, mapped_column

from analytics.ingest import addresses
from tenants import ceilings, users
from tenants.db import Base, DeletedWithTenant, Query, Tx
from tenants.errors import Invalid, NotFound
from tenants.group_tx import read_one, read_together
from tenants.settings import SPACE_KEY

EXTERNAL_ID = re.compile(r"[A-Za-z0-9._~:@-]{1,128}")
MAX_TITLE_CHARS = 500
MAX_URL_BYTES = 2048
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# Of a document's title, which anybody may have written: also what changes the direction of text, or breaks lines.
MAX_PLAIN_TITLE_CHARS = 200
_NOT_PLAIN = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class Visibility(StrEnum):
    PRIVATE = "private"
    PUBLIC = "public"


class Page(DeletedWithTenant, Base):
    __tablename__ = "pages"
    __table_args__ = (
        CheckConstraint("visibility IN ('private', 'public')", name="visibility"),
        ForeignKeyConstraint(["tenant_id", "owner_id"], ["users.tenant_id", "users.id"]),
        Index("uq_pages_external_id", "tenant_id", "external_id", unique=True),
        Index("ix_pages_space", "tenant_id", "space_key", "id"),
        Index("ix_pages_url", "tenant_id", "url"),
        Index("ix_pages_address", "tenant_id", "address", "id"),
        Index("ix_pages_owner", "tenant_id", "owner_id"),
        Index("ix_pages_public", "tenant_id", "id", postgresql_where=text("visibility = 'public'")),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    external_id: Mapped[str]
    space_key: Mapped[str]
    title: Mapped[str]
    url: Mapped[str]
    # The url as it is compared (`addresses`); NULL until `page_addresses.fill` has come to a page of an older release.
    address: Mapped[str | None]
    owner_id: Mapped[UUID | None] = mapped_column(Uuid)
    visibility: Mapped[str] = mapped_column(server_default=Visibility.PRIVATE)
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]


class PageNotFound(NotFound):
    """The page does not exist, or is another tenant's."""

    def __init__(self, external_id: str) -> None:
        super().__init__(f"There is no page {external_id[:128]!r}")


def count(tx: Tx, limit: int) -> int:
    """How many pages there are, counted up to `limit`."""
    counted = text("SELECT count(*) FROM (SELECT FROM pages WHERE tenant_id = :tenant LIMIT :limit) p")
    return int(tx.scalar(counted, {"tenant": tx.tenant, "limit": limit}) or 0)


def count_spaces(tx: Tx, limit: int) -> int:
    """How many spaces have pages, or had pages on boards (whose rows remain), counted up to `limit`."""
    return int(tx.scalar(_SPACES, {"tenant": tx.tenant, "limit": limit}) or 0)


_SPACES = ceilings.count_values("pages", ("space_key",), scope="space:")


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


def find_all(tx: Tx, page_ids: Collection[int], *, public_only: bool) -> list[Page]:
    """Those of these pages that exist. With `public_only` private ones do not."""
    query = select(Page).where(Page.id.in_(page_ids))
    return list(tx.scalars(query.where(Page.visibility == Visibility.PUBLIC) if public_only else query))


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


def titles_and_spaces(tx: Tx, external_ids: Sequence[str]) -> dict[str, tuple[str, str]]:
    """The title and the space of those that exist."""
    if not external_ids:
        return {}
    rows = tx.execute(select(Page.external_id, Page.title, Page.space_key).where(Page.external_id.in_(external_ids)))
    return {row.external_id: (row.title, row.space_key) for row in rows}


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


def find_by_address(tx: Tx, urls: Sequence[str], origins: Collection[str]) -> str | None:
    """The external id of the page at the first of these addresses that is a page's; of several pages, the oldest.

    First as they are, then without their queries; absolute before paths, which are valid on these origins only.
    """
    keys = addresses.candidates(urls, origins)
    exact = [url.split("#", 1)[0] for url in urls]
    as_sent = [*exact, *(url.split("?", 1)[0] for url in exact)]
    found = {
        row.address or addresses.key_of(row.url): row.external_id
        for row in reversed(tx.run_in_one_trip(at_addresses(tx.tenant, keys, as_sent))[0])
    }
    return next((found[key] for key in keys if key in found), None)


def at_addresses(tenant_id: str, keys: Sequence[str], urls: Sequence[str], *, besides: Sequence[str] = ()) -> Query:
    """The query for the oldest page at each of these addresses, besides those with these names; the oldest first.

    Only the oldest, since any number of pages of older releases may have the same address.

    A page without an address was written before there were any, until `page_addresses.fill` has come to it: it is
    found by its very `url`.
    """
    urls = list(dict.fromkeys(urls))
    return _AT_ADDRESSES, {"tenant": tenant_id, "keys": list(keys), "urls": urls, "besides": list(besides)}


_AT_ADDRESSES = text("""
    SELECT p.id, p.external_id, p.url, p.address
    FROM unnest(CAST(:keys AS text[])) k(address) CROSS JOIN LATERAL (
        SELECT id, external_id, url, address FROM pages
        WHERE tenant_id = :tenant AND address = k.address AND external_id <> ALL(CAST(:besides AS text[]))
        ORDER BY id LIMIT 1) p
    UNION ALL
    SELECT p.id, p.external_id, p.url, p.address
    FROM (SELECT min(id) AS id FROM pages
          WHERE tenant_id = :tenant AND address IS NULL AND url = ANY(CAST(:urls AS text[]))
            AND external_id <> ALL(CAST(:besides AS text[])) GROUP BY url) oldest
    JOIN pages p ON p.tenant_id = :tenant AND p.id = oldest.id
    ORDER BY id
""")


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


def plain_title(title: str | None) -> str | None:
    """A document's title as plain text on one line; None if nothing is left."""
    plain = " ".join(_NOT_PLAIN.sub(" ", title or "").split())
    return plain[:MAX_PLAIN_TITLE_CHARS].rstrip() or None


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
