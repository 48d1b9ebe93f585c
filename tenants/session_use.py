"""How long a session may stay unused, and how many a user has.

A session that was not used for the tenant's `session_idle_days` (an admin's: `admin_session_idle_days`) is not valid.
An access token is used for minutes, so a session with tokens is used when it is refreshed. A cookie stays the same:
its session is touched when it is used, at most once in `TOUCH_EVERY`.
"""

from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import text

from tenants.db import Tx
from tenants.settings import TenantSettings
from tenants.users import Role

MAX_SESSIONS_OF_USER = 20
# Seldom, since it is a write; and often enough for a limit in days.
TOUCH_EVERY = timedelta(hours=1)


def idle_limit(settings: TenantSettings, role: Role) -> timedelta:
    return timedelta(days=settings.admin_session_idle_days if role is Role.ADMIN else settings.session_idle_days)


def touch(tx: Tx, session_id: UUID, *, now: datetime) -> None:
    """Note that a session is used, unless that was noted a short time ago."""
    tx.run(_TOUCH, {"tenant": tx.tenant, "session": session_id, "now": now, "before": now - TOUCH_EVERY})


def end_oldest(tx: Tx, user_id: UUID, *, now: datetime) -> list[UUID]:
    """End a user's sessions beyond the newest ones. The caller records it (`liveness`)."""
    bound = {"tenant": tx.tenant, "user": user_id, "now": now, "max": MAX_SESSIONS_OF_USER}
    return [row.id for row in tx.run(_END_OLDEST, bound)]


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
