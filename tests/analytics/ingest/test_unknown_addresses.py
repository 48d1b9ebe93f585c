"""Addresses of refused views: counted in the refusal's commit, without values of queries, and at most 1,000."""

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text

from analytics import checks
from analytics.ingest import page_writes, pages, rejections, unknown_addresses, writes
from analytics.ingest.unknown_addresses import MAX_ADDRESSES, AddressNotListed, masked
from analytics.ingest.writes import EventKind, Item, WriteRequest, commit_together
from tenants import credentials, retention
from tenants.credentials import ClientToken
from tenants.db import owner_tx, tenant_tx, utcnow
from tests.analytics.conftest import put_page, views_of
from tests.citus import not_on_citus

SITE = "https://wiki.example"


def refuse(tenant: str, *addresses: str, title: str | None = None, now: datetime | None = None) -> None:
    """Views of these addresses are refused in one commit."""
    requests = [
        WriteRequest(tenant, [], now or utcnow(), rejected={"unknown_page": 1}, unknown=(address, title))
        for address in addresses
    ]
    assert commit_together(requests, shared=True) == []


def listed(tenant: str, limit: int = 2000) -> dict[str, int]:
    with tenant_tx(tenant) as tx:
        return {row.address: row.refused for row in unknown_addresses.list_(tx, after=None, limit=limit)}


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        (f"{SITE}/a", f"{SITE}/a"),
        (f"{SITE}/a?id=5&user=ada&id=6", f"{SITE}/a?id=*&user=*&id=*"),
        (f"{SITE}/a?ada@example.org&x=", f"{SITE}/a?*&x=*"),
        (f"{SITE}/a?c2VjcmV0dG9rZW4=", f"{SITE}/a?*"),  # a value that ends as base64 does
        (f"{SITE}/a?a=b=c", f"{SITE}/a?a=*"),
        (f"{SITE}/a?", f"{SITE}/a"),
        (f"{SITE}/a?id=5#/b?token=c", f"{SITE}/a?id=*#/b?token=*"),
        ("/a?id=5", "/a?id=*"),
        ("/a#!user=ada&token=secret&name", "/a#!user=*&token=*&*"),
        ("/a#/b&c/user=ada?x=y", "/a#/b&c/user=*?x=*"),
        ("/A&B=C#/b&c", "/A&B=C#/b&c"),
    ],
)
def test_no_value_of_a_query_is_shown(address: str, shown: str) -> None:
    assert masked(address) == shown == masked(shown)


@given(st.text(alphabet="ab/?#!&=*;", max_size=40))
def test_what_is_masked_stays_as_it_is(address: str) -> None:
    assert masked(masked(address)) == masked(address)


def test_each_refusal_counts_and_the_newest_title_stays(tenant: str, other_tenant: str) -> None:
    long_ago = utcnow() - timedelta(days=2)
    refuse(tenant, f"{SITE}/a?id=1", f"{SITE}/b", f"{SITE}/a?id=2", title="Old\nTitle", now=long_ago)
    refuse(tenant, f"{SITE}/a?id=3", title="\u202eNew " + "x" * 300)
    refuse(tenant, f"{SITE}/a?id=3", f"{SITE}/{'x' * 3000}", f"{SITE}/?{'a=&' * 1000}")
    assert listed(tenant) == {f"{SITE}/a?id=*": 4, f"{SITE}/b": 1}
    assert listed(other_tenant) == {}
    with tenant_tx(tenant) as tx:
        a, b = (unknown_addresses.find(tx, address) for address in (f"{SITE}/a?id=*", f"{SITE}/b"))
    assert (a.title, b.title) == ("New " + "x" * 196, "Old Title")
    assert (a.first_seen, b.last_seen) == (long_ago, long_ago)
    assert a.last_seen > long_ago
    assert checks.check(tenant, now=utcnow()).differences == []


