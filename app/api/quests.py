"""Quests: work that members offer, claim, submit and attest."""

from collections.abc import Callable
from datetime import datetime
from functools import wraps
from typing import Any, TypeVar
from uuid import UUID

from flask import request
from flask.typing import ResponseReturnValue

from analytics.quests import creating, expiring, listing, showing, steps, templates
from analytics.quests.creating import NewQuest
from analytics.quests.listing import Filter
from analytics.quests.people import Expected, Person, QuestExpired, RuleBroken
from analytics.quests.showing import Viewer
from analytics.quests.states import Status, Step
from analytics.quests.steps import NewAttestation
from analytics.quests.tables import Quest
from analytics.quests.texts import clean_all
from app.api.blueprint import Blueprint
from app.api.quest_schemas import (
    AttestationIn,
    DisputeIn,
    ForUserIn,
    QuestIn,
    QuestOut,
    QuestsIn,
    QuestsOut,
    ReasonIn,
    ResolutionIn,
    SubmissionIn,
    UsersQuestsIn,
)
from app.api.users import resolve
from app.http import cursors
from app.http.auth import Actor, current_actor
from app.http.boards import sees_names
from app.http.conditional import conditional, expected_version
from app.http.rights import May, is_allowed, requires
from app.http.transactions import actor_tx, after_refusal, audit, idempotent
from tenants import settings as tenant_settings
from tenants import throttle, users
from tenants.db import Tx, utcnow
from tenants.errors import Forbidden, Invalid
from tenants.security_events import SecurityEvent
from tenants.settings import Quests

blueprint = Blueprint("quests", __name__, url_prefix="/api/v1", description="Quests")

View = TypeVar("View", bound=Callable[..., Any])

# Each leaves a row in the history for ever.
STEPS_PER_MINUTE = {"user": 60, "client": 6_000}


class QuestsDisabled(Forbidden):
    code = "quests_disabled"
    title = "This tenant has no quests: an admin can enable them in the settings"


def _existing(view: View) -> View:
    """A step of a quest. Answer 404 for one that is not there before anything about the request is judged."""

    @wraps(view)
    def found(*args: Any, quest_id: UUID, **kwargs: Any) -> Any:
        with actor_tx() as tx:
            _settings(tx)
            steps.find(tx, quest_id)
        return view(*args, quest_id=quest_id, **kwargs)

    return conditional("If-Match")(found)  # type: ignore[return-value]


@blueprint.post("/quests")
@requires(May.QUEST)
@idempotent
@conditional()
@blueprint.arguments(QuestIn)
@blueprint.response(201, QuestOut)
def create_quest(body: dict[str, Any]) -> ResponseReturnValue:
    """Offer a quest. What `template` has need not be sent."""
    now = utcnow()
    _limit_rate()
    with actor_tx() as tx:
        settings = _settings(tx)
        if "template" in body:
            body = {**creating.fields_of(templates.get(tx, body.pop("template"))), **body}
        missing = {
            name: "Missing data for required field."
            for name in ("title", "description", "reward_xp", "reward_reputation")
            if name not in body
        }
        if missing:
            raise Invalid.fields(missing)
        person = _person(tx, body, now=now)
        body["tags"] = clean_all(body.get("tags", ()))
        quest = creating.create(tx, NewQuest(**body), person, settings, now=now)
        answer = _answer(tx, quest, person, now=now)
    return answer[0], 201, {**answer[2], "Location": f"/api/v1/quests/{quest.id}"}


@blueprint.get("/quests")
@requires(May.READ_QUESTS)
@blueprint.arguments(QuestsIn, location="query")
@blueprint.response(200, QuestsOut)
def list_quests(query: dict[str, Any]) -> Any:
    """Newest first; those of a performer by their last change. Several filters look at a bounded part of the list:
    an answer may have few items, or none, and still a `next_cursor`."""
    actor = current_actor()
    with actor_tx() as tx:
        _settings(tx)
        people = {name: _named(tx, query[name]) for name in ("creator", "performer", "to_attest") if name in query}
        if "to_attest" in people and actor.kind == "user" and people["to_attest"] != actor.user_id:
            raise RuleBroken("others_work", "Members see what they may attest themselves: to_attest=me")
        wanted = Filter(
            Status(query["status"]) if "status" in query else None,
            query.get("tag"),
            people.get("creator"),
            people.get("performer"),
            people.get("to_attest"),
        )
        return _slice(tx, wanted, query)


@blueprint.get("/users/<user>/quests")
@requires(May.READ_QUESTS)
@blueprint.arguments(UsersQuestsIn, location="query")
@blueprint.response(200, QuestsOut)
def list_users_quests(query: dict[str, Any], user: str) -> Any:
    """The quests that a user has created, or performs."""
    with actor_tx() as tx:
        _settings(tx)
        user_id = _named(tx, user)
        wanted = Filter(creator_id=user_id) if query["role"] == "created" else Filter(performer_id=user_id)
        return _slice(tx, wanted, query)


