"""Exporting and erasing all data of a user.

Erasing blanks every personal field and deletes their likes. The ledger stays, under an id that no longer identifies
anybody, so that it still adds up. What the audit and the answers stored for `Idempotency-Key` say of them is removed
after the commit: see `analytics.redaction`.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import delete, func, select, text, update

from analytics import counters, outbox, redaction
from analytics.ingest import likes, visitors
from analytics.ingest.likes import PageLike
from analytics.ingest.pages import Page
from analytics.outbox import Kind
from analytics.quests import personal
from analytics.redaction import PERSONAL
from analytics.scores.audit import ActionEvent
from analytics.scores.integrity import Flag, State
from analytics.scores.ledger import LedgerEntry
from tenants import sessions, users
from tenants.db import Tx
from tenants.errors import Forbidden
from tenants.resets import PasswordReset
from tenants.sessions import Session
from tenants.static_tokens import StaticToken
from tenants.users import Role, User, UserNotFound

PROFILE = """
    id external_id username email display_name avatar_url role segment segments bio wallet email_verified sees_private
    created_at updated_at suspended_at suspended_until current_score total_actions experience_points reputation
    quests_created quests_completed attestations_given attestations_received
"""
SESSION = "id ip user_agent created_at last_used_at expires_at revoked_at"
GRANT = "id name scopes created_at expires_at last_used_at revoked_at"
LEDGER = "id source account action_type delta previous score at event_id reverses reason"
ACTIONS = "id received_at action_type source verification client_time points object ip agent client_info"
FLAG = "id rule details state created_at"


@dataclass(frozen=True)
class Erased:
    """What was erased, for the receipt."""

    user_id: UUID
    at: datetime
    likes: int
    sessions: int
    pages_owned: int
    quests: int
    audit_rows: int


def ensure_reader(tx: Tx, external_id: str, *, now: datetime) -> User:
    """The user of a reader whom only views know, created so that there is somebody to export or erase."""
    if not visitors.lock(tx, external_id):  # `erase` deletes them, and visitors are locked before users are created
        raise UserNotFound
    return users.get(tx, users.find_or_create(tx, external_id, now=now)[0])


def export(tx: Tx, user: User) -> dict[str, Any]:
    """All data of this user."""
    own = {"tenant": tx.tenant, "user": user.id}
    liked = tx.execute(
        text("""
            SELECT p.external_id AS page, l.liked_at FROM page_likes l
            JOIN pages p ON p.tenant_id = l.tenant_id AND p.id = l.page_id
            WHERE l.tenant_id = :tenant AND l.user_id = :user AND l.liked_at IS NOT NULL ORDER BY l.liked_at
        """),
        own,
    )
    logins = tx.scalars(select(Session).where(Session.user_id == user.id).order_by(Session.created_at))
    tokens = tx.scalars(select(StaticToken).where(StaticToken.user_id == user.id).order_by(StaticToken.created_at))
    entries = tx.scalars(select(LedgerEntry).where(LedgerEntry.user_id == user.id).order_by(LedgerEntry.id))
    events = tx.scalars(
        select(ActionEvent).where(ActionEvent.user_id == user.id).order_by(ActionEvent.received_at, ActionEvent.id)
    )
    flags = tx.scalars(select(Flag).where(Flag.user_id == user.id).order_by(Flag.created_at))
    return {
        "profile": _fields(user, PROFILE),
        "likes": [{"page": row.page, "liked_at": row.liked_at} for row in liked],
        "views": [{"page": visit.page, "day": visit.day} for visit in _visits(tx, user)],
        "pages_owned": list(tx.scalars(select(Page.external_id).where(Page.owner_id == user.id).order_by(Page.id))),
        "sessions": [_fields(row, SESSION) for row in logins],
        "static_tokens": [_fields(row, GRANT) for row in tokens],
        "ledger": [_fields(row, LEDGER) for row in entries],
        "actions": [{**_fields(row, ACTIONS), "metadata": row.metadata_} for row in events],
        "integrity_flags": [_fields(row, FLAG) for row in flags],
        **personal.export(tx, user.id),
    }


def erase(tx: Tx, user: User, *, by_admin: bool, now: datetime) -> Erased:
    """Erase a user's personal data. Counts and boards that contained them are projected again."""
    liked = tx.scalars(select(PageLike.page_id).where(PageLike.user_id == user.id)).all()
    counters.lock(tx, liked)  # counters, visitors, users: in this order, as in every other transaction
    if user.external_id is not None:
        visitors.forget(tx, user.external_id)
    users.lock(tx, user)
    if user.role == Role.ADMIN and not by_admin:
        raise Forbidden("Only an admin may erase an admin")
    return _remove(tx, user.id, now=now)


def erase_again(tx: Tx, user_id: UUID, external_id: str | None, *, now: datetime) -> Erased:
    """Erase what a restored backup has brought back of an erased user, whose row is blank and marked already."""
    liked = tx.scalars(select(PageLike.page_id).where(PageLike.user_id == user_id)).all()
    counters.lock(tx, liked)
    if external_id is not None:
        visitors.forget(tx, external_id)
    tx.execute(select(User.id).where(User.id == user_id).with_for_update())
    return _remove(tx, user_id, now=now)


def _remove(tx: Tx, user_id: UUID, *, now: datetime) -> Erased:
    """Erase a user, who is locked."""
    removed_likes = likes.remove_all(tx, user_id)
    owned = tx.execute(update(Page).where(Page.owner_id == user_id).values(owner_id=None).returning(Page.id)).all()
    quests = personal.erase(tx, user_id)
    ended = sessions.delete_all(tx, user_id)
    tx.execute(delete(PasswordReset).where(PasswordReset.user_id == user_id))
    redaction.mark(tx, user_id, now=now)
    audited = tx.scalar(select(func.count()).select_from(ActionEvent).where(ActionEvent.user_id == user_id)) or 0
    dismissed = {"state": State.DISMISSED.value, "resolved_at": now, "resolved_by": "erasure"}
    tx.execute(update(Flag).where(Flag.user_id == user_id, Flag.resolved_at.is_(None)).values(**dismissed))
    tx.execute(update(Flag).where(Flag.user_id == user_id).values(note=None))
    blank: dict[str, Any] = {
        **dict.fromkeys(PERSONAL),
        "stored_segments": [],
        "profile_changed_at": None,
        "email_verified": False,
        "role": "member",
        "suspended_until": None,
    }
    tx.execute(update(User).where(User.id == user_id).values(**blank, erased_at=now, updated_at=now))
    outbox.mark_stale(tx, Kind.USER, [str(user_id)])
    return Erased(
        user_id,
        now,
        likes=removed_likes,
        sessions=ended,
        pages_owned=len(owned),
        quests=quests,
        audit_rows=audited,
    )


def _visits(tx: Tx, user: User) -> list[Any]:
    """The pages that the user saw under the tenant's own id of them."""
    return visitors.pages_of(tx, user.external_id) if user.external_id is not None else []


def _fields(row: Any, names: str) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names.split()}
