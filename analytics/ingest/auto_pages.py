"""Pages that make themselves: the first view of an unknown address creates its page, where a key or tenant allows it.

Whatever a browser sends may be forged by anybody who has the publishable key. So a page is made only on an origin that
the key allows, private unless the tenant's `space_rules` say otherwise, with a plain title, and at most
`limits.auto_pages_per_day`, which PostgreSQL counts; one network makes at most half of what the others leave, so that
none uses up the day of all. Its `external_id` follows from its address, so that processes that
see the first view of it at the same moment make one page.
"""

import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, date, datetime
from urllib.parse import unquote

from sqlalchemy import Date, text
from sqlalchemy.orm import Mapped, mapped_column

from analytics.ingest import page_writes, pages, unknown_addresses
from analytics.ingest.addresses import Address
from analytics.ingest.page_writes import DuplicateUrl, PagesBusy, Saved
from analytics.ingest.pages import plain_title
from tenants import throttle
from tenants.ceilings import CeilingReached
from tenants.db import Base, DeletedWithTenant, Tx
from tenants.settings import SpaceRule, TenantSettings

# The space of pages that no rule is for. One, and not each path's first segment: a space has boards of its own, and
# anybody could make up segments until the tenant has no room for another space.
DEFAULT_SPACE = "web"
MAX_SLUG_CHARS = 100
HASH_CHARS = 16
_NOT_IN_SLUGS = re.compile(r"[^A-Za-z0-9._~]+")


class AutoPagesDay(DeletedWithTenant, Base):
    """How many pages have made themselves on a day (UTC)."""

    __tablename__ = "auto_pages_day"

    day: Mapped[date] = mapped_column(Date, primary_key=True)
    made: Mapped[int]


class _TooMany(Exception):
    """As many pages as a day may have made themselves already."""


@dataclass(frozen=True)
class Place:
    """Where a page is: its address as it is shown, and as addresses are compared."""

    url: str
    address: Address

    @property
    def external_id(self) -> str:
        """Readable, and the same for all addresses that mean the same."""
        slug = _NOT_IN_SLUGS.sub("-", unquote(self.address.path)).strip("-.")[:MAX_SLUG_CHARS].rstrip("-.")
        digest = hashlib.sha256(self.address.text.encode()).hexdigest()[:HASH_CHARS]
        return f"{slug or 'page'}~{digest}"

    @property
    def title(self) -> str:
        """For a document without a title: the last segment of its path, or its host."""
        last = unquote(self.address.path).rstrip("/").rpartition("/")[2]
        return plain_title(last) or self.address.host or self.address.path


def place_of(url: str, canonical: str | None, origins: Collection[str], *, is_listed: bool = False) -> Place | None:
    """Where a document is: at its canonical address, if that is on one of these origins. None: it is on none.

    With `is_listed` on one origin of its host, whatever the browser's was: each address is one row of the list.
    """
    here = _place_at(url, origins, is_listed=is_listed)
    if here is None or canonical is None:
        return here
    return _place_at(canonical, origins, is_listed=is_listed) or here


def _place_at(url: str, origins: Collection[str], *, is_listed: bool) -> Place | None:
    """The address as it is shown, without what does not matter. A path is on all origins."""
    address = Address.parse(url)
    if address is None:
        return None
    shown = address.text
    if not address.is_path:
        same_host = [origin for origin in origins if _host_of(origin) == address.host]
        if not same_host:
            return None
        # With the scheme and host of the browser, if they are allowed in exactly this form.
        sent = [one for one in same_host if url.startswith((f"{one}/", f"{one}?")) or url == one]
        origin = min(same_host if is_listed else sent or same_host, key=_by_preference)
        shown = origin + address.as_path().text
    return Place(shown, address) if pages.is_url(shown) else None


def _by_preference(origin: str) -> tuple[bool, int, str]:
    """https first, and without `www.`."""
    return not origin.startswith("https:"), len(origin), origin


def _host_of(origin: str) -> str:
    address = Address.parse(origin)
    return address.host if address is not None else ""