def test_the_least_counted_leaves_when_another_address_comes(tenant: str) -> None:
    addresses = [f"{SITE}/{number}" for number in range(MAX_ADDRESSES)]
    refuse(tenant, *addresses)
    refuse(tenant, *(one for one in addresses if one != f"{SITE}/500"))
    assert len(listed(tenant)) == MAX_ADDRESSES
    refuse(tenant, f"{SITE}/new")
    rows = listed(tenant)
    assert len(rows) == MAX_ADDRESSES
    assert set(addresses) - set(rows) == {f"{SITE}/500"}, "the least counted, and not the new one"
    refuse(tenant, f"{SITE}/newer")
    assert set(addresses) - set(listed(tenant)) == {f"{SITE}/500"}, "which is the least counted now"
    refuse(tenant, *(f"{SITE}/many/{number}" for number in range(MAX_ADDRESSES + 5)))
    assert len(listed(tenant)) == MAX_ADDRESSES, "more than fit come at once"


def test_they_are_counted_with_their_refusal_or_not_at_all(tenant: str) -> None:
    """A commit in which a token is not valid any more writes nothing of its tenant: what is left is written again."""
    put_page(tenant, "home")
    with tenant_tx(tenant) as tx:
        client_id = credentials.create_client(tx, name="x", scopes=["events:write"], now=utcnow()).client.id
        credentials.revoke_client(tx, client_id, now=utcnow())
    view = Item(EventKind.VIEW, "home", utcnow())
    revoked = WriteRequest(tenant, [view], utcnow(), token=ClientToken(client_id, "t"))
    beacon = WriteRequest(tenant, [view], utcnow(), rejected={"unknown_page": 1}, unknown=(f"{SITE}/a", None))
    assert commit_together([revoked, beacon], shared=True) == [beacon]
    assert (views_of(tenant), listed(tenant)) == (0, {})
    assert commit_together([beacon], shared=True) == []
    with tenant_tx(tenant) as tx:
        writes.apply(tx, beacon)
        assert rejections.by_reason(tx, since=utcnow() - timedelta(hours=1)) == {"unknown_page": 2}
    assert (views_of(tenant), listed(tenant)) == (2, {f"{SITE}/a": 2})


def test_an_address_leaves_seven_days_after_it_was_last_seen(tenant: str) -> None:
    now = utcnow()
    refuse(tenant, f"{SITE}/gone", f"{SITE}/stays", now=now - timedelta(days=7, seconds=1))
    refuse(tenant, f"{SITE}/stays", now=now - timedelta(days=7) + timedelta(seconds=1))
    retention.purge_expired(now=now, is_over=lambda: False)
    assert listed(tenant) == {f"{SITE}/stays": 2}


def test_what_became_a_page_is_forgotten_with_all_its_queries(tenant: str) -> None:
    refuse(tenant, f"{SITE}/a", f"{SITE}/a?id=1", f"{SITE}/a?id=1&b=2", f"{SITE}/ab", f"{SITE}/b?id=1", f"{SITE}/b")
    with tenant_tx(tenant) as tx:
        unknown_addresses.forget(tx, f"{SITE}/a")
        unknown_addresses.forget(tx, f"{SITE}/b?id=7")
        unknown_addresses.dismiss(tx, f"{SITE}/ab")
        with pytest.raises(AddressNotListed):
            unknown_addresses.dismiss(tx, f"{SITE}/ab")
        with pytest.raises(AddressNotListed):
            unknown_addresses.find(tx, f"{SITE}/a")
    assert listed(tenant) == {f"{SITE}/b": 1}


@not_on_citus
def test_forgetting_locks_addresses_in_their_order(tenant: str) -> None:
    """As commits do that count them: else the two could wait for each other."""
    refuse(tenant, f"{SITE}/a?z=1")
    refuse(tenant, f"{SITE}/a?b=1")
    held = text("SELECT FROM unknown_addresses WHERE tenant_id = :t AND address = :a FOR UPDATE NOWAIT")
    waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted AND :pid = ANY(pg_blocking_pids(pid))")

    def forget() -> None:
        with tenant_tx(tenant) as tx:
            unknown_addresses.forget(tx, f"{SITE}/a")

    with ThreadPoolExecutor(1) as threads, owner_tx() as tx:
        tx.execute(held, {"t": tenant, "a": f"{SITE}/a?b=*"})
        pid = tx.scalar(text("SELECT pg_backend_pid()"))
        forgetting = threads.submit(forget)
        while not tx.scalar(waiting, {"pid": pid}) and not forgetting.done():
            time.sleep(0.01)
        tx.execute(held, {"t": tenant, "a": f"{SITE}/a?z=*"})
    forgetting.result()
    assert listed(tenant) == {}


