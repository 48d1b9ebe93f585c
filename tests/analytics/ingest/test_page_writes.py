"""Writing pages, one or many: no two get the same address, whoever writes at the same time."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import get_ident
from typing import Any

import pytest
from sqlalchemy import event, select, text
from sqlalchemy.engine import Engine

from analytics.ingest import page_addresses, page_writes, pages
from analytics.ingest.page_writes import DuplicateUrl, PagesBusy, PageWrite
from analytics.ingest.pages import Page
from tenants import pipelines
from tenants.db import owner_tx, tenant_tx, utcnow
from tenants.errors import DomainError
from tenants.pipelines import Driver, Statement
from tests.analytics.conftest import put_page


def write(tenant: str, *sent: tuple[str, str], **more: Any) -> list[str]:
    """Write pages, each with its id and url; for each what became of it."""
    wanted = [PageWrite(name, "eng", "T", url, **more) for name, url in sent]
    with tenant_tx(tenant) as tx:
        outcomes = page_writes.put_all(tx, wanted, now=utcnow())
    return [
        outcome.detail if isinstance(outcome, DomainError) else "new" if outcome.new else "known"
        for outcome in outcomes
    ]


def urls_of(tenant: str) -> dict[str, str]:
    with tenant_tx(tenant) as tx:
        return {page.external_id: page.url for page in tx.scalars(select(Page))}


def test_a_call_is_judged_by_its_end_and_a_refused_page_stops_no_other(tenant: str) -> None:
    assert write(tenant, ("a", "/a"), ("b", "/b"), ("c", "/c")) == ["new"] * 3
    assert write(tenant, ("a", "/b/"), ("b", "/a?utm_source=x")) == ["known"] * 2, "they exchange their addresses"
    assert urls_of(tenant) == {"a": "/b/", "b": "/a?utm_source=x", "c": "/c"}
    outcomes = write(tenant, ("d", "/d"), ("e", "/d/"), ("d", "/x"), ("c", "/b#top"), ("a", "/b"), ("b", "no address"))
    assert outcomes == [
        "new",
        "Page 'd' has this address",
        "external_id: 'd' is in this call before",
        "Page 'a' has this address",
        "known",
        "url: an http or https address, or a path, of at most 2048 bytes",
    ]
    assert urls_of(tenant) == {"a": "/b", "b": "/a?utm_source=x", "c": "/c", "d": "/d"}


def test_deleting_or_moving_a_page_frees_its_address_and_old_duplicates_stay(tenant: str) -> None:
    write(tenant, ("a", "/a"), ("b", "/b"))
    with pytest.raises(DuplicateUrl) as refused, tenant_tx(tenant) as tx:
        page_writes.put(tx, "c", space="s", title="t", url="/a", now=utcnow())
    assert refused.value.members == {"page": "a"}
    write(tenant, ("a", "/moved"))
    assert write(tenant, ("c", "/a")) == ["new"]
    with tenant_tx(tenant) as tx:
        page_writes.delete(tx, "b")
    assert write(tenant, ("d", "/b")) == ["new"]

    with owner_tx() as tx:  # as a release before this one left them
        tx.execute(text("UPDATE pages SET url = '/same', address = NULL WHERE tenant_id = :t"), {"t": tenant})
    assert write(tenant, ("c", "/same/"), ("d", "/same")) == ["known"] * 2, "each keeps its own"
    assert write(tenant, ("e", "/same")) == ["Page 'a' has this address"]
    page_addresses.fill(tenant, is_over=lambda: False)
    with tenant_tx(tenant) as tx:
        assert pages.find_by_address(tx, ["https://w.example/same?x=1"], ["https://w.example"]) == "a", "the oldest"


@pytest.mark.parametrize("is_filled", [True, False])
def test_of_many_old_duplicates_only_the_oldest_that_decides_is_read(tenant: str, is_filled: bool) -> None:
    names = [f"p{number}" for number in range(50)]
    write(tenant, *((name, f"/{name}") for name in names))
    with owner_tx() as tx:
        same = "UPDATE pages SET url = '/same', address = CASE WHEN :filled THEN '/same' END WHERE tenant_id = :t"
        tx.execute(text(same), {"t": tenant, "filled": is_filled})
    with tenant_tx(tenant) as tx:
        assert pages.find_by_address(tx, ["/same"], []) == "p0"
        (rows,) = tx.run_in_one_trip(pages.at_addresses(tx.tenant, ["/same"], ["/same"], besides=["p0", "p2"]))
    assert [row.external_id for row in rows] == ["p1"]
    assert write(tenant, ("p0", "/away"), ("new", "/same")) == ["known", "Page 'p1' has this address"]
    assert write(tenant, ("p1", "/same"), ("new", "/same")) == ["known", "Page 'p1' has this address"]
    moves = [(name, f"/{name}") for name in names]
    assert write(tenant, *moves[:-1], ("new", "/same"))[-1] == "Page 'p49' has this address"
    assert write(tenant, *moves, ("new", "/same"))[-1] == "new", "all others have left"


def test_what_is_not_said_of_a_page_stays(tenant: str) -> None:
    write(tenant, ("a", "/a"), ("b", "/b"), visibility="public", owner="u-1")
    write(tenant, ("a", "/a2"), ("c", "/c"))
    with tenant_tx(tenant) as tx:
        found = {name: pages.get(tx, name) for name in "abc"}
        assert {name: page.visibility for name, page in found.items()} == {"a": "public", "b": "public", "c": "private"}
        assert found["a"].owner_id == found["b"].owner_id is not None
        assert found["c"].owner_id is None


def test_of_many_who_want_an_address_at_once_one_gets_it_whether_alone_or_in_a_call(tenant: str) -> None:
    def attempt(number: int) -> list[str]:
        own = [(f"own{number}", f"/own/{number}")] if number % 2 else []
        return write(tenant, (f"p{number}", "/wanted"), *own)

    with ThreadPoolExecutor(8) as threads:
        outcomes = [outcomes[0] for outcomes in threads.map(attempt, range(8))]
    assert sorted(outcome == "new" for outcome in outcomes) == [False] * 7 + [True]
    (holder,) = [name for name, url in urls_of(tenant).items() if url == "/wanted"]
    assert {outcome for outcome in outcomes if outcome != "new"} == {f"Page {holder!r} has this address"}


def test_who_waits_too_long_for_another_writer_is_told_to_try_again(tenant: str) -> None:
    two = [PageWrite(name, "s", "t", f"/{name}") for name in "xy"]
    with tenant_tx(tenant) as first, tenant_tx(tenant, separate=True) as second:
        page_writes.put(first, "a", space="s", title="t", url="/a", now=utcnow())
        second.execute(text("SET LOCAL lock_timeout = 50"))
        with pytest.raises(PagesBusy):
            page_writes.put_all(second, two, now=utcnow())
        second.execute(text("ROLLBACK"))


def test_a_thousand_pages_take_a_few_statements(tenant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put_page(tenant, "p0")
    executed: list[tuple[int, str]] = []  # with the thread: the credential feed of the process goes on meanwhile
    run = pipelines.run

    def note_and_run(driver: Driver, sent: Sequence[Statement], **options: Any) -> Any:
        executed.extend((get_ident(), statement.sql.decode()) for statement in sent)
        return run(driver, sent, **options)

    def note(_connection: object, _cursor: object, sql: str, *_: object) -> None:
        executed.append((get_ident(), sql))

    monkeypatch.setattr(pipelines, "run", note_and_run)
    event.listen(Engine, "before_cursor_execute", note)
    try:
        outcomes = write(tenant, *((f"p{n}", f"https://wiki.example/p{n}") for n in range(1000)), owner="u-1")
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert outcomes == ["known"] + ["new"] * 999
    statements = [sql for thread, sql in executed if thread == get_ident()]
    assert 10 < len(statements) <= 30, statements
    with tenant_tx(tenant) as tx:
        assert tx.scalar(text("SELECT count(*) FROM page_counters")) == 1000
