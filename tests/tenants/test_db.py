"""Transactions: one at a time, whole or not at all, and their announcements after the commit."""

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError

from tenants import db, pipelines, registry
from tenants.db import owner_tx, platform_tx, tenant_tx, utcnow
from tenants.errors import NotFound
from tenants.pipelines import NoAnswer, Statement
from tenants.shares import NO_CALLER, Caller, current_caller
from tenants.users import User, ensure_external


def test_a_transaction_inside_another_of_the_same_tenant_is_the_same_and_of_another_an_error(
    tenant: str, other_tenant: str
) -> None:
    with tenant_tx(tenant) as outer, tenant_tx(tenant) as inner:
        assert inner is outer
        for second in (tenant_tx(other_tenant), platform_tx(), owner_tx()):
            with pytest.raises(RuntimeError, match="already open"), second:
                pass
    with owner_tx():
        for second in (tenant_tx(tenant), platform_tx(), owner_tx()):
            with pytest.raises(RuntimeError, match="already open"), second:
                pass
    with tenant_tx(other_tenant) as later:
        assert later is not outer


def test_a_connection_is_its_callers_part_of_the_tenants_share(tenant: str) -> None:
    engines = db._configured()
    assert engines.share is not None
    for caller in (Caller(tenant, "user:ada"), NO_CALLER):
        before = current_caller.set(caller)
        with tenant_tx(tenant):
            assert engines.share._tenants[tenant].in_use == {caller.name: 1}
        current_caller.reset(before)
    assert tenant not in engines.share._tenants


def test_what_waits_for_a_commit_happens_after_it_and_only_then(tenant: str) -> None:
    done: list[str] = []
    with tenant_tx(tenant) as tx:
        tx.after_commit(lambda: done.append("outer"))
        with tenant_tx(tenant) as inner:
            inner.after_commit(lambda: done.append("inner"))
        assert done == []
    assert done == ["outer", "inner"]
    with contextlib.suppress(ZeroDivisionError), tenant_tx(tenant) as tx:
        tx.after_commit(lambda: done.append("never"))
        raise ZeroDivisionError
    with owner_tx() as tx:
        tx.after_commit(lambda: done.append("owner"))
    assert done == ["outer", "inner", "owner"]


def test_the_next_transaction_on_the_same_connection_has_no_tenant_left(tenant: str) -> None:
    with tenant_tx(tenant) as tx:
        tx.execute(text("SELECT 1"))
    with platform_tx() as tx:
        assert tx.scalar(text("SELECT NULLIF(current_setting('plaudit.tenant', true), '')")) is None


@pytest.mark.parametrize("hostile", ["x'; DROP TABLE tenants; --", "", "A", "a" * 64, "_all", "tenant\x00", "ténant"])
def test_an_impossible_tenant_id_is_not_found_and_never_reaches_sql(connected: None, hostile: str) -> None:
    with pytest.raises(NotFound), tenant_tx(hostile):
        pytest.fail("the transaction opened")


def test_an_error_rolls_everything_back(connected: None) -> None:
    def half_done() -> None:
        with owner_tx() as tx:
            registry.create(tx, "rolled-back", name="x", now=utcnow())
            tx.execute(text("SELECT 1/0"))

    with pytest.raises(DBAPIError):
        half_done()
    with owner_tx() as tx, pytest.raises(NotFound):
        registry.get(tx, "rolled-back")


def test_statements_of_the_orm_name_the_tenant_also_where_no_policy_does(tenant: str, other_tenant: str) -> None:
    """On Citus that routes them to one node."""
    for tenant_id in (tenant, other_tenant):
        with tenant_tx(tenant_id) as tx:
            ensure_external(tx, "same", now=utcnow())
    wanted = select(User.tenant_id).where(User.external_id == "same")
    with owner_tx() as tx:
        assert {tenant, other_tenant} <= set(tx.scalars(wanted))
        tx.tenant_id = tenant
        assert list(tx.scalars(wanted)) == [tenant]