def test_what_is_a_page_by_now_is_not_listed(tenant: str) -> None:
    refuse(tenant, f"{SITE}/a?id=1", f"{SITE}/a/b", f"{SITE}/b", f"{SITE}/c?id=1")
    with tenant_tx(tenant) as tx:
        for url in ("http://www.wiki.example/a/", "/b", f"{SITE}/c?id=7"):
            page_writes.put(tx, f"at{url[-1]}".strip("/"), space="s", title="t", url=url, now=utcnow())
    assert listed(tenant) == {f"{SITE}/a/b": 1, f"{SITE}/c?id=*": 1}


def test_the_list_does_not_compare_every_address_with_every_page(tenant: str) -> None:
    """Anybody with the key can fill it: with 5,000 pages it took longer than a statement may."""
    with owner_tx() as tx:
        tx.execute(
            text("""
                INSERT INTO unknown_addresses
                    (tenant_id, address, page_address, refused, first_seen, last_seen)
                SELECT :t, 'https://w.example/' || n, 'w.example/' || n, 1, now(), now() FROM generate_series(1, 1000) n
            """),
            {"t": tenant},
        )
        tx.execute(
            text("""
                INSERT INTO pages (tenant_id, external_id, space_key, title, url, address, created_at, updated_at)
                SELECT :t, 'p' || n, 's', 't', '/p' || n, '/p' || n, now(), now() FROM generate_series(1, 5000) n
            """),
            {"t": tenant},
        )
        tx.execute(text("ANALYZE unknown_addresses, pages"))
    with tenant_tx(tenant) as tx:
        values = {"tenant": tenant, "refused": None, "digest": None, "limit": 20}
        plan = "\n".join(tx.scalars(text(f"EXPLAIN {unknown_addresses._LIST.text}"), values))
    assert "Join Filter" not in plan, plan


def test_a_page_of_a_route_is_the_page_of_all_its_values(tenant: str) -> None:
    refuse(tenant, f"{SITE}/a#!/b&user=ada", f"{SITE}/a#/c?token=secret", f"{SITE}/a#!user=ada")
    with tenant_tx(tenant) as tx:
        for url, address in (("/a#!/b", "/a#!/b&user=*"), ("/a#/c", "/a#/c?token=*"), ("/a", "/a#!user=*")):
            assert unknown_addresses.find(tx, SITE + address).url == SITE + url
            page_writes.put(
                tx,
                url.strip("/").replace("#", ":").replace("!", "").replace("/", "."),
                space="s",
                title="t",
                url=SITE + url,
                now=utcnow(),
            )
        found = [
            pages.find_by_address(tx, [f"{SITE}{path}"], [SITE])
            for path in ("/a#!/b&user=bob", "/a#/c?token=other", "/a#!user=bob", "/a#!other")
        ]
    assert found == ["a:.b", "a:.c", "a", None]


def test_the_check_finds_a_value_that_is_shown(tenant: str) -> None:
    refuse(tenant, f"{SITE}/A&B=C", f"{SITE}/?a=b#!c=d", f"{SITE}/a#/b&c")
    assert checks.check(tenant, now=utcnow()).differences == []
    with owner_tx() as tx:
        row = "INSERT INTO unknown_addresses VALUES (:t, '/a?token=secret', '/a', NULL, 1, now(), now())"
        tx.execute(text(row), {"t": tenant})
    (found,) = checks.check(tenant, now=utcnow()).differences
    assert (found.where, found.found, found.expected) == ("unknown_addresses", 1, 0)
    with owner_tx() as tx:
        tx.execute(text("DELETE FROM unknown_addresses WHERE tenant_id = :t"), {"t": tenant})
