"""Unknown addresses: where browsers have seen documents that are no pages, so that an admin can make them pages.

Each refused view of an address that no page has is counted here, in the commit that counts its rejection
(`WriteRequest.unknown`). Values in the query and in the fragment are replaced by `*` before anything is stored, since
they may be anybody's names or tokens; the path and the document's title are stored as they are. A tenant has at most
1,000 addresses, of which the least counted leave (the SQL function `count_unknown_addresses`, migration 0021), each for
7 days after it was last seen (`tenants.retention`).
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, select, text
from sqlalchemy.orm import Mapped, mapped_column

from analytics.ingest.addresses import Address, key_of, route_of
from analytics.ingest.pages import MAX_URL_BYTES, plain_title
from tenants.db import Base, DeletedWithTenant, Tx
from tenants.errors import NotFound

MAX_ADDRESSES = 1_000
MAX_EMPTY_NAME_CHARS = 12
# What commits at the same moment may add to them, until the next new address.
MAX_AT_ONCE = 100
# Inside a statement: what counts addresses, with a value for each `%s` from `values`. Returns how many are new.
COUNT = "count_unknown_addresses(%s, %s::text[], %s::text[], %s::text[], %s::timestamptz)"

# An address, and the title of the document there.
Unknown = tuple[str, str | None]


class UnknownAddress(DeletedWithTenant, Base):
    """An address that no page has, without the values of its query, and how often views of it were refused."""

    __tablename__ = "unknown_addresses"

    address: Mapped[str] = mapped_column(primary_key=True)
    # As pages have it: that of `url`.
    page_address: Mapped[str]
    title: Mapped[str | None]
    refused: Mapped[int] = mapped_column(BigInteger)
    first_seen: Mapped[datetime]
    last_seen: Mapped[datetime]

    @property
    def url(self) -> str:
        """Where its page would be: without the query, whose values are not known."""
        return without_query(self.address)


class AddressNotListed(NotFound):
    """The address is not on the list, or on another tenant's."""

    def __init__(self) -> None:
        super().__init__("This address is not on the list of unknown addresses")


def masked(address: str) -> str:
    """The address without the values in its query, nor in its fragment: `?id=5&draft` becomes `?id=*&*`."""
    before, hash_, fragment = address.partition("#")
    route, mark, query = fragment.partition("?")
    shown = route_of(route)
    # From the first name with a value on.
    values = route.removeprefix(shown)
    return _masked_query(before) + hash_ + shown + _masked_parts(values, "&" * bool(shown)) + _masked_parts(query, mark)


def without_query(address: str) -> str:
    before, _, fragment = address.partition("#")
    route = route_of(fragment)
    return before.partition("?")[0] + "#" * bool(route) + route


def _masked_query(address: str) -> str:
    path, mark, query = address.partition("?")
    return path + _masked_parts(query, mark)


def _masked_parts(query: str, mark: str) -> str:
    """After its mark, if there is any. What has no name is a value."""
    parts = [_masked_part(part) for part in query.split("&") if part]
    return mark * bool(parts) + "&".join(parts)


def _masked_part(part: str) -> str:
    """A long name without a value may be a value that ends as base64 does."""
    name, _, value = part.partition("=")
    has_name = bool(value.strip("=")) or ("=" in part and len(name) <= MAX_EMPTY_NAME_CHARS)
    return f"{name}=*" if has_name else "*"


def values(tenant_id: str, unknown: Sequence[Unknown], *, now: datetime) -> tuple[Any, ...]:
    """The values of `COUNT`. What is no address, or too long for a page, is not listed."""
    rows = [
        (address, parsed.key, plain_title(title))
        for address, title in ((masked(address), title) for address, title in unknown)
        if (parsed := Address.parse(without_query(address))) is not None and len(address.encode()) <= MAX_URL_BYTES
    ]
    addresses, page_addresses, titles = ([row[column] for row in rows] for column in range(3))
    return tenant_id, addresses, page_addresses, titles, now


def list_(tx: Tx, *, after: tuple[int, str] | None, limit: int) -> list[Any]:
    """The most counted first, without those that are pages by now, on any origin.

    `digest` orders addresses of the same count: they may be too long for a cursor.
    """
    refused, digest = after or (None, None)
    return tx.run(_LIST, {"tenant": tx.tenant, "refused": refused, "digest": digest, "limit": limit})


def find(tx: Tx, address: str) -> UnknownAddress:
    row = tx.scalar(select(UnknownAddress).where(UnknownAddress.address == address))
    if row is None:
        raise AddressNotListed
    return row


def forget(tx: Tx, address: str) -> None:
    """It has become a page, in whatever form it is listed. One without a query is the page of any query."""
    mask = masked(address)
    place = without_query(mask)
    rows = tx.run(_LOCK_AT, {"tenant": tx.tenant, "page_address": key_of(place)})
    gone = [row.address for row in rows if mask == place or key_of(row.address) == key_of(mask)]
    if gone:
        tx.run(_FORGET, {"tenant": tx.tenant, "addresses": gone})


def dismiss(tx: Tx, address: str) -> None:
    """Nobody wants to see it."""
    if not tx.run(_DISMISS, {"tenant": tx.tenant, "address": address}):
        raise AddressNotListed


def differences(tx: Tx) -> Iterator[tuple[str, str, Any, Any]]:
    """For `plaudit check`: where, what, found and expected."""
    addresses = tx.scalars(select(UnknownAddress.address)).all()
    if len(addresses) > MAX_ADDRESSES + MAX_AT_ONCE:
        yield "unknown_addresses", "addresses", len(addresses), MAX_ADDRESSES
    unmasked = sum(masked(address) != address for address in addresses)
    if unmasked:
        yield "unknown_addresses", "addresses that show a value of their query", unmasked, 0


_LIST = text("""
    SELECT address, title, refused, first_seen, last_seen, digest
    FROM (SELECT u.address, u.title, u.refused, u.first_seen, u.last_seen, md5(u.address) AS digest
          FROM unknown_addresses u WHERE u.tenant_id = :tenant
          -- Two conditions and not one with OR or IN, which would compare every address with every page.
          AND NOT EXISTS (SELECT FROM pages p WHERE p.tenant_id = :tenant AND p.address = u.page_address)
          AND NOT EXISTS (SELECT FROM pages p WHERE p.tenant_id = :tenant
                          AND p.address = substr(u.page_address, strpos(u.page_address, '/')))) listed
    WHERE CAST(:refused AS bigint) IS NULL OR (-refused, digest) > (-CAST(:refused AS bigint), CAST(:digest AS text))
    ORDER BY refused DESC, digest LIMIT :limit
""")
# Locked in the order in which commits count them, so that no two wait for each other.
_LOCK_AT = text("""
    SELECT address FROM unknown_addresses
    WHERE tenant_id = :tenant AND page_address = :page_address ORDER BY address FOR UPDATE
""")
_FORGET = text("""
    DELETE FROM unknown_addresses WHERE tenant_id = :tenant AND address = ANY(CAST(:addresses AS text[]))
""")
_DISMISS = text(
    "DELETE FROM unknown_addresses WHERE tenant_id = :tenant AND address = :address RETURNING 1 AS dismissed"
)
