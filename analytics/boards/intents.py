"""Intents: which members a projection is about to write to Redis, and in which scopes Redis may have them.

Committed before Redis is touched and deleted with the numbers, so an intent that is found later means that Redis may
have any value of that member: a projection died, or Redis was away.
"""

from collections.abc import Collection, Iterable, Mapping

from sqlalchemy import ARRAY, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from analytics.outbox import Kind
from tenants.db import Base, Query, TenantOwned, Tx, array


class Projecting(TenantOwned, Base):
    __tablename__ = "projecting"

    kind: Mapped[str] = mapped_column(primary_key=True)
    member: Mapped[str] = mapped_column(primary_key=True)
    scopes: Mapped[list[str]] = mapped_column(ARRAY(Text))


def recording(tenant_id: str, kind: Kind, scopes: Mapping[str, Collection[str]]) -> Query:
    """The statement after whose commit Redis may have these members in these scopes, besides those recorded before."""
    joined = [" ".join(sorted(where)) for where in scopes.values()]
    return _RECORD, {"tenant": tenant_id, "kind": kind.value, "members": list(scopes), "scopes": joined}


def of_members(tx: Tx, kind: Kind, members: Iterable[str]) -> dict[str, list[str]]:
    """Of these members, those with an intent, and their scopes."""
    rows = tx.run(_READ, {"tenant": tx.tenant, "kind": kind.value, "members": array(members)})
    return {row.member: row.scopes for row in rows}


def left_over(tenant_id: str, kind: Kind, *, limit: int) -> Query:
    """The query for members whose projection never finished."""
    return _LEFT_OVER, {"tenant": tenant_id, "kind": kind.value, "limit": limit}


def scopes(tx: Tx) -> list[str]:
    """The scopes in which Redis may have a value of a member that is not the last."""
    return [row.scope for row in tx.run(_SCOPES, {"tenant": tx.tenant})]


def delete(tx: Tx, kind: Kind, members: Collection[str]) -> None:
    """Redis has what is committed with this."""
    if members:
        tx.run(_DELETE, {"tenant": tx.tenant, "kind": kind.value, "members": array(members)})


_RECORD = text("""
    INSERT INTO projecting AS i (tenant_id, kind, member, scopes)
    SELECT t.id, CAST(:kind AS text), w.member, string_to_array(w.scopes, ' ')
    FROM tenants t CROSS JOIN unnest(CAST(:members AS text[]), CAST(:scopes AS text[])) AS w(member, scopes)
    WHERE t.id = :tenant
    ON CONFLICT (tenant_id, kind, member)
    DO UPDATE SET scopes = ARRAY(SELECT DISTINCT s FROM unnest(i.scopes || EXCLUDED.scopes) s)
""")

_LEFT_OVER = text(
    "SELECT member FROM projecting WHERE tenant_id = :tenant AND kind = :kind ORDER BY member LIMIT :limit"
)

_READ = text("""
    SELECT member, scopes FROM projecting
    WHERE tenant_id = :tenant AND kind = :kind AND member = ANY(CAST(:members AS text[]))
""")

_SCOPES = text("""
    SELECT DISTINCT s.scope FROM projecting i CROSS JOIN unnest(i.scopes) AS s(scope)
    WHERE i.tenant_id = :tenant ORDER BY 1
""")

_DELETE = text(
    "DELETE FROM projecting WHERE tenant_id = :tenant AND kind = :kind AND member = ANY(CAST(:members AS text[]))"
)
