"""The outbox: which members of which boards are stale. Written in the transaction of the change, which also wakes the
projection after its commit.

A row of the kind `sharing` stands for every public page: the tenant began or stopped sharing them. One of the kind
`views` has views that are not in the page's counts yet, since somebody else had locked its counter when they came; they
are added by the next projection (`counters.count_waiting_views`).

Append-only, so a writer never waits for the projection: rows are read, deduplicated and deleted by id.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import BigInteger, Identity, func, text
from sqlalchemy.orm import Mapped, mapped_column

from analytics.wake import wake
from tenants.db import Base, Query, TenantOwned, Tx, array


class Kind(StrEnum):
    PAGE = "page"
    USER = "user"
    SHARING = "sharing"
    VIEWS = "views"


class Outbox(TenantOwned, Base):
    __tablename__ = "outbox"

    # Before the id: the oldest rows of each kind are found without reading past the others, however many wait.
    kind: Mapped[str] = mapped_column(primary_key=True)
    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    member: Mapped[str]
    # Of a page: the hour to which counts were added. None: several hours, or anything else; always safe.
    hour: Mapped[datetime | None]
    # Of waiting views: what is to be added to that hour.
    views: Mapped[int | None] = mapped_column(BigInteger)
    visitors: Mapped[int | None] = mapped_column(BigInteger)
    marked_at: Mapped[datetime] = mapped_column(server_default=func.now())


def mark_stale(tx: Tx, kind: Kind, members: Iterable[int | str]) -> None:
    """These must be projected again, which happens soon after the commit."""
    names = sorted({str(member) for member in members})
    if names:
        mark_selected_stale(tx, kind, "SELECT unnest(CAST(:members AS text[]))", {"members": names})
        wake_after_commit(tx)


def mark_selected_stale(tx: Tx, kind: Kind, select: str, parameters: Mapping[str, Any]) -> None:
    """The same for the members that a query selects, without a wake-up: for whoever projects them next itself."""
    tx.run(
        text(f"""
            WITH marked AS (
                INSERT INTO outbox (tenant_id, kind, member)
                SELECT CAST(:tenant AS text), CAST(:kind AS text), s.member FROM ({select}) s(member) RETURNING 1
            )
            SELECT count(*) FROM tenants t CROSS JOIN marked WHERE t.id = :tenant
        """),  # noqa: S608  the callers' constants
        {"tenant": tx.tenant, "kind": kind.value, **parameters},
    )


def mark_sharing_stale(tx: Tx) -> None:
    """The tenant's setting `share_public_pages` has changed."""
    mark_stale(tx, Kind.SHARING, ["share_public_pages"])


def wake_after_commit(tx: Tx) -> None:
    """Have the tenant's boards brought up to date after the commit, once. (The group commit wakes by its `Waker`.)"""
    if not tx.info.get("wakes"):
        tx.info["wakes"] = True
        tenant_id = tx.tenant
        tx.after_commit(lambda: wake([tenant_id]))


def oldest(tenant_id: str, kind: Kind, *, limit: int, after: int = 0) -> Query:
    """The query for the oldest rows after this id: their ids and members."""
    return _OLDEST, {"tenant": tenant_id, "kind": kind.value, "after": after, "limit": limit}


def delete(tx: Tx, kind: Kind, ids: Collection[int]) -> None:
    """Delete rows that have been projected."""
    if ids:
        tx.run(_DELETE, {"tenant": tx.tenant, "kind": kind.value, "ids": array(ids)})


def lag_s(tx: Tx) -> float:
    """How many seconds the tenant's oldest row has been waiting; 0 without any."""
    return float(tx.run(_LAG_OF_TENANT, {"tenant": tx.tenant})[0].lag)


# The oldest row of each kind is a look-up in the primary key.
def _age(tenant: str, outbox: str) -> str:
    """SQL for how many seconds a tenant's oldest row has been waiting; NULL without any."""
    oldest = ", ".join(
        f"(SELECT marked_at FROM {outbox} o WHERE o.tenant_id = {tenant} AND o.kind = '{kind}' ORDER BY o.id LIMIT 1)"  # noqa: S608  our own names
        for kind in Kind
    )
    return f"CAST(extract(epoch FROM clock_timestamp() - LEAST({oldest})) AS float8)"


# How many seconds the oldest row of all tenants has been waiting.
LAG = f"SELECT COALESCE(max({_age('t.id', 'outbox')}), 0) FROM tenants t WHERE t.deleted_at IS NULL"  # noqa: S608  our own names
# The lag without the tenants of a lost node of a Citus: each pair of shards is asked for its own.
LAG_OF_REACHABLE = """
    SELECT COALESCE(max(CAST(NULLIF(result, '') AS float8)), 0)
    FROM run_command_on_colocated_placements('tenants', 'outbox', %s) WHERE success
"""
LAG_OF_SHARDS = f"SELECT max({_age('t.id', '%2$s')}) FROM %1$s t WHERE t.deleted_at IS NULL"  # noqa: S608  our own names

_LAG_OF_TENANT = text(f"SELECT COALESCE({_age(':tenant', 'outbox')}, 0) AS lag")
_DELETE = text("DELETE FROM outbox WHERE tenant_id = :tenant AND kind = :kind AND id = ANY(CAST(:ids AS bigint[]))")
_OLDEST = text("""
    SELECT id, member FROM outbox WHERE tenant_id = :tenant AND kind = :kind AND id > :after ORDER BY id LIMIT :limit
""")