@blueprint.get("/quests/<uuid:quest_id>")
@requires(May.READ_QUESTS)
@conditional()
@blueprint.response(200, QuestOut)
def get_quest(quest_id: UUID) -> ResponseReturnValue:
    """One quest. `ETag` is its version."""
    actor = current_actor()
    with actor_tx() as tx:
        _settings(tx)
        person = Person(actor.user_id if actor.kind == "user" else None, actor.is_admin, actor.caller)
        return _answer(tx, steps.find(tx, quest_id), person, now=utcnow())


@blueprint.post("/quests/<uuid:quest_id>/claim")
@requires(May.QUEST)
@idempotent
@_existing
@blueprint.arguments(ForUserIn)
@blueprint.response(200, QuestOut)
def claim_quest(body: dict[str, Any], quest_id: UUID) -> ResponseReturnValue:
    """Take on an open quest. Of several who try, one gets it."""
    return _take(
        Step.CLAIM, quest_id, body, lambda tx, at: steps.claim(tx, quest_id, at.person, at.settings, at.expected)
    )


@blueprint.post("/quests/<uuid:quest_id>/release")
@requires(May.QUEST)
@idempotent
@_existing
@blueprint.arguments(ReasonIn)
@blueprint.response(200, QuestOut)
def release_quest(body: dict[str, Any], quest_id: UUID) -> ResponseReturnValue:
    """Give a claim back; an admin may do that for somebody else."""
    reason = body.get("reason") or None
    return _take(
        Step.RELEASE,
        quest_id,
        body,
        lambda tx, at: steps.release(tx, quest_id, at.person, reason=reason, expected=at.expected),
    )


@blueprint.post("/quests/<uuid:quest_id>/submit")
@requires(May.QUEST)
@idempotent
@_existing
@blueprint.arguments(SubmissionIn)
@blueprint.response(200, QuestOut)
def submit_quest(body: dict[str, Any], quest_id: UUID) -> ResponseReturnValue:
    """Say what was done: others then attest it."""
    submission = body["submission"]
    return _take(
        Step.SUBMIT, quest_id, body, lambda tx, at: steps.submit(tx, quest_id, at.person, submission, at.expected)
    )


@blueprint.post("/quests/<uuid:quest_id>/withdraw")
@requires(May.QUEST)
@idempotent
@_existing
@blueprint.arguments(ForUserIn)
@blueprint.response(200, QuestOut)
def withdraw_submission(body: dict[str, Any], quest_id: UUID) -> ResponseReturnValue:
    """Take a submission back, while nobody has attested it."""
    return _take(
        Step.WITHDRAW, quest_id, body, lambda tx, at: steps.withdraw(tx, quest_id, at.person, at.settings, at.expected)
    )


@blueprint.post("/quests/<uuid:quest_id>/attestations")
@requires(May.QUEST)
@idempotent
@_existing
@blueprint.arguments(AttestationIn)
@blueprint.response(201, QuestOut)
def attest_quest(body: dict[str, Any], quest_id: UUID) -> ResponseReturnValue:
    """Rate submitted work. With the required number of attestations it is COMPLETE and paid, or DISPUTED."""
    new = NewAttestation(body["rating"], body.get("comments") or None, body.get("signature") or None)
    return _take(
        Step.ATTEST,
        quest_id,
        body,
        lambda tx, at: steps.attest(tx, quest_id, at.person, new, at.settings, now=at.now, expected=at.expected),
        status=201,
    )


@blueprint.post("/quests/<uuid:quest_id>/dispute")
@requires(May.QUEST)
@idempotent
@_existing
@blueprint.arguments(DisputeIn)
@blueprint.response(200, QuestOut)
def dispute_quest(body: dict[str, Any], quest_id: UUID) -> ResponseReturnValue:
    """Have an admin decide about submitted work."""
    reason = body["reason"]
    return _take(
        Step.DISPUTE, quest_id, body, lambda tx, at: steps.dispute(tx, quest_id, at.person, reason, at.expected)
    )


@blueprint.post("/quests/<uuid:quest_id>/resolve")
@requires(May.QUEST)
@idempotent
@_existing
@blueprint.arguments(ResolutionIn)
@blueprint.response(200, QuestOut)
def resolve_quest(body: dict[str, Any], quest_id: UUID) -> ResponseReturnValue:
    """End a dispute, as an admin who has nothing to do with it: COMPLETE pays, OPEN begins a new round."""
    to, reason, expires_at = Status(body["to"]), body["reason"], body.get("expires_at")
    return _take(
        Step.RESOLVE,
        quest_id,
        body,
        lambda tx, at: steps.resolve(
            tx, quest_id, at.person, to, reason=reason, expires_at=expires_at, now=at.now, expected=at.expected
        ),
    )


