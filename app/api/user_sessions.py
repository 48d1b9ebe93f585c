"""Sessions of users, for admins: which there are, and ending them."""

from typing import Any
from uuid import UUID

from app.api.blueprint import Blueprint
from app.api.logins import SessionsOut, listed_sessions
from app.api.users import resolve
from app.http.auth import current_actor
from app.http.rights import May, requires
from app.http.transactions import actor_tx, audit, idempotent
from tenants import sessions
from tenants.db import utcnow
from tenants.security_events import SecurityEvent

blueprint = Blueprint("user-sessions", __name__, url_prefix="/api/v1/users", description="Sessions of users")


@blueprint.get("/<user>/sessions")
@requires(May.MANAGE_USERS)
@blueprint.response(200, SessionsOut)
def list_user_sessions(user: str) -> Any:
    """A user's sessions, newest first, twenty at most."""
    with actor_tx() as tx:
        return listed_sessions(tx, resolve(tx, user, current_actor()))


@blueprint.delete("/<user>/sessions")
@requires(May.MANAGE_USERS)
@idempotent
@blueprint.response(204)
def end_user_sessions(user: str) -> None:
    """End all sessions of a user, everywhere, at once."""
    with actor_tx() as tx:
        target = resolve(tx, user, current_actor())
        ended = sessions.revoke_all(tx, target.id, now=utcnow())
    audit(SecurityEvent.SESSIONS_ENDED, user=str(target.id), sessions_ended=ended)


@blueprint.delete("/<user>/sessions/<uuid:session_id>")
@requires(May.MANAGE_USERS)
@idempotent
@blueprint.response(204)
def end_user_session(user: str, session_id: UUID) -> None:
    """End one session of a user."""
    with actor_tx() as tx:
        target = resolve(tx, user, current_actor())
        sessions.get_own(tx, session_id, target.id)
        sessions.revoke(tx, session_id, now=utcnow(), user_id=target.id)
    audit(SecurityEvent.SESSION_ENDED, session=str(session_id), user=str(target.id))
