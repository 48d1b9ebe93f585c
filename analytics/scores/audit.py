"""The audit of actions: how each came in. Kept for a while; the ledger is kept for ever."""

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson
from sqlalchemy import BigInteger, Index, LargeBinary, Uuid, select, text, tuple_
from sqlalchemy.dialects.postgresql import INET, JSONB
from sqlalchemy.orm import Mapped, mapped_column

from tenants.db import Base, TenantOwned, Tx

if TYPE_CHECKING:
    from analytics.scores.actions import ActionClaim

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


def write(tx: Tx, claim: "ActionClaim", event_id: UUID, points: int, *, now: datetime) -> None:
    tx.run(
        _WRITE,
        {
            "tenant": tx.tenant,
            "now": now,
            "id": event_id,
            "user": claim.user_id,
            "action": claim.action_type,
            "source": claim.source,
            "hash": claim.payload_hash,
            "verification": claim.verification.value,
            "client_time": claim.client_time,
            "points": points,
            "object": claim.object,
            "ip": claim.ip,
            "agent": (claim.agent or "")[:MAX_AGENT_CHARS] or None,
            "client_info": _json(claim.client_info),
            "metadata": _json(claim.metadata),
        },
    )


_WRITE = text("""
    INSERT INTO action_events (tenant_id, received_at, id, user_id, action_type, source, payload_hash, verification,
                               client_time, points, object, ip, agent, client_info, metadata)
    VALUES (:tenant, :now, :id, :user, :action, :source, :hash, :verification, :client_time, :points, :object,
            CAST(:ip AS inet), :agent, CAST(:client_info AS jsonb), CAST(:metadata AS jsonb))
""")


def _json(value: Mapping[str, Any] | None) -> str | None:
    return orjson.dumps(value).decode() if value else None