@blueprint.post("/quests/<uuid:quest_id>/cancel")
@requires(May.QUEST)
@idempotent
@_existing
@blueprint.arguments(ReasonIn)
@blueprint.response(200, QuestOut)
def cancel_quest(body: dict[str, Any], quest_id: UUID) -> ResponseReturnValue:
    """End a quest that is not needed any more: who created it while it is open, an admin also later."""
    reason = body.get("reason") or None
    return _take(
        Step.CANCEL,
        quest_id,
        body,
        lambda tx, at: steps.cancel(tx, quest_id, at.person, reason=reason, expected=at.expected),
    )


class _Attempt:
    """What a step of this request needs to know."""

    def __init__(self, tx: Tx, body: dict[str, Any]) -> None:
        self.now: datetime = utcnow()
        self.settings: Quests = _settings(tx)
        self.person: Person = _person(tx, body, now=self.now)
        is_missing = "If-Match" not in request.headers
        self.expected = Expected(expected_version(), is_required=is_missing and self.settings.require_if_match)


def _take(
    step: Step, quest_id: UUID, body: dict[str, Any], take: Callable[[Tx, _Attempt], Quest], *, status: int = 200
) -> ResponseReturnValue:
    """Take a step in the request's transaction. If the quest's time has come, that is committed before the answer."""
    tenant_id = current_actor().tenant_id
    _limit_rate()
    try:
        with actor_tx() as tx:
            attempt = _Attempt(tx, body)
            quest = take(tx, attempt)
            answer = _answer(tx, quest, attempt.person, now=attempt.now)
    except QuestExpired:
        after_refusal(lambda: expiring.expire(tenant_id, quest_id))
        raise
    if step is Step.RESOLVE:  # by an admin; the history has every step
        audit(SecurityEvent.QUEST_RESOLVED, quest=str(quest_id), to=quest.status)
    return answer[0], status, answer[2]


def _settings(tx: Tx) -> Quests:
    settings = tenant_settings.read(tx)[0]
    if not settings.quests_enabled:
        raise QuestsDisabled
    return settings.quests


def _person(tx: Tx, body: dict[str, Any], *, now: datetime) -> Person:
    """Who acts: the user who calls; or the user whom a client names, or the client itself if it may do everything."""
    actor = current_actor()
    named = body.pop("user", None)
    if actor.kind == "user":
        if named is not None:
            raise Invalid.field("user", "only a client says for whom it acts")
        return Person(actor.user_id, actor.is_admin, actor.caller)
    if named is None and not actor.is_admin:
        raise Invalid.field("user", "say for which of your users you act, by your own id for them")
    user_id = users.ensure_external(tx, named, now=now) if named is not None else None
    return Person(user_id, actor.is_admin, actor.caller)


def _named(tx: Tx, reference: str) -> UUID:
    """The user that a query names. Self-registered members do not learn whether one of the tenant's own ids exists."""
    actor = current_actor()
    if actor.public_only and reference.startswith("ext:"):
        raise users.UserNotFound
    return resolve(tx, reference, actor).id


def _limit_rate() -> None:
    actor = current_actor()
    limit = throttle.per_minute(STEPS_PER_MINUTE[actor.kind])
    throttle.require("quests", limit, actor.tenant_id, actor.id, detail="Too many steps in a minute")


def _viewer(actor: Actor, person: Person) -> Viewer:
    external_ids, may_attest = actor.reader.sees_external_ids, is_allowed(actor, May.QUEST)
    return Viewer(person, external_ids, sees_names=sees_names(actor.reader), may_attest=may_attest)


def _answer(tx: Tx, quest: Quest, person: Person, *, now: datetime) -> tuple[dict[str, Any], int, dict[str, str]]:
    shown = showing.in_full(tx, quest, _viewer(current_actor(), person), now=now)
    return shown, 200, {"ETag": f'"{quest.version}"'}


def _slice(tx: Tx, wanted: Filter, query: dict[str, Any]) -> dict[str, Any]:
    actor, now = current_actor(), utcnow()
    after: Any = cursors.decode(query["cursor"], datetime, UUID) if query.get("cursor") else None
    listed = listing.read(tx, wanted, after=after, limit=query["limit"], now=now)
    person = Person(None, actor.is_admin, actor.caller)
    return {
        "items": showing.in_list(tx, listed.quests, _viewer(actor, person), now=now),
        "next_cursor": cursors.encode(*listed.next) if listed.next is not None else None,
    }
