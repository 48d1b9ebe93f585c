"""Likes: by a user for themselves, or by a client for one of its users."""

from functools import partial
from typing import Any, assert_never
from uuid import UUID

import marshmallow as ma

from analytics.ingest import events
from analytics.ingest.pages import PageNotFound
from analytics.ingest.reasons import Reason, Result
from analytics.ingest.writes import EventKind, WriteRequest
from app.api.blueprint import Blueprint, Schema
from app.api.pages import get_visible
from app.http import event_writes
from app.http.auth import BadCredentials, current_actor
from app.http.edge import quiet
from app.http.rights import May, requires
from app.http.single_likes import count_like, like_answer, like_request
from app.http.transactions import actor_tx, after_commit, after_refusal, idempotent
from tenants import ceilings
from tenants.ceilings import Ceiling, CeilingReached
from tenants.db import current_tx, utcnow
from tenants.users import check_external_id

blueprint = Blueprint("likes", __name__, url_prefix="/api/v1/pages", description="Likes")


class LikeOut(Schema):
    liked = ma.fields.Boolean(required=True)
    likes = ma.fields.Integer(required=True, metadata={"description": "how many like the page now"})


@blueprint.put("/<external_id>/like")
@quiet
@requires(May.LIKE)
@idempotent
@blueprint.response(200, LikeOut)
def like(external_id: str) -> Any:
    """Like a page. Liking twice changes nothing."""
    return change_like(external_id, EventKind.LIKE, current_actor().user_id)


@blueprint.delete("/<external_id>/like")
@quiet
@requires(May.LIKE)
@idempotent
@blueprint.response(200, LikeOut)
def unlike(external_id: str) -> Any:
    """Remove one's own like."""
    return change_like(external_id, EventKind.UNLIKE, current_actor().user_id)


@blueprint.put("/<external_id>/likes/<user>")
@quiet
@requires(May.SEND_EVENTS)
@idempotent
@blueprint.response(200, LikeOut)
def like_for(external_id: str, user: str) -> Any:
    """Like a page for a user, by the tenant's own id for them. An unknown user is created."""
    check_external_id(user)
    return change_like(external_id, EventKind.LIKE, user)


@blueprint.delete("/<external_id>/likes/<user>")
@quiet
@requires(May.SEND_EVENTS)
@idempotent
@blueprint.response(200, LikeOut)
def unlike_for(external_id: str, user: str) -> Any:
    """Remove a user's like."""
    check_external_id(user)
    return change_like(external_id, EventKind.UNLIKE, user)


def change_like(external_id: str, kind: EventKind, user: str | UUID) -> dict[str, Any]:
    actor = current_actor()
    if actor.public_only:
        with actor_tx() as tx:  # ends before the write begins
            get_visible(tx, external_id)
    outcome = event_writes.write(like_request(actor, external_id, kind, user))[0]
    match outcome.result:
        case Result.ACCEPTED | Result.DUPLICATE:
            pass
        case Result.UNKNOWN_PAGE:
            raise PageNotFound(external_id)
        case Result.UNKNOWN_USER:
            raise BadCredentials
        case Result.LIMITED:
            after_refusal(partial(record_limited, actor.tenant_id, is_recorded=current_tx() is None))
            raise CeilingReached(Ceiling.USERS, ceilings.recent(actor.tenant_id)[Ceiling.USERS])
        case _:
            assert_never(outcome.result)
    after_commit(partial(count_like, actor.tenant_id, kind))
    return like_answer(kind, outcome)


def record_limited(tenant_id: str, *, is_recorded: bool) -> None:
    """Count a refusal; also write it for the tenant's admins, if the request rolled it back."""
    if not is_recorded:
        event_writes.write(WriteRequest(tenant_id, [], utcnow(), rejected={Reason.LIMITED.value: 1}))
    events.reject(tenant_id, Reason.LIMITED)
