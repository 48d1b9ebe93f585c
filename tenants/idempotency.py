"""`Idempotency-Key`: the first answer again, kept in the transaction of its effect.

One row for each caller, method, path and key. Two requests at once are told apart by an advisory lock that is tried,
not waited for: the second is told that the first is still running.

A large answer is not kept, but its key is: nothing is done twice, and a replay says why it has no answer.
"""

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ForeignKey, Index, LargeBinary, delete, select, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from tenants.db import Base, TenantOwned, Tx
from tenants.errors import Conflict, Invalid

KEPT_FOR = timedelta(hours=24)
KEY_MAX = 255
MAX_KEPT_BYTES = 64 * 1024


class IdempotencyKey(TenantOwned, Base):
    __tablename__ = "idempotency_keys"
    __table_args__ = (Index("ix_idempotency_keys_created_at", "created_at"),)

    tenant_id: Mapped[str] = mapped_column(
        ForeignKey("tenants.id", ondelete="CASCADE"), primary_key=True, sort_order=-1
    )
    request: Mapped[str] = mapped_column(primary_key=True)
    body_hash: Mapped[str]
    status: Mapped[int]
    headers: Mapped[dict[str, Any]] = mapped_column(JSONB)
    # None: it was too large to be kept.
    body: Mapped[bytes | None] = mapped_column(LargeBinary)
    created_at: Mapped[datetime]


class KeyReused(Invalid):
    code = "idempotency_key_reused"
    title = "This Idempotency-Key came with another body before"


class StillRunning(Conflict):
    code = "idempotency_in_progress"
    title = "A request with this Idempotency-Key is still running"


class AnswerNotKept(Conflict):
    code = "answer_not_kept"
    title = "This request was carried out before, and its answer was not kept"

    def __init__(self, at: datetime) -> None:
        done = f"This request was carried out at {at.isoformat(timespec='seconds')} and is not repeated"
        super().__init__(f"{done}. Its answer was too large to be kept: read what it changed instead")


@dataclass(frozen=True)
class Claim:
    """One request's claim on its key."""

    request: str
    body_hash: str


def claim(*, caller: str, method: str, path: str, key: str, body: bytes) -> Claim:
    if not 1 <= len(key) <= KEY_MAX or not key.isascii() or not key.isprintable():
        raise Invalid.field("Idempotency-Key", f"1 to {KEY_MAX} printable ASCII characters")
    request = f"{caller}\n{method}\n{path}\n{key}"
    return Claim(hashlib.sha256(request.encode()).hexdigest(), hashlib.sha256(body).hexdigest())


def earlier_answer(tx: Tx, claimed: Claim, *, now: datetime) -> IdempotencyKey | None:
    """The answer given before; None when this request is the first, which now holds the key until its end."""
    lock = text("SELECT pg_try_advisory_xact_lock(hashtextextended(:tenant || ':' || :request, 0))")
    if not tx.scalar(lock, {"tenant": tx.tenant, "request": claimed.request}):
        raise StillRunning(retry_after_s=1)
    row = tx.scalar(select(IdempotencyKey).where(IdempotencyKey.request == claimed.request))
    if row is None or row.created_at < now - KEPT_FOR:
        return None
    if row.body_hash != claimed.body_hash:
        raise KeyReused
    if row.body is None:
        raise AnswerNotKept(row.created_at)
    return row


def keep(tx: Tx, claimed: Claim, *, status: int, headers: dict[str, str], body: bytes, now: datetime) -> None:
    """Remember the answer, in the transaction of what it tells of."""
    tx.execute(delete(IdempotencyKey).where(IdempotencyKey.request == claimed.request))  # one older than KEPT_FOR
    tx.add(
        IdempotencyKey(
            tenant_id=tx.tenant,
            request=claimed.request,
            body_hash=claimed.body_hash,
            status=status,
            headers=headers,
            body=body if len(body) <= MAX_KEPT_BYTES else None,
            created_at=now,
        )
    )
    tx.flush()
