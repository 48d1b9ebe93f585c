"""The outbox: which members of which boards are stale. Written in the transaction of what made them so.

Append-only, so a writer never waits for the projector: rows are read, deduplicated and deleted by id.
"""

from collections.abc import Iterable
from enum import StrEnum

from sqlalchemy import BigInteger, Identity, text
from sqlalchemy.orm import Mapped, mapped_column

from tenants.db import Base, TenantOwned, Tx


class Kind(StrEnum):
    PAGE = "page"


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
