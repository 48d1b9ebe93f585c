"""Taking an erased user out of the answers that are kept for `Idempotency-Key`.

The erasure's own transaction only leaves a row that says so (`mark`): reading every kept answer while the user's
counters are locked would stop others. After its commit the answers are redacted in steps (`redact`), each a short
transaction of bounded rows and bytes that also moves the row's position. A scheduled job finishes what a crash left.

An answer is redacted where it names the user by our id. The keys stay, so that nothing is done twice.
"""

import time
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson
import structlog
from sqlalchemy import ForeignKey, Uuid, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Mapped, mapped_column

from tenants.db import Base, TenantOwned, Tx, platform_tx, tenant_tx
from tenants.idempotency import MAX_KEPT_BYTES

MAX_ROWS_A_STEP = 200
MAX_BYTES_A_STEP = 1024 * 1024
# How long a request goes on with it: the rest is the scheduled job's.
IN_A_REQUEST_S = 0.5

PERSONAL = ("external_id", "username", "email", "password_hash", "segment", "avatar_url", "bio", "wallet")
REDACTED = frozenset({*PERSONAL, "note"})

log = structlog.get_logger()


class PendingRedaction(TenantOwned, Base):
    """An erased user whom kept answers may still name: those after `redacted_to`, by their request."""

    __tablename__ = "pending_redactions"

    tenant_id: Mapped[str] = mapped_column(
        ForeignKey("tenants.id", ondelete="CASCADE"), primary_key=True, sort_order=-1
    )
    user_id: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    redacted_to: Mapped[str] = mapped_column(server_default="")
    erased_at: Mapped[datetime]


def mark(tx: Tx, user_id: UUID, *, now: datetime) -> None:
    """Say that this user is to be taken out of the kept answers."""
    values = {"redacted_to": "", "erased_at": now}
    tx.execute(
        insert(PendingRedaction)
        .values(tenant_id=tx.tenant, user_id=user_id, **values)
        .on_conflict_do_update(index_elements=["tenant_id", "user_id"], set_=values)
    )


def begin(tenant_id: str, user_id: UUID) -> None:
    """Redact as much as a request has time for, after the commit of the erasure. Never fails: the job does the rest."""
    try:
        redact(tenant_id, user_id, within_s=IN_A_REQUEST_S)
    except Exception:
        log.exception("a redaction is left to the scheduled job", action="redaction.left", tenantId=tenant_id)


def redact(tenant_id: str, user_id: UUID, *, within_s: float) -> None:
    """Step by step, until nothing is left or time is up. Safe to run twice, or at once."""
    deadline = time.monotonic() + within_s
    while step(tenant_id, user_id) and time.monotonic() < deadline:
        pass


def step(tenant_id: str, user_id: UUID) -> bool:
    """Redact the next answers in a transaction of their own; whether there are more."""
    with tenant_tx(tenant_id) as tx:
        mine = select(PendingRedaction).where(PendingRedaction.user_id == user_id)
        row = tx.scalar(mine.with_for_update(skip_locked=True))
        if row is None:  # it is done, or another process is doing it
            return False
        position = {"tenant": tx.tenant, "user": str(user_id), "after": row.redacted_to}
        answers = tx.execute(_NEXT, {**position, "limit": MAX_ROWS_A_STEP}).all()
        size = 0
        for answer in answers:
            if answer.names_them:
                size += answer.size
                if size > MAX_BYTES_A_STEP and size > answer.size:
                    return True
                _redact_one(tx, answer.request, str(user_id), is_large=answer.size > MAX_KEPT_BYTES)
            row.redacted_to = answer.request
        if len(answers) == MAX_ROWS_A_STEP:
            return True
        tx.delete(row)
        return False


def pending() -> list[tuple[str, UUID]]:
    """Whom kept answers may still name, of all tenants: the longest waiting first."""
    with platform_tx() as tx:
        rows = tx.execute(
            select(PendingRedaction.tenant_id, PendingRedaction.user_id).order_by(PendingRedaction.erased_at)
        )
        return [(row.tenant_id, row.user_id) for row in rows]


def _redact_one(tx: Tx, request: str, user_id: str, *, is_large: bool) -> None:
    """Without the user; one that is too large to be read, or no JSON, without its body."""
    named = {"tenant": tx.tenant, "request": request}
    body = tx.scalar(_BODY, named) if not is_large else None
    try:
        answer = orjson.loads(bytes(body)) if body is not None else None
    except orjson.JSONDecodeError:
        answer = None
    redacted = _without(answer, user_id)
    if answer is None or redacted != answer:
        tx.execute(_REPLACE, {**named, "body": orjson.dumps(redacted) if answer is not None else None})


def _without(value: Any, user_id: str) -> Any:
    if isinstance(value, list):
        return [_without(inner, user_id) for inner in value]
    if not isinstance(value, dict):
        return value
    user = value.get("user")
    ids = (value.get("id"), value.get("user_id"), user.get("id") if isinstance(user, dict) else None)
    is_them = user_id in ids
    return {name: None if is_them and name in REDACTED else _without(inner, user_id) for name, inner in value.items()}


_NEXT = text("""
    SELECT request, octet_length(body) AS size, position(convert_to(:user, 'UTF8') IN body) > 0 AS names_them
    FROM idempotency_keys WHERE tenant_id = :tenant AND request > :after ORDER BY request LIMIT :limit
""")
_BODY = text("SELECT body FROM idempotency_keys WHERE tenant_id = :tenant AND request = :request")
_REPLACE = text("UPDATE idempotency_keys SET body = :body WHERE tenant_id = :tenant AND request = :request")
