"""Ceilings: what an operator allows, counted when a row is about to be created, and seldom."""

import psycopg
import pytest
from flask.testing import FlaskClient
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError

from analytics.ingest import pages
from app.settings import Settings
from tenants import ceilings, segments, users
from tenants.ceilings import DEFAULTS, Ceiling, CeilingReached
from tenants.db import Tx, owner_tx, tenant_tx, utcnow
from tenants.registry import TenantNotFound
from tests.analytics.conftest import make_page
from tests.people import Caller, client_of


@pytest.fixture
def admin(client: FlaskClient, tenant: str) -> Caller:
    return client_of(client, tenant)


def test_the_service_cannot_raise_a_ceiling(tenant: str) -> None:
    with pytest.raises(ProgrammingError, match="permission denied"), tenant_tx(tenant) as tx:
        ceilings.change(tx, tenant, {Ceiling.PAGES: 10**9})


def test_things_are_counted_seldom_where_counting_takes_long(
    admin: Caller, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []
    real = users.count

    def count_slowly(tx: Tx, most: int) -> int:
        counted.append(most)
        tx.execute(text("SELECT pg_sleep(0.05)"))
        return real(tx, most)

    monkeypatch.setattr(users, "count", count_slowly)
    # For the whole test, however long it takes on a busy machine.
    monkeypatch.setattr(ceilings, "TRUST_FACTOR", 10_000)
    monkeypatch.setattr(ceilings, "RECOUNT_AFTER_S", 600.0)
    make_page(admin, "p")
    for number in range(20):
        assert admin("PUT", f"/api/v1/pages/p/likes/u{number}").status_code == 200
    assert 1 <= len(counted) <= 2, "once in the request, which breaks it off, and once beside it"


def test_a_connection_that_is_lost_while_rows_are_counted_is_an_outage(
    admin: Caller, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = pages.count

    def count_as_the_backend_dies(tx: Tx, most: int) -> int:
        pid = tx.scalar(text("SELECT pg_backend_pid()"))
        with psycopg.connect(settings.database_url or "") as server:
            server.execute("SELECT pg_terminate_backend(%s, 60000)", [pid])
        return real(tx, most)

    page = {"space": "s", "title": "P", "url": "https://wiki.example/p"}
    monkeypatch.setattr(pages, "count", count_as_the_backend_dies)
    answer = admin("PUT", "/api/v1/pages/p", json=page)
    assert (answer.status_code, answer.get_json()["code"]) == (503, "database_unavailable"), answer.text
    monkeypatch.undo()
    assert admin("PUT", "/api/v1/pages/p", json=page).status_code == 201, "it was not written"


def test_a_ceiling_is_the_default_until_an_operator_sets_it(tenant: str) -> None:
    with owner_tx() as tx:
        assert ceilings.change(tx, tenant, {Ceiling.PAGES: 2}) == {**DEFAULTS, Ceiling.PAGES: 2}
        assert ceilings.change(tx, tenant, {Ceiling.USERS: 3})[Ceiling.PAGES] == 2, "the others stay"
        with pytest.raises(TenantNotFound):
            ceilings.change(tx, "nobody-here", {Ceiling.PAGES: 2})
    with tenant_tx(tenant) as tx:
        assert ceilings.read(tx) == {**DEFAULTS, Ceiling.PAGES: 2, Ceiling.USERS: 3}


def test_there_is_room_up_to_the_ceiling(tenant: str) -> None:
    with owner_tx() as tx:
        ceilings.change(tx, tenant, {Ceiling.USERS: 3})
    assert ceilings.room(tenant, Ceiling.USERS, lambda *_: 1) == 2
    ceilings.add(tenant, Ceiling.USERS, 1)
    assert ceilings.room(tenant, Ceiling.USERS, lambda *_: 2) == 1, "as counted, or counted before and one more"
    ceilings.add(tenant, Ceiling.USERS, 1)
    with tenant_tx(tenant) as tx, pytest.raises(CeilingReached, match="its maximum of 3 users"):
        ceilings.require(tx, Ceiling.USERS, lambda *_: 3)


def test_values_of_a_column_are_counted_with_former_ones_that_have_boards(tenant: str) -> None:
    with tenant_tx(tenant) as tx:
        for number, segment in enumerate(("north", "north", "south", None)):
            user = users.get(tx, users.ensure_external(tx, f"u{number}", now=utcnow()))
            users.change(tx, user, {"segment": segment}, now=utcnow())
        tx.execute(
            text("""
                INSERT INTO boards (tenant_id, scope, time_window, metric, reserved, changed_at)
                SELECT t.id, s.scope, '7d', 'points', 1, now() FROM tenants t
                CROSS JOIN unnest(ARRAY['users:north', 'users:west', 'space:east']) s(scope) WHERE t.id = :tenant
            """),
            {"tenant": tenant},
        )
        assert [segments.count(tx, limit) for limit in (10, 2)] == [3, 2]
