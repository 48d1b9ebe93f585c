"""The audit of actions: how each came in. Kept for a while; the ledger is kept for ever."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, Index, LargeBinary, Uuid, select, tuple_
from sqlalchemy.dialects.postgresql import INET, JSONB
from sqlalchemy.orm import Mapped, mapped_column

from tenants.db import Base, TenantOwned, Tx

MAX_AGENT_CHARS = 512


class ActionEvent(TenantOwned, Base):
    __tablename__ = "action_events"
    __table_args__ = (
        Index("ix_action_events_user", "tenant_id", "user_id", "received_at"),
        {"postgresql_partition_by": "RANGE (received_at)"},
    )

    received_at: Mapped[datetime] = mapped_column(primary_key=True)
    id: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    user_id: Mapped[UUID] = mapped_column(Uuid)
    action_type: Mapped[str]
    source: Mapped[str]
    payload_hash: Mapped[bytes] = mapped_column(LargeBinary)
    verification: Mapped[str]
    client_time: Mapped[datetime | None]
    points: Mapped[int] = mapped_column(BigInteger)
    object: Mapped[str | None]
    ip: Mapped[str | None] = mapped_column(INET)
    agent: Mapped[str | None]
    client_info: Mapped[dict[str, Any] | None] = mapped_column(JSONB)
    metadata_: Mapped[dict[str, Any] | None] = mapped_column("metadata", JSONB)


def of_user(tx: Tx, user_id: UUID, *, before: tuple[datetime, UUID] | None, limit: int) -> list[ActionEvent]:
    """The audit of a user, newest first."""
    wanted = (
        select(ActionEvent)
        .where(ActionEvent.user_id == user_id)
        .order_by(ActionEvent.received_at.desc(), ActionEvent.id.desc())
        .limit(limit)
    )
    if before is not None:
        wanted = wanted.where(tuple_(ActionEvent.received_at, ActionEvent.id) < before)
    return list(tx.scalars(wanted))
