"""Writing pages: one, or up to a thousand in a call, by the same few statements.

No page gets an address that another page has (`addresses`: compared as browsers mean them). A call is judged by what is
there when it is done, so two pages may exchange their addresses in one. There is no unique index, because pages that
had the same address before stay as they are; instead every writer of pages locks what it names. A single page locks
its name and its address; a call with several locks all pages of the tenant, since a thousand locks could fill the
server's table of locks. What was read under these locks is still true when it is written.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import delete as sql_delete
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from analytics import locks, outbox
from analytics.ingest import addresses, page_moves, pages
from analytics.ingest.pages import Page, PageNotFound, Visibility
from analytics.outbox import Kind
from tenants import ceilings, users
from tenants.ceilings import Ceiling
from tenants.db import Query, Tx, array
from tenants.errors import Conflict, DomainError, Invalid, Unavailable

MAX_PAGES_PER_CALL = 1000


@dataclass(frozen=True)
class PageWrite:
    """What a page shall be. Visibility and owner stay as they are if they are None (a new page is private)."""

    external_id: str
    space: str
    title: str
    url: str
    visibility: str | None = None
    owner: str | None = None


@dataclass(frozen=True)
class Written:
    new: bool


@dataclass(frozen=True)
class Saved:
    page: Page
    new: bool


class DuplicateUrl(Conflict):
    code = "duplicate_url"
    title = "Another page has this address"

    def __init__(self, other: str) -> None:
        super().__init__(f"Page {other!r} has this address", errors={"url": [f"the address of page {other!r}"]})
        # The answer has it as a field of its own.
        self.members = {"page": other}


class PagesBusy(Unavailable):
    code = "pages_busy"
    title = "Another call is writing pages just now: try again in a moment"


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
    """Create or change a page."""
    (outcome,) = put_all(tx, [PageWrite(external_id, space, title, url, visibility, owner)], now=now)
    if isinstance(outcome, DomainError):
        raise outcome
    return Saved(pages.get(tx, external_id), new=outcome.new)


def put_all(tx: Tx, sent: Sequence[PageWrite], *, now: datetime) -> list[Written | DomainError]:
    """Create or change pages, each as `put` would. For each what became of it; one that is refused stops no other."""
    call = _Call(tx, sent)
    call.refuse_invalid()
    new: set[str] = set()
    if call.accepted():
        facts = call.lock_and_read()
        call.refuse_without_room(facts)
        call.refuse_duplicates(facts)
        new = _write(tx, call.accepted().values(), call.keys, facts.visibilities, now=now)
    return [call.refused.get(place) or Written(page.external_id in new) for place, page in enumerate(sent)]


def delete(tx: Tx, external_id: str) -> None:
    """Delete a page with its likes and views. Its counter is locked first, as in every write to a page."""
    _lock_and_run(tx, [external_id], [])
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


@dataclass(frozen=True)
class _Facts:
    """What there is of what a call names."""

    # The pages it names: their addresses and visibility.
    addresses: dict[str, str]
    visibilities: dict[str, str]
    spaces: set[str]
    owners: set[str]
    # Who is at the addresses it names, oldest first: the pages it names, and the oldest other one of each address.
    holders: list[tuple[str, str]]


class _Call:
    """The pages of a call, and which of them are refused."""

    def __init__(self, tx: Tx, sent: Sequence[PageWrite]) -> None:
        self.refused: dict[int, DomainError] = {}
        # The address of each page that is valid, by its external id.
        self.keys: dict[str, str] = {}
        self._tx = tx
        self._sent = sent

    def accepted(self) -> dict[int, PageWrite]:
        return {place: page for place, page in enumerate(self._sent) if place not in self.refused}

    def refuse_invalid(self) -> None:
        for place, page in enumerate(self._sent):
            try:
                check(page)
                if page.external_id in self.keys:
                    raise Invalid.field("external_id", f"{page.external_id!r} is in this call before")
            except Invalid as error:
                self.refused[place] = error
            else:
                self.keys[page.external_id] = addresses.key_of(page.url)

    def lock_and_read(self) -> _Facts:
        wanted = self.accepted().values()
        tenant, names, keys = self._tx.tenant, sorted(self.keys), sorted({*self.keys.values()})
        owners = {page.owner for page in wanted if page.owner is not None}
        named, holders, spaces, users_ = _lock_and_run(
            self._tx,
            names,
            keys,
            (_NAMED, {"tenant": tenant, "names": names}),
            pages.at_addresses(tenant, keys, [page.url for page in wanted], besides=names),
            (_KNOWN_SPACES, {"tenant": tenant, "spaces": sorted({page.space for page in wanted})}),
            (_KNOWN_OWNERS, {"tenant": tenant, "owners": sorted(owners)}),
        )
        return _Facts(
            addresses={row.external_id: row.address or addresses.key_of(row.url) for row in named},
            visibilities={row.external_id: row.visibility for row in named},
            spaces={row.space for row in spaces},
            owners={row.external_id for row in users_},
            holders=[
                (row.address or addresses.key_of(row.url), row.external_id)
                for row in sorted([*named, *holders], key=lambda row: row.id)
            ],
        )

    def refuse_without_room(self, facts: _Facts) -> None:
        """New pages, spaces and owners must fit below the tenant's ceilings. Of several, the first get the room."""
        self._require_room(Ceiling.USERS, users.count, lambda page: page.owner, facts.owners)
        self._require_room(Ceiling.SPACES, pages.count_spaces, lambda page: page.space, facts.spaces)
        self._require_room(Ceiling.PAGES, pages.count, lambda page: page.external_id, facts.addresses)

    def _require_room(
        self,
        ceiling: Ceiling,
        count: ceilings.Count,
        name_of: Callable[[PageWrite], str | None],
        known: Collection[str],
    ) -> None:
        accepted = self.accepted()
        new = dict.fromkeys(name for page in accepted.values() if (name := name_of(page)) and name not in known)
        if not new:
            return
        granted, refusal = ceilings.reserve(self._tx, ceiling, count, rows=len(new))
        without_room = {*list(new)[granted:]}
        self.refused |= {place: refusal for place, page in accepted.items() if name_of(page) in without_room}

    def refuse_duplicates(self, facts: _Facts) -> None:
        """Refuse pages that would get an address which another page has when the call is done."""
        accepted = self.accepted()
        wanted = {page.external_id: self.keys[page.external_id] for page in accepted.values()}
        others = page_moves.refused_moves(wanted, facts.addresses, facts.holders)
        for place, page in accepted.items():
            if page.external_id in others:
                self.refused[place] = DuplicateUrl(others[page.external_id])


