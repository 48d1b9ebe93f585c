"""Removing an erased user from the audit, and from the answers that are stored for `Idempotency-Key`.

The erasure's own transaction only inserts a pending redaction (`mark`): reading every stored answer while the user's
counters are locked would block others, and the audit, which the service may not change, is blanked by a function of the
owner in a transaction of its own. After the commit comes the audit, then the answers in steps (`redact`), each a short
transaction of bounded rows and bytes that also moves the position. A scheduled job finishes what a crash left.

An answer is redacted where it contains the user's id. The keys stay, so that nothing is done twice.
"""

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson
import structlog
from sqlalchemy import Uuid, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Mapped, mapped_column

from tenants import across
from tenants.across import OF_ONE
from tenants.db import Base, DeletedWithTenant, Tx, tenant_tx
from tenants.group_tx import call_definer
from tenants.idempotency import MAX_KEPT_BYTES, IdempotencyKey

MAX_ROWS_PER_STEP = 200
MAX_BYTES_PER_STEP = 1024 * 1024
# How long a request spends on it; the scheduled job does the rest.
MAX_REQUEST_S = 0.5

PERSONAL = (
    *("external_id", "username", "email", "display_name", "avatar_url", "password_hash"),
    *("segment", "bio", "wallet"),
)
REDACTED = frozenset({*PERSONAL, "segments", "note"})
# What somebody wrote, in an object that names them.
WORDS_OF = {
    "attester": frozenset({"attester_username", "comments", "signature"}),
    "performer": frozenset({"submission"}),
    "by": frozenset({"reason"}),
}

log = structlog.get_logger()


class PendingRedaction(DeletedWithTenant, Base):
    """An erased user whose data stored answers may still contain: those after `redacted_to`, ordered by request."""

    __tablename__ = "pending_redactions"

    user_id: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    redacted_to: Mapped[str] = mapped_column(server_default="")
    erased_at: Mapped[datetime]


def mark(tx: Tx, user_id: UUID, *, now: datetime) -> None:
    """Record that this user is to be removed from the stored answers."""
    values = {"redacted_to": "", "erased_at": now}
    tx.execute(
        insert(PendingRedaction)
        .values(tenant_id=tx.tenant, user_id=user_id, **values)
        .on_conflict_do_update(index_elements=["tenant_id", "user_id"], set_=values)
    )


def begin(tenant_id: str, user_id: UUID) -> None:
    """Redact as much as a request has time for, after the commit of the erasure. Never fails: the job does the rest."""
    try:
        deadline = time.monotonic() + MAX_REQUEST_S
        redact(tenant_id, user_id, is_over=lambda: time.monotonic() > deadline)
    except Exception:
        log.exception("a redaction is left to the scheduled job", action="redaction.left", tenantId=tenant_id)


def redact(tenant_id: str, user_id: UUID, *, is_over: Callable[[], bool]) -> None:
    """Redact step by step, until nothing is left or `is_over`. Safe to run twice, or at once."""
    call_definer(tenant_id, "SELECT blank_audit(%s)", [user_id])
    while step(tenant_id, user_id) and not is_over():
        pass


def step(tenant_id: str, user_id: UUID) -> bool:
    """Redact the next answers in a transaction of their own. Returns whether there are more."""
    with tenant_tx(tenant_id) as tx:
        pending_row = select(PendingRedaction).where(PendingRedaction.user_id == user_id)
        row = tx.scalar(pending_row.with_for_update(skip_locked=True))
        if row is None:  # redacted already, or another process holds the lock
            return False
        position = {"tenant": tx.tenant, "user": str(user_id), "after": row.redacted_to}
        answers = tx.execute(_NEXT, {**position, "limit": MAX_ROWS_PER_STEP}).all()
        size = 0
        for answer in answers:
            if answer.has_user:
                size += answer.size
                if size > MAX_BYTES_PER_STEP and size > answer.size:
                    return True
                _redact_answer(tx, answer.request, str(user_id), is_large=answer.size > MAX_KEPT_BYTES)
            row.redacted_to = answer.request
        if len(answers) == MAX_ROWS_PER_STEP:
            return True
        tx.delete(row)
        return False


def pending() -> list[tuple[str, UUID]]:
    """The pending redactions of all tenants (tenant, user), oldest first."""
    return [(row.tenant_id, row.user_id) for row in across.read(_PENDING)]


def _redact_answer(tx: Tx, request: str, user_id: str, *, is_large: bool) -> None:
    """Remove the user from an answer. One that is too large to be read, or not JSON, loses its body."""
    stored = IdempotencyKey.request == request
    body = tx.scalar(select(IdempotencyKey.body).where(stored)) if not is_large else None
    try:
        answer = orjson.loads(bytes(body)) if body is not None else None
    except orjson.JSONDecodeError:
        answer = None
    redacted = _without(answer, user_id)
    if answer is None or redacted != answer:
        new_body = orjson.dumps(redacted) if answer is not None else None
        tx.execute(update(IdempotencyKey).where(stored).values(body=new_body))


def _without(value: Any, user_id: str) -> Any:
    if isinstance(value, list):
        return [_without(inner, user_id) for inner in value]
    if not isinstance(value, dict):
        return value
    user = value.get("user")
    ids = (value.get("id"), value.get("user_id"), user.get("id") if isinstance(user, dict) else None)
    blank = set(REDACTED) if user_id in ids else set()
    for person, words in WORDS_OF.items():
        who = value.get(person)
        if isinstance(who, dict) and who.get("id") == user_id:
            blank |= words
    return {name: _blank(inner) if name in blank else _without(inner, user_id) for name, inner in value.items()}


def _blank(value: Any) -> Any:
    """A list stays one, for whoever reads the answer by its schema."""
    return [] if isinstance(value, list) else None


_PENDING = text(f"""
    SELECT p.tenant_id, p.user_id FROM tenants t JOIN pending_redactions p ON p.tenant_id = t.id
    WHERE {OF_ONE} ORDER BY p.erased_at
""")  # noqa: S608  our own names
_NEXT = text("""
    SELECT request, octet_length(body) AS size, position(convert_to(:user, 'UTF8') IN body) > 0 AS has_user
    FROM idempotency_keys WHERE tenant_id = :tenant AND request > :after ORDER BY request LIMIT :limit
""")
