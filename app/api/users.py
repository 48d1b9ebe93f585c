"""The users of a tenant, for its admins and for themselves."""

from datetime import datetime
from typing import Any
from uuid import UUID

import marshmallow as ma
from flask.typing import ResponseReturnValue

from app import cursors
from app.api.blueprint import Blueprint, PageIn, Schema, StrictBoolean
from app.auth import Actor, May, current_actor, requires
from app.transactions import actor_tx, after_commit, audit, idempotent
from tenants import logs, sessions, users
from tenants.db import Tx, utcnow
from tenants.errors import Conflict, Forbidden
from tenants.users import Role, User

blueprint = Blueprint("users", __name__, url_prefix="/api/v1", description="Users")


class UserOut(Schema):
    id = ma.fields.UUID(required=True)
    external_id = ma.fields.String(allow_none=True)
    username = ma.fields.String(allow_none=True)
    email = ma.fields.String(allow_none=True)
    role = ma.fields.String(metadata={"enum": [role.value for role in Role]})
    suspended = ma.fields.Function(lambda user: user.suspended_at is not None)
    segment = ma.fields.String(allow_none=True)
    avatar_url = ma.fields.String(allow_none=True)
    bio = ma.fields.String(allow_none=True)
    wallet = ma.fields.String(allow_none=True)
    email_verified = ma.fields.Boolean()
    created_at = ma.fields.AwareDateTime()
    updated_at = ma.fields.AwareDateTime()


class UsersIn(PageIn):
    q = ma.fields.String(
        validate=ma.validate.Length(1, 128),
        metadata={"description": "the beginning of a username, e-mail address or external id"},
    )


class UsersOut(Schema):
    items = ma.fields.List(ma.fields.Nested(UserOut))
    next_cursor = ma.fields.String(allow_none=True)


class UserChangeIn(Schema):
    role = ma.fields.String(validate=ma.validate.OneOf([role.value for role in Role]))
    suspended = StrictBoolean()
    segment = ma.fields.String(allow_none=True)
    avatar_url = ma.fields.String(allow_none=True, validate=ma.validate.Length(max=2048))
    bio = ma.fields.String(allow_none=True, validate=ma.validate.Length(max=1000))
    wallet = ma.fields.String(allow_none=True, validate=ma.validate.Length(max=128))
    email_verified = StrictBoolean()


class ResetTokenOut(Schema):
    reset_token = ma.fields.String(required=True)
    expires_at = ma.fields.AwareDateTime()


class MeOut(Schema):
    kind = ma.fields.String(required=True, metadata={"enum": ["client", "user"]})
    tenant = ma.fields.String(required=True)
    id = ma.fields.String(required=True)
    scopes = ma.fields.List(ma.fields.String())
    roles = ma.fields.List(ma.fields.String())
    user = ma.fields.Nested(UserOut)


class OwnRights(Conflict):
    code = "own_rights"
    title = "Nobody takes away their own rights"


@blueprint.get("/me")
@requires(May.SEE_ONESELF)
@blueprint.response(200, MeOut)
def me() -> Any:
    """Who the caller is."""
    actor = current_actor()
    if actor.kind == "client":
        return {"kind": "client", "tenant": actor.tenant_id, "id": actor.id, "scopes": sorted(actor.scopes)}
    with actor_tx() as tx:
        user = users.get(tx, actor.user_id)
    return {"kind": "user", "tenant": actor.tenant_id, "id": actor.id, "roles": [actor.role], "user": user}


@blueprint.get("/users")
@requires(May.MANAGE_USERS)
@blueprint.arguments(UsersIn, location="query")
@blueprint.response(200, UsersOut)
def list_users(query: dict[str, Any]) -> Any:
    """Newest first."""
    after = cursors.decode(query["cursor"], datetime, UUID) if query.get("cursor") else None
    with actor_tx() as tx:
        found = users.search(tx, q=query.get("q"), after=after, limit=query["limit"] + 1)
    items = found[: query["limit"]]
    more = len(found) > len(items)
    return {"items": items, "next_cursor": cursors.encode(items[-1].created_at, items[-1].id) if more else None}


@blueprint.get("/users/<user>")
@requires(May.READ_USERS)
@blueprint.response(200, UserOut)
def get_user(user: str) -> Any:
    """One user: our id, `ext:<external_id>`, or `me`. Only the user and admins see the e-mail address."""
    actor = current_actor()
    with actor_tx() as tx:
        found = resolve(tx, user, actor)
    if not actor.is_admin and not (actor.kind == "user" and found.id == actor.user_id):
        found.email = None  # in this answer only: the transaction is over
    return found


@blueprint.patch("/users/<user>")
@requires(May.MANAGE_USERS)
@idempotent
@blueprint.arguments(UserChangeIn)
@blueprint.response(200, UserOut)
def change_user(changes: dict[str, Any], user: str) -> Any:
    """Set a user's role, segment, profile, or suspend them: their sessions end at once."""
    actor, now = current_actor(), utcnow()
    with actor_tx() as tx:
        found = resolve(tx, user, actor)
        own = actor.kind == "user" and found.id == actor.user_id
        if own and (changes.get("suspended") or changes.get("role") == Role.MEMBER):
            raise OwnRights
        changed, tell = sessions.change_user(tx, found, changes, now=now)
    after_commit(tell)
    rights = {name: value for name, value in changes.items() if name in {"role", "suspended", "segment"}}
    audit("user.changed", user=str(found.id), changed=sorted(changes), **rights)
    return changed


@blueprint.post("/users/<user>/password-reset")
@requires(May.RESET_PASSWORDS)
@blueprint.response(201, ResetTokenOut)
def offer_reset(user: str) -> ResponseReturnValue:
    """A token, good once and for an hour, with which the user sets a new password. Deliver it yourself."""
    with actor_tx() as tx:
        found = resolve(tx, user, current_actor())
        if found.role == Role.ADMIN and not current_actor().is_admin:
            raise Forbidden("Only an admin may reset an admin's password")
        token, expires_at = sessions.offer_reset(tx, found, now=utcnow())
    logs.audit("password.reset_offered", user=str(found.id))
    return {"reset_token": token, "expires_at": expires_at}


def resolve(tx: Tx, reference: str, actor: Actor) -> User:
    """The user a path names."""
    return users.get(tx, actor.user_id) if reference == "me" else users.find(tx, reference)