def check(page: PageWrite) -> None:
    """Raise Invalid if there can be no such page."""
    pages.check(external_id=page.external_id, space=page.space, title=page.title, url=page.url)
    if page.visibility is not None and page.visibility not in list(Visibility):
        raise Invalid.field("visibility", f"one of {', '.join(Visibility)}")
    if page.owner is not None:
        users.check_external_id(page.owner)


def _lock_and_run(tx: Tx, names: Sequence[str], keys: Sequence[str], *queries: Query) -> list[list[Any]]:
    """Lock these pages and addresses until the transaction ends, and run queries that then see what was committed."""
    every: Query = (_LOCK_EVERY if len(names) > 1 else _LOCK_EVERY_SHARED, {"tenant": tx.tenant})
    ones: list[Query] = []
    if len(names) == 1:
        locked = [f"page:{tx.tenant}:{names[0]}", *(f"address:{tx.tenant}:{key}" for key in keys)]
        ones = [(_LOCK_ONES, {"ones": locked})]
    try:
        return tx.run_in_one_trip(every, *ones, *queries)[1 + len(ones) :]
    except DBAPIError as error:
        if locks.is_timeout(error):
            raise PagesBusy from None
        raise


def _write(
    tx: Tx, accepted: Iterable[PageWrite], keys: Mapping[str, str], visibilities: Mapping[str, str], *, now: datetime
) -> set[str]:
    """Write the pages, by external id so that no two calls deadlock. Returns which are new."""
    written = sorted(accepted, key=lambda page: page.external_id)
    if not written:
        return set()
    owners = _ensure_owners(tx, {page.owner for page in written if page.owner is not None}, now=now)
    rows = tx.run(
        _UPSERT,
        {
            "tenant": tx.tenant,
            "external_ids": [page.external_id for page in written],
            "spaces": [page.space for page in written],
            "titles": [page.title for page in written],
            "urls": [page.url for page in written],
            "addresses": [keys[page.external_id] for page in written],
            "owners": [owners.get(page.owner or "") for page in written],
            "visibilities": [
                page.visibility or visibilities.get(page.external_id, Visibility.PRIVATE.value) for page in written
            ],
            "now": now,
        },
    )
    new = [row for row in rows if row.new]
    if new:
        tx.run(_NEW_COUNTERS, {"tenant": tx.tenant, "pages": array(row.id for row in new)})
    outbox.mark_stale(tx, Kind.PAGE, [row.id for row in rows])  # the others are as they were
    return {row.external_id for row in new}