def create(
    tx: Tx,
    *,
    url: str,
    canonical: str | None,
    title: str | None,
    origins: Collection[str],
    network: str,
    settings: TenantSettings,
    now: datetime,
) -> str | None:
    """Make the page of an address that no page has; returns its `external_id`, or None if it may not be made.

    The caller has looked for the page, and knows that the key or the tenant allows it.
    """
    if (place := place_of(url, canonical, origins)) is None:
        return None
    if not _exists(tx, place):
        try:
            _make_within_limit(tx, place, title, network, settings, now=now)
        except (_TooMany, CeilingReached, PagesBusy):
            return None
        except DuplicateUrl as error:  # another process was quicker, or the canonical address is a page already
            return error.members["page"]
    return place.external_id


def _make_within_limit(
    tx: Tx, place: Place, title: str | None, network: str, settings: TenantSettings, *, now: datetime
) -> None:
    """In a savepoint: what is not made is not counted either.

    The day's row is locked until the commit, so the network's pages are looked up and counted under that lock: of many
    that begin together each sees those before it. (Without Redis nobody waits for it, but for one call a second.)
    """
    of_day = throttle.per_day(max(1, settings.limits.auto_pages_per_day))
    with tx.begin_nested():
        tx.connection()  # which sends the savepoint: what follows goes to the driver itself
        values = {"tenant": tx.tenant, "day": now.astimezone(UTC).date(), "limit": settings.limits.auto_pages_per_day}
        counted = tx.run(_COUNT, values)
        if not counted:
            raise _TooMany
        by_network = of_day.amount - throttle.look("auto-pages", of_day, tx.tenant, network).remaining
        if counted[0].made + by_network > of_day.amount:
            raise _TooMany
        make(tx, place, title=title, settings=settings, now=now)
        throttle.hit("auto-pages", of_day, tx.tenant, network)


def make(
    tx: Tx,
    place: Place,
    *,
    title: str | None = None,
    space: str | None = None,
    visibility: str | None = None,
    settings: TenantSettings,
    now: datetime,
) -> Saved:
    """Make a page here; space and visibility are those of the tenant's rules, unless others are given."""
    if _exists(tx, place):
        raise DuplicateUrl(place.external_id)
    rule = rule_for(place.url, settings)
    saved = page_writes.put(
        tx,
        place.external_id,
        space=space or rule.space,
        title=plain_title(title) or place.title,
        url=place.url,
        visibility=visibility or rule.visibility,
        now=now,
    )
    unknown_addresses.forget(tx, place.url)
    return saved


def make_listed(
    tx: Tx,
    listed: str,
    *,
    title: str | None = None,
    space: str | None = None,
    visibility: str | None = None,
    settings: TenantSettings,
    now: datetime,
) -> Saved:
    """Make an unknown address a page, as an admin wants it: without its query, so for every query of it."""
    row = unknown_addresses.find(tx, listed)
    if (address := Address.parse(row.url)) is None:
        raise unknown_addresses.AddressNotListed
    place = Place(row.url, address)
    title = title or row.title
    return make(tx, place, title=title, space=space, visibility=visibility, settings=settings, now=now)


def rule_for(url: str, settings: TenantSettings) -> SpaceRule:
    """The first of the tenant's rules that matches. A prefix that ends with a slash is also for the folder itself."""
    address = Address.parse(url)
    path = f"{address.path.rstrip('/')}/" if address is not None else ""
    return next((rule for rule in settings.space_rules if path.startswith(_prefix_of(rule))), _NO_RULE)


def _prefix_of(rule: SpaceRule) -> str:
    """As paths are compared, which have no slash at their end."""
    address = Address.parse(rule.prefix)
    if address is None:
        return rule.prefix
    return f"{address.path.rstrip('/')}/" if rule.prefix.endswith("/") else address.path


def _exists(tx: Tx, place: Place) -> bool:
    return bool(tx.run(_EXISTS, {"tenant": tx.tenant, "page": place.external_id}))


_NO_RULE = SpaceRule("/", DEFAULT_SPACE)
_EXISTS = text("SELECT id FROM pages WHERE tenant_id = :tenant AND external_id = :page")
_COUNT = text("""
    INSERT INTO auto_pages_day AS d (tenant_id, day, made)
    SELECT t.id, CAST(:day AS date), 1 FROM tenants t CROSS JOIN (SELECT 1) one
    WHERE t.id = :tenant AND CAST(:limit AS int) > 0
    ON CONFLICT (tenant_id, day) DO UPDATE SET made = d.made + 1 WHERE d.made < CAST(:limit AS int)
    RETURNING made
""")
