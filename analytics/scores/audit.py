"""The audit of actions: how each came in. Kept for a while; the ledger is kept for ever."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from sqlalchemy import BigInteger, ColumnElement, Index, LargeBinary, Select, Uuid, func, select, tuple_
from sqlalchemy.dialects.postgresql import INET, JSONB
from sqlalchemy.orm import Mapped, mapped_column

from tenants.db import Base, TenantOwned, Tx

MAX_AGENT_CHARS = 512
# Of a user's lines, how many are looked at for those of one type; there may be fewer in an answer.
MAX_SCANNED = 5_000

Position = tuple[datetime, UUID]
# Of whole lines, or of their positions.
Rows = TypeVar("Rows", bound=Select[*tuple[Any, ...]])


class ActionEvent(TenantOwned, Base):
    __tablename__ = "action_events"
    __table_args__ = (
        Index("ix_action_events_user", "tenant_id", "user_id", "received_at", "id"),
        Index("ix_action_events_type", "tenant_id", "action_type", "received_at", "id"),
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


@dataclass(frozen=True)
class Filter:
    """What is asked for; nothing: all. `start` is included, `end` is not."""

    user_id: UUID | None = None
    action_type: str | None = None
    start: datetime | None = None
    end: datetime | None = None


class Listed(NamedTuple):
    """The lines of an answer, newest first, and where they continue."""

    lines: Sequence[ActionEvent]
    next: Position | None


def of_user(tx: Tx, user_id: UUID, *, before: Position | None, limit: int) -> Sequence[ActionEvent]:
    """The audit of a user, newest first."""
    return tx.scalars(_in_order(select(ActionEvent), Filter(user_id), before, limit)).all()


def list_(tx: Tx, wanted: Filter, *, before: Position | None, limit: int) -> Listed:
    """The audit of all users, or of what is asked for, read in the order of an index."""
    if wanted.user_id is not None and wanted.action_type is not None:
        return _of_user_and_type(tx, wanted, before=before, limit=limit)
    lines = tx.scalars(_in_order(select(ActionEvent), wanted, before, limit + 1)).all()
    return Listed(lines[:limit], _position(lines[limit - 1]) if len(lines) > limit else None)


def _of_user_and_type(tx: Tx, wanted: Filter, *, before: Position | None, limit: int) -> Listed:
    """A bounded part of the user's lines, and of those the ones with the type."""
    columns = select(ActionEvent.received_at, ActionEvent.id)
    part = _in_order(columns, replace(wanted, action_type=None), before, MAX_SCANNED).subquery("part")
    is_in_part = (ActionEvent.received_at == part.c.received_at) & (ActionEvent.id == part.c.id)
    matching = select(ActionEvent).join(part, is_in_part).where(ActionEvent.action_type == wanted.action_type)
    lines = tx.scalars(_ordered(matching, limit + 1)).all()
    if len(lines) > limit:
        return Listed(lines[:limit], _position(lines[limit - 1]))
    scanned = select(func.count().over().label("scanned"), part).order_by(part.c.received_at, part.c.id).limit(1)
    oldest = tx.execute(scanned).one_or_none()
    has_more = oldest is not None and oldest.scanned == MAX_SCANNED
    return Listed(lines, _position(oldest) if has_more else None)


def _in_order(query: Rows, wanted: Filter, before: Position | None, limit: int) -> Rows:
    criteria: list[ColumnElement[bool]] = []
    if wanted.user_id is not None:
        criteria.append(ActionEvent.user_id == wanted.user_id)
    if wanted.action_type is not None:
        criteria.append(ActionEvent.action_type == wanted.action_type)
    if wanted.start is not None:
        criteria.append(ActionEvent.received_at >= wanted.start)
    if wanted.end is not None:
        criteria.append(ActionEvent.received_at < wanted.end)
    if before is not None:
        # The first alone says which partitions are read.
        criteria += [ActionEvent.received_at <= before[0], tuple_(ActionEvent.received_at, ActionEvent.id) < before]
    return _ordered(query.where(*criteria), limit)


def _ordered(query: Rows, limit: int) -> Rows:
    return query.order_by(ActionEvent.received_at.desc(), ActionEvent.id.desc()).limit(limit)


def _position(line: Any) -> Position:
    return line.received_at, line.id