def _ensure_owners(tx: Tx, names: Iterable[str], *, now: datetime) -> dict[str, UUID]:
    """The ids of these users, created where they do not exist; there is room for them."""
    wanted = sorted(names)
    if not wanted:
        return {}
    (row,) = tx.run(_ENSURE_USERS, {"tenant": tx.tenant, "names": wanted, "room": len(wanted), "now": now})
    return dict(zip(wanted, row.ids, strict=True))


_LOCK_EVERY = text("SELECT pg_advisory_xact_lock(hashtextextended('pages:' || :tenant, 0))")
_LOCK_EVERY_SHARED = text("SELECT pg_advisory_xact_lock_shared(hashtextextended('pages:' || :tenant, 0))")
_LOCK_ONES = text("""
    SELECT pg_advisory_xact_lock(l.id)
    FROM (SELECT DISTINCT hashtextextended(o.name, 0) AS id FROM unnest(CAST(:ones AS text[])) o(name) ORDER BY id) l
""")
_NAMED = text("""
    SELECT id, external_id, url, address, visibility FROM pages
    WHERE tenant_id = :tenant AND external_id = ANY(CAST(:names AS text[]))
""")
_KNOWN_SPACES = text("""
    SELECT s.space FROM unnest(CAST(:spaces AS text[])) s(space)
    WHERE EXISTS (SELECT FROM pages p WHERE p.tenant_id = :tenant AND p.space_key = s.space)
       OR EXISTS (SELECT FROM boards b WHERE b.tenant_id = :tenant AND b.scope = 'space:' || s.space)
""")
_KNOWN_OWNERS = text("""
    SELECT external_id FROM users WHERE tenant_id = :tenant AND external_id = ANY(CAST(:owners AS text[]))
""")
_ENSURE_USERS = text("SELECT ids FROM ensure_users(:tenant, CAST(:names AS text[]), :room, :now)")
_UPSERT = text("""
    INSERT INTO pages AS p
        (tenant_id, external_id, space_key, title, url, address, owner_id, visibility, created_at, updated_at)
    SELECT t.id, w.external_id, w.space, w.title, w.url, w.address, w.owner_id, w.visibility, :now, :now
    FROM tenants t CROSS JOIN
        unnest(CAST(:external_ids AS text[]), CAST(:spaces AS text[]), CAST(:titles AS text[]), CAST(:urls AS text[]),
               CAST(:addresses AS text[]), CAST(:owners AS uuid[]), CAST(:visibilities AS text[]))
        AS w(external_id, space, title, url, address, owner_id, visibility)
    WHERE t.id = :tenant ORDER BY w.external_id
    ON CONFLICT (tenant_id, external_id) DO UPDATE SET
        space_key = EXCLUDED.space_key, title = EXCLUDED.title, url = EXCLUDED.url, address = EXCLUDED.address,
        owner_id = COALESCE(EXCLUDED.owner_id, p.owner_id), visibility = EXCLUDED.visibility,
        updated_at = EXCLUDED.updated_at
    WHERE (p.space_key, p.title, p.url, p.address, p.owner_id, p.visibility) IS DISTINCT FROM
          (EXCLUDED.space_key, EXCLUDED.title, EXCLUDED.url, EXCLUDED.address,
           COALESCE(EXCLUDED.owner_id, p.owner_id), EXCLUDED.visibility)
    RETURNING id, external_id, xmax = 0 AS new
""")
_NEW_COUNTERS = text("""
    INSERT INTO page_counters (tenant_id, page_id)
    SELECT t.id, w.id FROM tenants t CROSS JOIN unnest(CAST(:pages AS bigint[])) w(id) WHERE t.id = :tenant
""")
