"""A check goes through a tenant in chunks, waits for who has the lock, and ends at its limit."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from threading import Event
from typing import Any

import pytest
from flask.testing import FlaskClient
from sqlalchemy import text

from analytics import checks, comparing
from analytics.boards import checking, projection
from analytics.comparing import PAGES, CheckStopped, Chunk, Compared, Walk, Watch
from analytics.locks import Busy, lock_boards, try_lock_boards
from tenants.db import Tx, current_tx, owner_tx, tenant_tx, utcnow
from tests import citus
from tests.analytics.conftest import make_page
from tests.people import Caller, client_of

PAGE_COUNT = 7


@pytest.fixture
def busy(client: FlaskClient, tenant: str) -> Caller:
    """A tenant with pages that have views."""
    caller = client_of(client, tenant)
    for number in range(PAGE_COUNT):
        make_page(caller, f"p{number}")
        assert caller("POST", f"/api/v1/pages/p{number}/views").status_code == 202
    projection.project_all(tenant, now=utcnow)
    return caller


def small_chunks(monkeypatch: pytest.MonkeyPatch, ids: int) -> None:
    monkeypatch.setattr(comparing, "FIRST_IDS", ids)
    monkeypatch.setattr(comparing, "MAX_IDS", ids)


def chunks_of(walk: Walk, compare: Callable[[Tx], None] = lambda _: None) -> list[int]:
    """Goes through the pages; how many each chunk had."""
    sizes: list[int] = []

    def look(tx: Tx, chunk: Chunk) -> Compared:
        compare(tx)
        sizes.append(len(chunk.ids))
        return Compared()

    assert walk.over("pages", PAGES, look).passed == sum(sizes)
    return sizes


def test_every_page_is_in_one_chunk(busy: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    for ids, expected in ((3, [3, 3, 1]), (7, [7]), (100, [7])):
        small_chunks(monkeypatch, ids)
        assert chunks_of(Walk(busy.tenant, utcnow())) == expected


def test_chunks_find_what_one_look_would_and_progress_is_told_between_transactions(
    busy: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_chunks(monkeypatch, 2)
    told: list[tuple[str, int, int | None]] = []

    def watch(part: str, done: int, total: int | None, /) -> None:
        assert current_tx() is None, "no transaction spans two chunks"
        told.append((part, done, total))

    def watching(_tenant_id: str) -> Watch:
        return watch

    def check() -> checking.Report:
        return checks.check_tenants([busy.tenant], checks.PARTS, now=utcnow, watching=watching)

    report = check()
    assert (report.differences, report.pages) == ([], PAGE_COUNT)
    assert [line for line in told if line[0] == "pages"] == [("pages", done, PAGE_COUNT) for done in (0, 2, 4, 6, 7)]
    assert {part for part, *_ in told} >= {"pages", "users", "profiles", "quests", "visitors"}
    with tenant_tx(busy.tenant) as tx:
        tx.execute(text("UPDATE page_stats SET views_7d = views_7d + 1 WHERE tenant_id = :t"), {"t": busy.tenant})
    assert sorted(one.member for one in check().differences) == [f"page p{number}" for number in range(PAGE_COUNT)]


def test_a_chunk_that_takes_too_long_is_divided(busy: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    small_chunks(monkeypatch, 16)
    monkeypatch.setattr(comparing, "MAX_STATEMENT_MS", 200)
    tries: list[str] = []

    def slow_at_first(tx: Tx) -> None:
        tries.append("")
        tx.execute(text("SELECT pg_sleep(CASE WHEN :tries < 2 THEN 5 ELSE 0 END)"), {"tries": len(tries)})

    sizes = chunks_of(Walk(busy.tenant, utcnow()), slow_at_first)
    assert (sizes[0], sum(sizes)) == (2, PAGE_COUNT)


def test_a_chunk_whose_statements_take_too_long_together_is_divided(
    busy: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_chunks(monkeypatch, 16)
    monkeypatch.setattr(comparing, "MAX_TRANSACTION_S", 1.0)
    monkeypatch.setattr(comparing, "CANCEL_AGAIN_AFTER_S", 0.1)
    tries: list[int] = []

    def many_at_first(tx: Tx) -> None:
        tries.append(0)
        while len(tries) < 3 and tries[-1] < 300:  # none of which is slow
            tx.run(text("SELECT pg_sleep(0.2)"), {})
            tries[-1] += 1

    sizes = chunks_of(Walk(busy.tenant, utcnow()), many_at_first)
    assert (sizes[0], sum(sizes)) == (1, PAGE_COUNT)
    assert 0 < max(tries) < 300, "it was cancelled between two of them, or in one"


def test_what_takes_long_to_count_is_compared_without_a_total(busy: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    small_chunks(monkeypatch, 4)
    monkeypatch.setattr(comparing, "MAX_COUNT_MS", 100)
    slow = replace(PAGES, count=text("SELECT count(*) FROM pages, pg_sleep(5) WHERE tenant_id = :tenant"))
    told: list[tuple[int, int | None]] = []
    walk = Walk(busy.tenant, utcnow(), watch=lambda _part, done, total: told.append((done, total)))
    walk.over("pages", slow, lambda _tx, _chunk: Compared())
    assert told == [(0, None), (4, None), (PAGE_COUNT, PAGE_COUNT)]
    with pytest.raises(CheckStopped, match=r"\(0 compared\)"):
        Walk(busy.tenant, utcnow(), time.monotonic() - 1).over("pages", slow, lambda _tx, _chunk: Compared())


def test_a_check_ends_at_its_limit_and_says_where_it_was(busy: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckStopped, match=rf"limit of time, in part pages of {busy.tenant} .*--only pages"):
        checks.check_tenants([busy.tenant], checks.PARTS, now=utcnow, max_s=-1)
    monkeypatch.setattr(comparing, "MAX_STATEMENT_MS", 100)

    def slow(tx: Tx) -> None:
        tx.execute(text("SELECT pg_sleep(5)"))

    with pytest.raises(CheckStopped, match=r"part pages .* plaudit doctor"):
        chunks_of(Walk(busy.tenant, utcnow(), time.monotonic() + 60), slow)


def test_what_is_committed_between_the_snapshot_and_the_lock_is_no_difference(
    busy: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Any] = []

    def project_meanwhile(tx: Tx, tenant_id: str) -> None:
        tx.execute(text("SELECT 1"))  # its snapshot
        if not looks:
            with ThreadPoolExecutor(1) as another:
                another.submit(busy, "POST", "/api/v1/pages/p1/views").result()
                another.submit(projection.project_all, busy.tenant, now=utcnow).result()
        looks.append(tenant_id)
        try_lock_boards(tx, tenant_id)

    monkeypatch.setattr(comparing, "try_lock_boards", project_meanwhile)
    report = checking.Report()
    checking.check_pages(Walk(busy.tenant, utcnow()), report)
    assert report.differences == []
    assert len(looks) == (2 if citus.URL is None else 1), "on a Citus the worker's snapshot is taken after the lock"


def test_a_check_waits_for_who_has_the_lock(busy: Caller) -> None:
    with ThreadPoolExecutor(1) as another:
        with tenant_tx(busy.tenant) as holder:
            lock_boards(holder, busy.tenant)
            checking_it = another.submit(checking.check, busy.tenant, now=utcnow())
            with pytest.raises(TimeoutError):
                checking_it.result(timeout=0.5)
        assert checking_it.result(timeout=60).differences == []


def test_a_projection_that_tries_the_lock_once_a_second_gets_its_turn_between_chunks(
    busy: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_chunks(monkeypatch, 1)
    assert busy("POST", "/api/v1/pages/p1/views").status_code == 202
    is_over, projected = Event(), Event()

    def project_once_a_second() -> None:
        while not is_over.wait(1) and not projected.is_set():
            with suppress(Busy):
                projection.project_step(busy.tenant, now=utcnow())
                projected.set()

    def look_slowly(tx: Tx, chunk: Chunk) -> Compared:
        tx.execute(text("SELECT pg_sleep(0.6)"))
        return Compared()

    with ThreadPoolExecutor(1) as worker:
        projecting = worker.submit(project_once_a_second)
        Walk(busy.tenant, utcnow()).over("pages", PAGES, look_slowly, with_boards=True)
        is_over.set()
        projecting.result()
    assert projected.is_set()


def test_a_check_pauses_for_a_projection_only_if_one_is_late(busy: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[str] = []
    monkeypatch.setattr(comparing, "wake_again", woken.extend)
    monkeypatch.setattr(comparing, "MAX_PAUSE_S", 0.1)
    walk = Walk(busy.tenant, utcnow())
    for late, with_boards, expected in ((False, True, 0), (True, False, 0), (True, True, 1)):
        if late:
            with owner_tx() as tx:
                marked = "INSERT INTO outbox (tenant_id, kind, member, marked_at) VALUES (:t, 'page', '1', :at)"
                tx.execute(text(marked), {"t": busy.tenant, "at": utcnow() - timedelta(seconds=9)})
        walk.look(lambda _: Compared(), with_boards=with_boards)
        assert len(woken) == expected
