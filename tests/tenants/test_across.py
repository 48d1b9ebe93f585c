"""Reading over all tenants: on a Citus, a lost node costs its own tenants only."""

from collections.abc import Mapping
from typing import Any

import pytest
from sqlalchemy import TextClause, text
from sqlalchemy.exc import OperationalError

from tenants import across
from tenants.across import OF_ONE
from tenants.db import owner_tx
from tests.outages import lost_node

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
        open_tx: across.OpenTx, statement: TextClause, values: Mapping[str, Any]
    ) -> list[Any]:
        if values and values["tenant"] in (None, other_tenant):
            raise lost_node()
        return read(open_tx, statement, values)

    monkeypatch.setattr(across, "_read", read_while_a_node_is_lost)
    monkeypatch.setattr(across, "_ON_EACH_SHARD", text(f"SELECT '{tenant} {other_tenant}' AS ids"))
    assert [row.id for row in across.read(NAMES)] == [tenant]


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
