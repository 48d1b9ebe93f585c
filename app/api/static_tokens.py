"""Static tokens, for tools that can only send a fixed header: the tenant's, by its admins, and one's own."""

from typing import Any
from uuid import UUID

import marshmallow as ma

from app.api.blueprint import Blueprint, Schema, SliceIn
from app.api.credentials import NAME, SCOPES
from app.api.users import AdminsOnly
from app.http import paging
from app.http.auth import BadCredentials, current_actor
from app.http.rights import May, requires
from app.http.services import services
from app.http.transactions import actor_tx, audit, idempotent
from tenants import logs, sessions, static_tokens, throttle, users
from tenants.db import Tx, utcnow
from tenants.security_events import SecurityEvent
from tenants.static_tokens import StaticToken
from tenants.users import User

# So that one who creates and revokes tokens all the time leaves few rows.
CREATED_PER_MINUTE = throttle.per_minute(30)

blueprint = Blueprint("static_tokens", __name__, url_prefix="/api/v1", description="Static tokens")


class StaticTokenIn(Schema):
    name = ma.fields.String(required=True, metadata=NAME)
    scopes = ma.fields.List(ma.fields.String(metadata={"enum": SCOPES}), required=True, metadata={"minItems": 1})
    expires_at = ma.fields.AwareDateTime(load_default=None, allow_none=True, metadata={"description": "null: never"})
    owner = ma.fields.String(
        validate=ma.validate.OneOf(["tenant", "me"]),
        metadata={
            "description": "`me`: it acts as the user who creates it, with their role, as far as its scopes go. "
            "By default `tenant` for admins and clients, `me` for members."
        },
    )


class StaticTokenOut(Schema):
    id = ma.fields.String(required=True)
    name = ma.fields.String()
    scopes = ma.fields.List(ma.fields.String(metadata={"enum": SCOPES}))
    user = ma.fields.UUID(allow_none=True, metadata={"description": "whom it acts as; null: the tenant's"})
    created_at = ma.fields.AwareDateTime()
    expires_at = ma.fields.AwareDateTime(allow_none=True)
    last_used_at = ma.fields.AwareDateTime(allow_none=True, metadata={"description": "to the minute"})


class NewStaticTokenOut(StaticTokenOut):
    token = ma.fields.String(
        required=True, metadata={"description": "for `Authorization: Bearer`; shown only once", "format": "password"}
    )


class StaticTokensOut(Schema):
    items = ma.fields.List(ma.fields.Nested(StaticTokenOut))
    next_cursor = ma.fields.String(allow_none=True)


@blueprint.get("/tokens")
@requires(May.MANAGE_TOKENS)
@blueprint.arguments(SliceIn, location="query")
@blueprint.response(200, StaticTokensOut)
def list_static_tokens(query: dict[str, Any]) -> Any:
    """The static tokens that are not revoked, by id: all of the tenant's and of its users, or a member's own."""
    asked = paging.slice_of(query, id=str)
    with actor_tx() as tx:
        rows = static_tokens.list_tokens(tx, user_id=_only_of(), after=asked.after, limit=asked.fetch)
    return asked.answer(rows, show=lambda shown: [_shown(row) for row in shown])


@blueprint.post("/tokens")
@requires(May.MANAGE_TOKENS)
@blueprint.arguments(StaticTokenIn)
@blueprint.response(201, NewStaticTokenOut)
def create_static_token(body: dict[str, Any]) -> Any:
    """Create a static token, which is in this answer only."""
    actor = current_actor()
    is_own = body.pop("owner", "tenant" if actor.is_admin else "me") == "me"
    if not is_own and not actor.is_admin:
        raise AdminsOnly("Only an admin may create a token of the tenant")
    throttle.require("static-tokens", CREATED_PER_MINUTE, actor.tenant_id, actor.caller, detail="Too many new tokens")
    with actor_tx() as tx:
        creator = users.get(tx, actor.user_id) if is_own or actor.kind == "user" else None
        if creator is not None:
            _require_live(tx, creator)
        user = creator if is_own else None
        created = static_tokens.create(tx, signer=services().signer, user=user, **body, now=utcnow())
    row = created.row
    logs.audit(SecurityEvent.STATIC_TOKEN_CREATED, token=row.id, user=str(row.user_id or "") or None, scopes=row.scopes)
    return {**_shown(row), "token": created.token}


@blueprint.delete("/tokens/<token_id>")
@requires(May.MANAGE_TOKENS)
@idempotent
@blueprint.response(204)
def revoke_static_token(token_id: str) -> None:
    """Revoke a static token: it is no longer valid."""
    with actor_tx() as tx:
        static_tokens.revoke(tx, token_id, user_id=_only_of(), now=utcnow())
    audit(SecurityEvent.STATIC_TOKEN_REVOKED, token=token_id)


def _require_live(tx: Tx, creator: User) -> None:
    """Raise if the session that asks has ended meanwhile: a token would outlive it.

    Whatever ends all sessions of a user locks the user first. So either it is seen here, or it revokes the new token.
    """
    users.lock(tx, creator)
    session_id = current_actor().session_id
    if session_id is not None and not sessions.is_live(tx, session_id):
        raise BadCredentials


def _only_of() -> UUID | None:
    """Whose tokens the caller may see and revoke; None: everybody's."""
    actor = current_actor()
    return None if actor.is_admin else actor.user_id


def _shown(row: StaticToken) -> dict[str, Any]:
    names = ("id", "name", "scopes", "created_at", "expires_at", "last_used_at")
    return {name: getattr(row, name) for name in names} | {"user": row.user_id}
