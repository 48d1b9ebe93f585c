"""How a tenant app's own users are shown: their names, pictures and segments."""

from typing import Any

from analytics import user_changes
from app.api.blueprint import Blueprint
from app.api.users import ProfileIn, UserOut, shown_to
from app.http.auth import current_actor
from app.http.rights import May, requires
from app.http.transactions import actor_tx, audit, idempotent
from tenants.db import utcnow
from tenants.errors import Invalid
from tenants.security_events import SecurityEvent

blueprint = Blueprint("profiles", __name__, url_prefix="/api/v1", description="Users as they are shown")


@blueprint.put("/users/<user>")
@requires(May.WRITE_PROFILES)
@idempotent
@blueprint.arguments(ProfileIn)
@blueprint.alt_response(201, schema=UserOut, success=True)
@blueprint.response(200, UserOut)
def put_user(profile: dict[str, Any], user: str) -> Any:
    """Create your own user, named `ext:<external_id>` (201), or change their name, picture and segments (200).

    Fields that are missing stay as they are; null removes a name or picture.
    """
    if not user.startswith("ext:"):
        raise Invalid.field("user", "a user of your own, ext:<your id>; PATCH changes any user")
    with actor_tx() as tx:
        put = user_changes.put_external(tx, user.removeprefix("ext:"), profile, now=utcnow())
        shown = shown_to(current_actor(), tx, put.user)
    if put.changed:
        audit(SecurityEvent.USER_PROFILE_CHANGED, user=str(shown.id), changed=put.changed)
    return (shown, 201) if put.is_new else (shown, 200)
