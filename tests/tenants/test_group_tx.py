"""Transactions that several tenants share: each sees its own rows, and all are committed or none."""

from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError

from tenants import db, group_tx
from tenants.db import owner_tx, tenant_tx, utcnow
from tenants.group_tx import read_one, read_together, run_in_one_trip, shared_tx
from tenants.users import User, ensure_external
from tests.service import eventually


def test_one_trip_writes_for_every_tenant_or_for_none(tenant: str, other_tenant: str) -> None:
    insert = "INSERT INTO users (tenant_id, id, external_id, created_at, updated_at) VALUES (%s, %s, %s, now(), now())"
    returning = f"{insert} RETURNING external_id"

    def users_of(tenant_id: str) -> list[str | None]:
        with tenant_tx(tenant_id) as tx:
            return list(tx.scalars(select(User.external_id)))

    both = [(one, returning, (one, uuid4(), f"u of {one}")) for one in (tenant, other_tenant)]
    assert run_in_one_trip(both, shared=True) == [(f"u of {tenant}",), (f"u of {other_tenant}",)]
    as_another = [(tenant, returning, (tenant, uuid4(), "v")), (other_tenant, returning, (tenant, uuid4(), "w"))]
    with pytest.raises(DBAPIError, match="row-level security"):
        run_in_one_trip(as_another, shared=True)
    assert (users_of(tenant), users_of(other_tenant)) == ([f"u of {tenant}"], [f"u of {other_tenant}"])


def test_a_shared_transaction_is_inside_one_tenant_at_a_time(tenant: str, other_tenant: str) -> None:
    with shared_tx(tenant, shared=True) as enter:
        ensure_external(enter(tenant), "a", now=utcnow())
        tx = enter(other_tenant)
        assert list(tx.scalars(select(User.external_id))) == [], "the first tenant's user is not seen"
        ensure_external(tx, "b", now=utcnow())
        tx.after_commit(lambda: None)
        assert len(tx.take_after_commit()) == 1
    for tenant_id, external_id in ((tenant, "a"), (other_tenant, "b")):
        with tenant_tx(tenant_id) as tx:
            assert list(tx.scalars(select(User.external_id))) == [external_id]


def test_a_single_row_is_read_in_the_open_transaction_or_in_one_of_its_own(tenant: str, other_tenant: str) -> None:
    statement = "SELECT external_id FROM users WHERE tenant_id = %s AND external_id = %s"
    with tenant_tx(tenant) as tx:
        ensure_external(tx, "a", now=utcnow())
        assert read_one(tenant, statement, (tenant, "a")).external_id == "a", "not committed yet"
    assert read_one(tenant, statement, (tenant, "a")).external_id == "a"
    assert read_one(other_tenant, statement, (tenant, "a")) is None, "inside another tenant"


def terminate_sleeper() -> bool:
    asleep = "wait_event = 'PgSleep' AND datname = current_database()"
    with owner_tx() as tx:
        return bool(tx.scalar(text(f"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE {asleep}")))


def test_an_error_in_one_trip_says_whether_the_outcome_is_known(tenant: str) -> None:
    with pytest.raises(DBAPIError) as refused:
        run_in_one_trip([(tenant, "SELECT 1 / %s", (0,))], shared=True)
    assert not refused.value.connection_invalidated
    assert getattr(refused.value.orig, "sqlstate", None) == "22012"
    with pytest.raises(DBAPIError) as never_sent:
        run_in_one_trip([(tenant, "SELECT %s::text", ("a\0b",))], shared=True)
    assert not never_sent.value.connection_invalidated
    with ThreadPoolExecutor() as threads:
        threads.submit(eventually, terminate_sleeper)
        with pytest.raises(DBAPIError) as lost:
            run_in_one_trip([(tenant, "SELECT pg_sleep(60)", ())], shared=False)
    assert lost.value.connection_invalidated
    assert run_in_one_trip([(tenant, "SELECT %s AS one", (1,))], shared=True) == [(1,)]


def test_a_trip_that_is_not_answered_in_time_is_given_up_and_its_outcome_unknown(
    tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_tx, "TRIP_WITHIN_S", 0.1)
    with pytest.raises(DBAPIError, match="no answer") as given_up:
        run_in_one_trip([(tenant, "SELECT pg_sleep(5)", ())], shared=True)
    assert given_up.value.connection_invalidated


def test_a_slow_read_is_an_error_of_its_own_and_closes_no_connection(
    tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert db.TRIP_STATEMENT_TIMEOUT_MS < db.TRIP_WITHIN_S * 1000
    monkeypatch.setattr(group_tx, "TRIP_STATEMENT_TIMEOUT_MS", 50)
    with pytest.raises(DBAPIError, match="statement timeout") as slow:
        read_one(tenant, "SELECT pg_sleep(10)", ())
    assert not slow.value.connection_invalidated


def test_nothing_takes_a_second_connection_inside_a_transaction(tenant: str) -> None:
    with tenant_tx(tenant), pytest.raises(RuntimeError, match="already open"):
        read_together([(tenant, "SELECT 1", ())])


def test_rows_of_several_tenants_are_read_together_each_in_its_own(tenant: str, other_tenant: str) -> None:
    for tenant_id, names in ((tenant, "ab"), (other_tenant, "c")):
        with tenant_tx(tenant_id) as tx:
            for name in names:
                ensure_external(tx, name, now=utcnow())
    statement = "SELECT external_id FROM users WHERE external_id = ANY(%s::text[]) ORDER BY external_id"
    calls = [(one, statement, (["a", "b", "c"],)) for one in (tenant, other_tenant)]
    assert read_together(calls) == [[("a",), ("b",)], [("c",)]]
    assert read_together([]) == []