def test_a_separate_transaction_neither_joins_nor_is_joined(tenant: str) -> None:
    with contextlib.suppress(ZeroDivisionError), tenant_tx(tenant) as outer:
        ensure_external(outer, "rolled-back", now=utcnow())
        with tenant_tx(tenant, separate=True) as own:
            assert own is not outer
            ensure_external(own, "committed", now=utcnow())
            with tenant_tx(tenant) as joined:
                assert joined is outer
        raise ZeroDivisionError
    with tenant_tx(tenant) as tx:
        assert list(tx.scalars(select(User.external_id))) == ["committed"]


def test_the_first_transaction_after_a_restart_finds_a_working_connection(tenant: str) -> None:
    backend = text("SELECT pg_backend_pid()")
    with tenant_tx(tenant) as one, tenant_tx(tenant, separate=True) as two:
        backends = {one.scalar(backend), two.scalar(backend)}
        assert len(backends) == 2
    with owner_tx() as owner:
        for pid in backends:
            assert owner.scalar(text("SELECT pg_terminate_backend(CAST(:pid AS int), 60000)"), {"pid": pid})
    for _ in range(3):
        with tenant_tx(tenant) as tx:
            assert tx.scalar(backend) not in backends


def test_a_transaction_that_nobody_opens_in_time_is_given_up_and_not_tried_again(
    connected: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a pooler that has no server for it."""
    with owner_tx() as tx:
        before = tx.scalar(text("SELECT pg_backend_pid()"))
    run, tries, me = pipelines.run, 0, threading.get_ident()

    def counted_run(*what: Any, **options: Any) -> Any:
        nonlocal tries
        tries += threading.get_ident() == me  # not those of another test's threads
        return run(*what, **options)

    with monkeypatch.context() as patch:
        patch.setattr(db, "OPEN_WITHIN_S", 0.2)
        patch.setattr(db, "OWNER_OPENING", (Statement(b"SELECT pg_sleep(5)"),))
        patch.setattr(pipelines, "run", counted_run)
        with pytest.raises(DBAPIError, match="no answer") as given_up, owner_tx():
            pass
    assert given_up.value.connection_invalidated
    assert tries == 1
    with owner_tx() as tx:
        assert tx.scalar(text("SELECT pg_backend_pid()")) != before


def test_a_connection_lost_in_a_transaction_fails_it_and_is_replaced(tenant: str) -> None:
    def lose_it() -> None:
        with tenant_tx(tenant) as tx:
            pid = tx.scalar(text("SELECT pg_backend_pid()"))
            with ThreadPoolExecutor(1) as elsewhere:
                elsewhere.submit(terminate, pid).result()

    def terminate(pid: int) -> None:
        with owner_tx() as owner:
            owner.scalar(text("SELECT pg_terminate_backend(CAST(:pid AS int), 60000)"), {"pid": pid})

    with pytest.raises(DBAPIError) as raised:
        lose_it()
    assert raised.value.connection_invalidated
    with tenant_tx(tenant) as tx:
        assert tx.scalar(text("SELECT 1")) == 1


@pytest.mark.parametrize("is_plain", [True, False])
def test_a_server_that_freezes_in_a_transaction_is_given_up(
    tenant: str, is_plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As PostgreSQL behind a pooler whose own connection still answers: nothing else would end the wait."""
    monkeypatch.setattr(db, "STATEMENT_WITHIN_S", 0.3)
    slowly = text("SELECT pg_sleep(8)")
    began = time.monotonic()
    with pytest.raises(DBAPIError) as refused, tenant_tx(tenant) as tx:
        _ = tx.execute(slowly) if is_plain else tx.run(slowly, {})
    assert isinstance(refused.value.orig, NoAnswer)
    assert time.monotonic() - began < 6
    with tenant_tx(tenant) as tx:
        assert tx.scalar(text("SELECT 1")) == 1
        tx.set_statement_timeout(0)
        tx.run(text("SELECT pg_sleep(0.5)"), {})  # what may take long, may
    with pytest.raises(DBAPIError), tenant_tx(tenant) as tx:
        tx.run(slowly, {})  # in that transaction only
