"""Likes: by a user for themselves, or by a client for one of its users; who likes a page, and what a user likes."""

from datetime import datetime
from functools import partial
from typing import Any, assert_never
from uuid import UUID

import marshmallow as ma

from analytics.ingest import events, likes, pages
from analytics.ingest.likes import PageLike
from analytics.ingest.pages import PageNotFound
from analytics.ingest.reasons import Reason, Result
from analytics.ingest.writes import EventKind, Outcome, WriteRequest
from app.api.blueprint import Blueprint, Schema, SliceIn
from app.api.pages import PageOut, get_visible, show
from app.api.users import NamedUserOut, resolve_permitted
from app.http import event_writes, paging
from app.http.auth import Actor, BadCredentials, current_actor
from app.http.edge import quiet
from app.http.rights import May, requires
from app.http.single_likes import count_like, like_answer, like_request
from app.http.transactions import actor_tx, after_commit, after_refusal, idempotent
from tenants import ceilings, users
from tenants.ceilings import Ceiling, CeilingReached
from tenants.db import current_tx, utcnow
from tenants.users import UserNotFound, check_external_id

# To write a like for a user who is erased meanwhile.
MAX_ATTEMPTS = 3

blueprint = Blueprint("likes", __name__, url_prefix="/api/v1", description="Likes")


class LikeOut(Schema):
    liked = ma.fields.Boolean(required=True)
    likes = ma.fields.Integer(required=True, metadata={"description": "how many like the page now"})


class OwnLikeOut(LikeOut):
    liked_at = ma.fields.AwareDateTime(required=True, allow_none=True)


class LikerOut(Schema):
    user = ma.fields.Nested(NamedUserOut)
    liked_at = ma.fields.AwareDateTime()


class LikersOut(Schema):
    items = ma.fields.List(ma.fields.Nested(LikerOut))
    next_cursor = ma.fields.String(allow_none=True)


class LikedPageOut(Schema):
    page = ma.fields.Nested(PageOut)
    liked_at = ma.fields.AwareDateTime()


class LikedPagesOut(Schema):
    items = ma.fields.List(ma.fields.Nested(LikedPageOut))
    next_cursor = ma.fields.String(allow_none=True)


@blueprint.put("/pages/<external_id>/like")
@quiet
@requires(May.LIKE)
@idempotent
@blueprint.response(200, LikeOut)
def like(external_id: str) -> Any:
    """Like a page. Liking twice changes nothing."""
    return change_like(external_id, EventKind.LIKE, current_actor().user_id)


@blueprint.delete("/pages/<external_id>/like")
@quiet
@requires(May.LIKE)
@idempotent
@blueprint.response(200, LikeOut)
def unlike(external_id: str) -> Any:
    """Remove one's own like."""
    return change_like(external_id, EventKind.UNLIKE, current_actor().user_id)


@blueprint.get("/pages/<external_id>/like")
@quiet
@requires(May.LIKE)
@blueprint.response(200, OwnLikeOut)
def get_like(external_id: str) -> Any:
    """Whether the caller likes a page, since when, and how many do."""
    with actor_tx() as tx:
        page = get_visible(tx, external_id)
        liked_at = likes.liked_at(tx, page.id, current_actor().user_id)
        return {"liked": liked_at is not None, "likes": likes.total(tx, page.id), "liked_at": liked_at}


@blueprint.get("/pages/<external_id>/likes")
@requires(May.SEE_LIKERS)
@blueprint.arguments(SliceIn, location="query")
@blueprint.response(200, LikersOut)
def list_likers(query: dict[str, Any], external_id: str) -> Any:
    """Who likes a page, newest first."""
    asked = paging.slice_of(query, liked_at=datetime, user_id=UUID)
    with actor_tx() as tx:
        page = get_visible(tx, external_id)
        rows = likes.of_page(tx, page.id, after=asked.after, limit=asked.fetch)
        named = users.find_all(tx, {row.user_id for row in rows})
    return asked.answer(rows, show=lambda shown: [{"user": named[row.user_id], **_since(row)} for row in shown])


@blueprint.get("/users/<user>/likes")
@requires(May.SEE_LIKES)
@blueprint.arguments(SliceIn, location="query")
@blueprint.response(200, LikedPagesOut)
def list_liked(query: dict[str, Any], user: str) -> Any:
    """The pages that a user likes, newest first. Members see their own.

    Pages that the caller may not see are left out, so that there may be fewer than `limit`.
    """
    asked = paging.slice_of(query, liked_at=datetime, page_id=int)
    with actor_tx() as tx:
        rows = likes.of_user(tx, resolve_permitted(tx, user).id, after=asked.after, limit=asked.fetch)
        liked = pages.find_all(tx, {row.page_id for row in rows}, public_only=current_actor().public_only)
        shown_pages = {page["id"]: page for page in show(tx, liked)}
    return asked.answer(
        rows,
        show=lambda shown: [
            {"page": shown_pages[row.page_id], **_since(row)} for row in shown if row.page_id in shown_pages
        ],
    )


def _since(like: PageLike) -> dict[str, Any]:
    return {"liked_at": like.liked_at}


@blueprint.put("/pages/<external_id>/likes/<user>")
@quiet
@requires(May.SEND_EVENTS)
@idempotent
@blueprint.response(200, LikeOut)
def like_for(external_id: str, user: str) -> Any:
    """Like a page for a user, by the tenant's own id for them. An unknown user is created."""
    check_external_id(user)
    return change_like(external_id, EventKind.LIKE, user)


@blueprint.delete("/pages/<external_id>/likes/<user>")
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
    outcome = _write(actor, external_id, kind, user)
    match outcome.result:
        case Result.ACCEPTED | Result.DUPLICATE:
            pass
        case Result.UNKNOWN_PAGE:
            raise PageNotFound(external_id)
        case Result.UNKNOWN_USER:
            raise BadCredentials if isinstance(user, UUID) else UserNotFound
        case Result.LIMITED:
            after_refusal(partial(record_limited, actor.tenant_id, is_recorded=current_tx() is None))
            raise CeilingReached(Ceiling.USERS, ceilings.recent(actor.tenant_id)[Ceiling.USERS])
        case _:
            assert_never(outcome.result)
    after_commit(partial(count_like, actor.tenant_id, kind))
    return like_answer(kind, outcome)


def _write(actor: Actor, external_id: str, kind: EventKind, user: str | UUID) -> Outcome:
    """A user whom the tenant names, and who is erased at this very moment, is created anew."""
    for _ in range(MAX_ATTEMPTS):
        outcome = event_writes.write(like_request(actor, external_id, kind, user))[0]
        if outcome.result is not Result.UNKNOWN_USER or isinstance(user, UUID):
            break
    return outcome


def record_limited(tenant_id: str, *, is_recorded: bool) -> None:
    """Count a refusal; also write it for the tenant's admins, if the request rolled it back."""
    if not is_recorded:
        event_writes.write(WriteRequest(tenant_id, [], utcnow(), rejected={Reason.LIMITED.value: 1}))
    events.reject(tenant_id, Reason.LIMITED)
