"""The outbox: which members of which boards are stale. Written in the transaction of what made them so.

A row of the kind `sharing` stands for every public page at once: the tenant began or stopped sharing them.

Append-only, so a writer never waits for the projector: rows are read, deduplicated and deleted by id.
"""

from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from typing import Any

from sqlalchemy import BigInteger, Identity, Row, text
from sqlalchemy.orm import Mapped, mapped_column

from tenants.db import Base, TenantOwned, Tx, array


class Kind(StrEnum):
    PAGE = "page"
    USER = "user"
    SHARING = "sharing"


class Outbox(TenantOwned, Base):
    __tablename__ = "outbox"

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    kind: Mapped[str]
    member: Mapped[str]


def mark_stale(tx: Tx, kind: Kind, members: Iterable[int | str]) -> None:
    """Say that these need to be projected anew."""
    names = sorted({str(member) for member in members})
    if names:
        tx.execute(
            text(
                "INSERT INTO outbox (tenant_id, kind, member)"
                " SELECT :tenant, :kind, member FROM unnest(CAST(:members AS text[])) AS member"
            ),
            {"tenant": tx.tenant, "kind": kind.value, "members": names},
        )


def mark_sharing_stale(tx: Tx) -> None:
    """Say that the tenant's setting `share_public_pages` has changed."""
    mark_stale(tx, Kind.SHARING, ["share_public_pages"])


def read(tx: Tx, kind: Kind, *, limit: int) -> Sequence[Row[Any]]:
    """The oldest rows: their ids and members."""
    return tx.run(
        text("SELECT id, member FROM outbox WHERE tenant_id = :tenant AND kind = :kind ORDER BY id LIMIT :limit"),
        {"tenant": tx.tenant, "kind": kind.value, "limit": limit},
    ).all()


def delete(tx: Tx, ids: Collection[int]) -> None:
    """These are done."""
    if ids:
        tx.run(
            text("DELETE FROM outbox WHERE tenant_id = :tenant AND id = ANY(CAST(:ids AS bigint[]))"),
            {"tenant": tx.tenant, "ids": array(ids)},
        )
