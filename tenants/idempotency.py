"""`Idempotency-Key`: repeat the first answer, which is stored in the transaction of its effect.

One row for each caller, method, path and key. Concurrent requests are detected with an advisory lock that is tried,
not waited for: the second is refused while the first is still running.

An answer is given again only to a caller with the rights of the first time: it may show what only those may see.

A large answer is not stored, but its key is: nothing is done twice, and a replay is answered with the reason.
"""

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Index, LargeBinary, delete, select, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from tenants.db import Base, DeletedWithTenant, Tx
from tenants.errors import Conflict, Forbidden, Invalid

KEPT_FOR = timedelta(hours=24)
MAX_KEY_CHARS = 255
MAX_KEPT_BYTES = 64 * 1024


class IdempotencyKey(DeletedWithTenant, Base):
    __tablename__ = "idempotency_keys"
    __table_args__ = (Index("ix_idempotency_keys_created_at", "created_at"),)

    request: Mapped[str] = mapped_column(primary_key=True)
    body_hash: Mapped[str]
    # None: kept before rights were.
    rights: Mapped[str | None]
    status: Mapped[int]
    headers: Mapped[dict[str, Any]] = mapped_column(JSONB)
    # None: too large to be kept.
    body: Mapped[bytes | None] = mapped_column(LargeBinary)
    created_at: Mapped[datetime]


class KeyReused(Invalid):
    code = "idempotency_key_reused"
    title = "This Idempotency-Key was used with another body before"


class StillRunning(Conflict):
    code = "idempotency_in_progress"
    title = "A request with this Idempotency-Key is still running"


class AnswerNotKept(Conflict):
    code = "answer_not_kept"
    title = "This request was carried out before, and its answer was not kept"

    def __init__(self, at: datetime) -> None:
        done = f"This request was carried out at {at.isoformat(timespec='seconds')} and is not repeated"
        super().__init__(f"{done}. Its answer was too large to be kept: read what it changed instead")


class RightsChanged(Forbidden):
    code = "rights_changed"
    title = "This request was carried out before, with other rights than yours are now"

    def __init__(self) -> None:
        super().__init__("It is not repeated, and its answer is not shown: read what it changed instead")


@dataclass(frozen=True)
class RequestIdentity:
    """Caller, method, path and key as a hash, the hash of the body, and the caller's rights."""

    request: str
    body_hash: str
    rights: str


def identify(*, caller: str, rights: str, method: str, path: str, key: str, body: bytes) -> RequestIdentity:
    if not 1 <= len(key) <= MAX_KEY_CHARS or not key.isascii() or not key.isprintable():
        raise Invalid.field("Idempotency-Key", f"1 to {MAX_KEY_CHARS} printable ASCII characters")
    request = f"{caller}\n{method}\n{path}\n{key}"
    return RequestIdentity(hashlib.sha256(request.encode()).hexdigest(), hashlib.sha256(body).hexdigest(), rights)


def earlier_answer(tx: Tx, identity: RequestIdentity, *, now: datetime) -> IdempotencyKey | None:
    """The stored answer; None if this request is the first. The key stays locked until the transaction ends."""
    lock = text("SELECT pg_try_advisory_xact_lock(hashtextextended(:tenant || ':' || :request, 0))")
    if not tx.scalar(lock, {"tenant": tx.tenant, "request": identity.request}):
        raise StillRunning(retry_after_s=1)
    # Locked, which is logged: the commit then waits for the standby that the first one may have been cancelled at.
    found = select(IdempotencyKey).where(IdempotencyKey.request == identity.request)
    row = tx.scalar(found.with_for_update(read=True, key_share=True))
    if row is None or row.created_at < now - KEPT_FOR:
        return None
    if row.body_hash != identity.body_hash:
        raise KeyReused
    if row.rights not in {None, identity.rights}:
        raise RightsChanged
    if row.body is None:
        raise AnswerNotKept(row.created_at)
    return row


def keep(
    tx: Tx, identity: RequestIdentity, *, status: int, headers: dict[str, str], body: bytes, now: datetime
) -> None:
    """Store the answer, in the transaction of what the request did."""
    tx.execute(delete(IdempotencyKey).where(IdempotencyKey.request == identity.request))  # an expired one
    tx.add(
        IdempotencyKey(
            tenant_id=tx.tenant,
            request=identity.request,
            body_hash=identity.body_hash,
            rights=identity.rights,
            status=status,
            headers=headers,
            body=body if len(body) <= MAX_KEPT_BYTES else None,
            created_at=now,
        )
    )
    tx.flush()
