"""Flags on suspicious scores, for admins to resolve."""

from datetime import datetime
from typing import Any
from uuid import UUID

import marshmallow as ma

from analytics.scores import integrity
from analytics.scores.integrity import State, Verdict
from app.api.blueprint import Blueprint, Schema, SliceIn
from app.http import paging
from app.http.auth import current_actor
from app.http.rights import May, requires
from app.http.transactions import actor_tx, audit, idempotent
from tenants.db import utcnow
from tenants.security_events import SecurityEvent

blueprint = Blueprint("integrity", __name__, url_prefix="/api/v1/integrity", description="Integrity")


class FlagsIn(SliceIn):
    state = ma.fields.String(validate=ma.validate.OneOf([state.value for state in State]))


class FlagOut(Schema):
    id = ma.fields.UUID(required=True)
    user_id = ma.fields.UUID(required=True)
    rule = ma.fields.String(required=True)
    details = ma.fields.Dict(keys=ma.fields.String())
    state = ma.fields.String(metadata={"enum": [state.value for state in State]})
    created_at = ma.fields.AwareDateTime()
    resolved_at = ma.fields.AwareDateTime(allow_none=True)
    resolved_by = ma.fields.String(allow_none=True)
    note = ma.fields.String(allow_none=True)


class FlagsOut(Schema):
    items = ma.fields.List(ma.fields.Nested(FlagOut))
    next_cursor = ma.fields.String(allow_none=True)


class VerdictIn(Schema):
    action = ma.fields.Enum(Verdict, by_value=True, required=True)
    note = ma.fields.String(validate=ma.validate.Length(max=1000))


class ResolvedOut(FlagOut):
    reversed_entries = ma.fields.Integer()


@blueprint.get("/flags")
@requires(May.REVIEW_INTEGRITY)
@blueprint.arguments(FlagsIn, location="query")
@blueprint.response(200, FlagsOut)
def list_flags(query: dict[str, Any]) -> Any:
    """Suspicious scores, newest first."""
    asked = paging.slice_of(query, created_at=datetime, id=UUID)
    with actor_tx() as tx:
        flags = integrity.list_(tx, state=query.get("state"), after=asked.after, limit=asked.fetch)
    return asked.answer(flags)


@blueprint.post("/flags/<uuid:flag_id>/resolve")
@requires(May.REVIEW_INTEGRITY)
@idempotent
@blueprint.arguments(VerdictIn)
@blueprint.response(200, ResolvedOut)
def resolve_flag(body: dict[str, Any], flag_id: UUID) -> Any:
    """`dismiss` it (ends a suspension), `suspend` the user, or `reverse` the payments that the flag names."""
    verdict, by = body["action"], current_actor().caller
    with actor_tx() as tx:
        resolution = integrity.resolve(tx, flag_id, verdict, by=by, note=body.get("note"), now=utcnow())
        flag = resolution.flag
        answer = {name: getattr(flag, name) for name in FlagOut().fields}
        answer["reversed_entries"] = resolution.reversed_entries
    audit(SecurityEvent.FLAG_RESOLVED, flag=str(flag_id), verdict=verdict.value, user=str(flag.user_id))
    return answer
