"""Reading over all tenants: on a Citus, a lost node costs its own tenants only."""

import os
import re
from collections.abc import Mapping
from typing import Any

import psycopg
import pytest
from sqlalchemy import TextClause, text
from sqlalchemy.exc import OperationalError

from analytics import redaction
from analytics.boards import projection, timeline
from analytics.quests import expiring, rewards
from tenants import across, suspensions
from tenants.across import OF_ONE
from tenants.db import owner_tx, utcnow
from tests.outages import lost_node

STATEMENTS = [
    across._LIVE,
    across._DELETED,
    projection._BEHIND,
    timeline._ELSEWHERE,
    expiring._TENANTS_WITH_DUE,
    rewards._TENANTS_WITH_DUE,
    redaction._PENDING,
    suspensions._TENANTS_WITH_DUE,
]
NAMES = text(f"SELECT t.id, t.name FROM tenants t WHERE {OF_ONE} ORDER BY t.id")


def test_every_tenant_is_read_in_one_statement(tenant: str, other_tenant: str) -> None:
    assert {tenant, other_tenant} <= {row.id for row in across.read(NAMES)}
    assert {tenant, other_tenant} <= {*across.live_tenants()}
    with owner_tx() as tx:
        tx.execute(text("UPDATE tenants SET deleted_at = now() WHERE id = :t"), {"t": other_tenant})
    assert other_tenant not in across.live_tenants()
    assert other_tenant in across.deleted_tenants()


def test_without_a_node_the_tenants_of_the_others_are_read(
    tenant: str, other_tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its shards do not answer; nor does a statement of a tenant whose node is lost only now."""
    read = across._read

    def read_while_a_node_is_lost(
        open_tx: across.OpenTx, statement: TextClause, values: Mapping[str, Any], **options: Any
    ) -> list[Any]:
        if values.get("tenant", tenant) in (None, other_tenant):
            raise lost_node()
        return read(open_tx, statement, values, **options)

    monkeypatch.setattr(across, "_read", read_while_a_node_is_lost)
    monkeypatch.setattr(across, "_NODES", text("SELECT 'a' AS host, 1 AS port, '' AS tenants"))
    monkeypatch.setattr(across, "_ON_NODE", text(f"SELECT '{tenant} {other_tenant}' AS ids"))
    assert [row.id for row in across.read(NAMES)] == [tenant]


def test_a_node_that_hangs_is_left_alone_and_the_tenants_of_the_others_are_read(
    tenant: str, other_tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, late = across._read, OperationalError("SELECT", {}, psycopg.errors.QueryCanceled("statement timeout"))
    asked: list[Any] = []

    def read_while_a_node_hangs(
        open_tx: across.OpenTx, statement: TextClause, values: Mapping[str, Any], **options: Any
    ) -> list[Any]:
        asked.append(values.get("host", values.get("tenant", "nodes")))
        if asked[-1] in (None, "hangs"):
            raise late
        return read(open_tx, statement, values, **options)

    monkeypatch.setattr(across, "_read", read_while_a_node_hangs)
    monkeypatch.setattr(across, "_IS_CITUS", text("SELECT 1 AS oid WHERE false"))
    with pytest.raises(OperationalError):
        across.read(NAMES)  # where there is no Citus, it is a statement that takes too long
    monkeypatch.setattr(across, "_IS_CITUS", text("SELECT 1 AS oid"))
    nodes = "VALUES ('hangs', 1, ''), ('answers', 2, '')"
    monkeypatch.setattr(across, "_NODES", text(f"SELECT * FROM ({nodes}) AS nodes(host, port, tenants)"))
    monkeypatch.setattr(across, "_ON_NODE", text(f"SELECT '{tenant}' AS ids"))
    monkeypatch.setattr(across, "_hung", {})
    for expected in ([None, "nodes", "nodes", "hangs", "nodes", "answers", tenant], ["nodes", "answers", tenant]):
        asked.clear()
        assert [row.id for row in across.read(NAMES)] == [tenant]
        assert asked == expected


@pytest.mark.skipif("PLAUDIT_TEST_CITUS_URL" not in os.environ, reason="needs PLAUDIT_TEST_CITUS_URL")
@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda statement: statement.text.split("WHERE")[0].strip())
def test_of_one_tenant_a_statement_asks_one_node(tenant: str, statement: TextClause) -> None:
    """Otherwise it would fail for every tenant while a node is lost."""
    names = re.findall(r"(?<!:):([a-z]+)", statement.text)
    values = {name: "x" if name in {"server", "run"} else utcnow() for name in names} | {"tenant": tenant}
    with owner_tx() as tx:
        plan = [row[0].strip() for row in tx.run(text(f"EXPLAIN {statement.text}"), values)]
    assert "Task Count: 1" in plan


def test_our_own_lost_server_is_an_error(connected: None, monkeypatch: pytest.MonkeyPatch) -> None:
    error = lost_node()
    error.connection_invalidated = True

    def fail(*_: object) -> list[Any]:
        raise error

    monkeypatch.setattr(across, "_read", fail)
    with pytest.raises(OperationalError):
        across.live_tenants()


def test_what_needs_every_tenant_is_an_error_without_a_node(
    tenant: str, other_tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {tenant, other_tenant} <= {*across.every_live_tenant()}

    def fail(*_: object) -> list[Any]:
        raise lost_node()

    monkeypatch.setattr(across, "_read", fail)
    with pytest.raises(OperationalError):
        across.every_live_tenant()
