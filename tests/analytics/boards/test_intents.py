"""Intents: which members Redis may have any value of."""

from collections.abc import Collection, Mapping

from analytics.boards import intents
from analytics.outbox import Kind
from tenants.db import Tx, tenant_tx


def record(tx: Tx, kind: Kind, scopes: Mapping[str, Collection[str]]) -> None:
    tx.run(*intents.recording(tx.tenant, kind, scopes))


def left_over(tx: Tx, kind: Kind, *, limit: int) -> list[str]:
    return [row.member for row in tx.run(*intents.left_over(tx.tenant, kind, limit=limit))]


def test_scopes_of_a_member_are_added_to_those_recorded_before(tenant: str, other_tenant: str) -> None:
    with tenant_tx(tenant) as tx:
        record(tx, Kind.PAGE, {"7": {"tenant", "space:eng"}, "8": ["tenant"]})
        record(tx, Kind.PAGE, {"7": {"tenant", "public"}})
        record(tx, Kind.PAGE, {})
        found = intents.of_members(tx, Kind.PAGE, ["7", "8", "9"])
        assert {member: sorted(scopes) for member, scopes in found.items()} == {
            "7": ["public", "space:eng", "tenant"],
            "8": ["tenant"],
        }
        assert intents.of_members(tx, Kind.USER, ["7"]) == {}
    with tenant_tx(other_tenant) as tx:
        assert intents.of_members(tx, Kind.PAGE, ["7"]) == {}


def test_what_was_not_deleted_is_left_over(tenant: str) -> None:
    with tenant_tx(tenant) as tx:
        record(tx, Kind.PAGE, {member: ["tenant"] for member in ("3", "1", "2")})
        record(tx, Kind.USER, {"1": ["users"]})
        assert left_over(tx, Kind.PAGE, limit=2) == ["1", "2"]
        intents.delete(tx, Kind.PAGE, ["1", "3"])
        intents.delete(tx, Kind.PAGE, [])
        assert left_over(tx, Kind.PAGE, limit=9) == ["2"]
        assert left_over(tx, Kind.USER, limit=9) == ["1"]
