"""How long a session may stay unused, and how many and which ones a user has.

A session that was not used for the tenant's `session_idle_days` (an admin's: `admin_session_idle_days`) is not valid.
An access token is used for minutes, so a session with tokens is used when it is refreshed. A cookie stays the same:
its session is touched when it is used, at most once in `TOUCH_EVERY`.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import text

from tenants import settings as tenant_settings
from tenants.db import Tx
from tenants.settings import TenantSettings
from tenants.users import Role, User

MAX_SESSIONS_OF_USER = 20
# Seldom, since it is a write; and often enough for a limit in days.
TOUCH_EVERY = timedelta(hours=1)


@dataclass(frozen=True)
class ListedSession:
    id: UUID
    ip: str | None
    user_agent: str | None
    created_at: datetime
    last_used_at: datetime
    # If it is not used until then.
    expires_at: datetime


def idle_limit(settings: TenantSettings, role: Role) -> timedelta:
    return timedelta(days=settings.admin_session_idle_days if role is Role.ADMIN else settings.session_idle_days)


def list_for(tx: Tx, user: User, *, now: datetime) -> list[ListedSession]:
    """The user's valid sessions, newest first."""
    limit = idle_limit(tenant_settings.read(tx)[0], Role(user.role))
    valid = {"tenant": tx.tenant, "user": user.id, "now": now, "used_after": now - limit, "max": MAX_SESSIONS_OF_USER}
    return [
        ListedSession(
            id=row.id,
            ip=str(row.ip) if row.ip else None,
            user_agent=row.user_agent,
            created_at=row.created_at,
            last_used_at=row.last_used_at,
            expires_at=min(row.expires_at, row.last_used_at + limit),
        )
        for row in tx.run(_LIST, valid)
    ]


def touch(tx: Tx, session_id: UUID, *, now: datetime) -> None:
    """Note that a session is used, unless that was noted a short time ago."""
    tx.run(_TOUCH, {"tenant": tx.tenant, "session": session_id, "now": now, "before": now - TOUCH_EVERY})


def end_oldest(tx: Tx, user_id: UUID, *, now: datetime) -> list[UUID]:
    """End a user's sessions beyond the newest ones. The caller records it (`liveness`)."""
    bound = {"tenant": tx.tenant, "user": user_id, "now": now, "max": MAX_SESSIONS_OF_USER}
    return [row.id for row in tx.run(_END_OLDEST, bound)]


_LIST = text("""
    SELECT id, ip, user_agent, created_at, last_used_at, expires_at FROM sessions
    WHERE tenant_id = :tenant AND user_id = :user AND revoked_at IS NULL
      AND expires_at > :now AND last_used_at > :used_after
    ORDER BY created_at DESC, id LIMIT :max
""")
_TOUCH = text("""
    UPDATE sessions SET last_used_at = :now
    WHERE tenant_id = :tenant AND id = :session AND last_used_at < :before AND revoked_at IS NULL
""")
_END_OLDEST = text("""
    UPDATE sessions SET revoked_at = :now
    WHERE tenant_id = :tenant AND id = ANY(ARRAY(
        SELECT id FROM sessions
        WHERE tenant_id = :tenant AND user_id = :user AND revoked_at IS NULL AND expires_at > :now
        ORDER BY created_at DESC, id OFFSET :max
    ))
    RETURNING id
""")
