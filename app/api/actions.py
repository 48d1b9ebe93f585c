"""The action catalog (what users are paid for), action tokens (how an app vouches for an action), and the audit."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import marshmallow as ma
from flask.typing import ResponseReturnValue

from analytics.scores import actions, catalog, tokens
from analytics.scores import audit as audit_of_actions
from analytics.scores.actions import AboveCatalog
from analytics.scores.catalog import Terms
from app.api.blueprint import Blueprint, Schema, SliceIn, StrictBoolean
from app.api.users import ActionEventOut, NamedUserOut, resolve
from app.http import cursors, paging
from app.http.auth import current_actor
from app.http.rights import May, requires
from app.http.services import services
from app.http.transactions import actor_tx, audit, idempotent
from tenants import users
from tenants.db import utcnow
from tenants.security_events import SecurityEvent

blueprint = Blueprint("actions", __name__, url_prefix="/api/v1", description="Actions")

OBJECT = ma.validate.Regexp(actions.OBJECT)


POINTS = {"minimum": 1, "maximum": catalog.MAX_POINTS}
DAILY_CAP = {
    "description": "The maximum points that a user gets for this action in a day (UTC); at least `points`, unless the "
    "action needs a token. An action that would exceed it is refused whole (409 `daily_cap_reached`). Payments that an "
    "admin reverses still count."
}
DAILY_LIMIT = {
    "description": "How many times a user is paid for this action in a day (UTC); one more is refused "
    "(409 `daily_limit_reached`). Payments that an admin reverses still count."
}


class TermsIn(Schema):
    points = ma.fields.Integer(required=True, strict=True, metadata=POINTS)
    daily_cap = ma.fields.Integer(strict=True, allow_none=True, load_default=None, metadata=POINTS | DAILY_CAP)
    daily_limit = ma.fields.Integer(
        strict=True,
        allow_none=True,
        load_default=None,
        metadata={"minimum": 1, "maximum": catalog.MAX_DAILY_LIMIT, **DAILY_LIMIT},
    )
    cooldown_s = ma.fields.Integer(
        strict=True, allow_none=True, load_default=None, metadata={"minimum": 1, "maximum": catalog.MAX_COOLDOWN_S}
    )
    once_per_object = StrictBoolean(load_default=False)
    requires_token = StrictBoolean(load_default=False)
    enabled = StrictBoolean(load_default=True)


class ActionOut(Schema):
    type = ma.fields.String(required=True)
    points = ma.fields.Integer(required=True)
    daily_cap = ma.fields.Integer(allow_none=True, metadata=DAILY_CAP)
    daily_limit = ma.fields.Integer(allow_none=True, metadata=DAILY_LIMIT)
    cooldown_s = ma.fields.Integer(allow_none=True)
    once_per_object = ma.fields.Boolean()
    requires_token = ma.fields.Boolean()
    enabled = ma.fields.Boolean()
    updated_at = ma.fields.AwareDateTime()


class CatalogOut(Schema):
    items = ma.fields.List(ma.fields.Nested(ActionOut))


class TokenIn(Schema):
    user = ma.fields.String(required=True, validate=ma.validate.Length(1, 132))
    action_type = ma.fields.String(required=True, validate=ma.validate.Length(1, 64))
    object = ma.fields.String(validate=OBJECT)
    max_points = ma.fields.Integer(strict=True, validate=ma.validate.Range(1))
    expires_in = ma.fields.Integer(
        strict=True,
        load_default=300,
        validate=ma.validate.Range(1, int(tokens.MAX_LIFETIME.total_seconds())),
        metadata={"description": "seconds"},
    )


class TokenOut(Schema):
    action_token = ma.fields.String(required=True)
    expires_at = ma.fields.AwareDateTime()
    max_points = ma.fields.Integer()


class AuditIn(SliceIn):
    user = ma.fields.String(
        validate=ma.validate.Length(1, 132), metadata={"description": "our id, `ext:<external_id>`, or `me`"}
    )
    type = ma.fields.String(validate=ma.validate.Length(1, 64), metadata={"description": "the action's type"})
    start = ma.fields.AwareDateTime(data_key="from")
    end = ma.fields.AwareDateTime(data_key="to", metadata={"description": "not included"})


class AuditLineOut(ActionEventOut):
    user = ma.fields.Nested(NamedUserOut)


class AuditOut(Schema):
    items = ma.fields.List(ma.fields.Nested(AuditLineOut))
    next_cursor = ma.fields.String(allow_none=True)


@blueprint.get("/actions")
@requires(May.SEE_AUDIT)
@blueprint.arguments(AuditIn, location="query")
@blueprint.response(200, AuditOut)
def list_actions(query: dict[str, Any]) -> Any:
    """The audit of all users' actions, newest first, as long as it is kept.

    With `user` and `type` a bounded part of the user's actions is looked at: an answer may have few items, or none, and
    still a `next_cursor`.
    """
    before = paging.slice_of(query, received_at=datetime, id=UUID).after
    with actor_tx() as tx:
        user_id = resolve(tx, query["user"], current_actor()).id if "user" in query else None
        wanted = audit_of_actions.Filter(user_id, query.get("type"), query.get("start"), query.get("end"))
        listed = audit_of_actions.list_(tx, wanted, before=before, limit=query["limit"])
        named = users.find_all(tx, {line.user_id for line in listed.lines})
    names = [field.attribute or name for name, field in ActionEventOut().fields.items()]
    return {
        "items": [
            {name: getattr(line, name) for name in names} | {"user": named.get(line.user_id)} for line in listed.lines
        ],
        "next_cursor": cursors.encode(*listed.next) if listed.next is not None else None,
    }


@blueprint.get("/actions/catalog")
@requires(May.READ_CATALOG)
@blueprint.response(200, CatalogOut)
def read_catalog() -> Any:
    """The actions of the tenant, and the points for each."""
    with actor_tx() as tx:
        return {"items": catalog.list_(tx)}


@blueprint.put("/actions/catalog/<action_type>")
@requires(May.MANAGE_CATALOG)
@idempotent
@blueprint.arguments(TermsIn)
@blueprint.response(200, ActionOut)
def put_action(body: dict[str, Any], action_type: str) -> Any:
    """Create an action, or change its terms. Earlier payments do not change."""
    with actor_tx() as tx:
        row = catalog.put(tx, action_type, Terms(**body), now=utcnow())
    audit(SecurityEvent.ACTION_CHANGED, type=action_type, points=body["points"], enabled=body["enabled"])
    return row


@blueprint.delete("/actions/catalog/<action_type>")
@requires(May.MANAGE_CATALOG)
@idempotent
@blueprint.response(204)
def delete_action(action_type: str) -> None:
    """Delete an action from the catalog."""
    with actor_tx() as tx:
        catalog.remove(tx, action_type)
    audit(SecurityEvent.ACTION_REMOVED, type=action_type)


@blueprint.post("/action-tokens")
@requires(May.ISSUE_ACTION_TOKENS)
@blueprint.arguments(TokenIn)
@blueprint.response(201, TokenOut)
def issue_token(body: dict[str, Any]) -> ResponseReturnValue:
    """A token that lets one user claim one action, once. Pass it to the user's browser or app.

    `Idempotency-Key` has no effect here: a token is a credential, and answers with credentials are not stored. A
    request that is sent again gets another token. So that both together are paid once, set `once_per_object` in the
    catalog and name the `object`.
    """
    now = utcnow()
    expires_at = now + timedelta(seconds=body["expires_in"])
    with actor_tx() as tx:
        action = catalog.find(tx, body["action_type"])
        max_points = body.get("max_points", action.points)
        if max_points > action.points:
            raise AboveCatalog.field("max_points", f"at most {action.points} for {action.type}")
        user = resolve(tx, body["user"], current_actor())
    token = services().action_tokens.issue(
        tenant_id=current_actor().tenant_id,
        user_id=str(user.id),
        action=action.type,
        object_=body.get("object"),
        max_points=max_points,
        expires_at=expires_at,
        now=now,
    )
    return {"action_token": token, "expires_at": expires_at, "max_points": max_points}
