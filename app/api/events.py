"""Views and events: one at a time, in batches, and from browsers."""

from collections import Counter
from datetime import datetime, timedelta
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from uuid import UUID

import marshmallow as ma
import msgspec
import orjson
from flask import Response, request
from flask.typing import ResponseReturnValue

from analytics.ingest import events, pages, writes
from analytics.ingest.events import Ages, Batch, EventIn, Reason, Refused, Tally
from analytics.ingest.pages import EXTERNAL_ID, PageNotFound
from analytics.ingest.visitors import MAX_AGENT_CHARS, is_bot
from analytics.ingest.writes import Does, Item, Part, Result
from analytics.scores import actions, catalog, sources
from analytics.scores.actions import Deed, ImpossibleTime, Paid, PayloadDiffers, Verification
from analytics.scores.catalog import UnknownAction
from analytics.wake import wake
from app.api.blueprint import Blueprint, Schema
from app.http import body, event_writes
from app.http.auth import Actor, BadCredentials, caller_network, current_actor, current_key
from app.http.edge import quiet
from app.http.rights import May, public, publishable_key, requires
from app.http.services import services
from app.http.transactions import actor_tx, after_commit, after_refusal, idempotent
from tenants import ceilings, credentials, throttle, users
from tenants import settings as tenant_settings
from tenants.ceilings import Ceiling, CeilingReached
from tenants.credentials import ClientToken, Scope
from tenants.db import Tx, current_tx, tenant_tx, utcnow
from tenants.errors import DomainError, Invalid
from tenants.settings import TenantSettings
from tenants.throttle import TooMany

blueprint = Blueprint("events", __name__, url_prefix="", description="Views and events")

BEACON_MAX_BYTES = 4096
SCRIPT = Path(__file__).parents[1] / "ui" / "static" / "plaudit.js"
ONE_ACCEPTED = orjson.dumps(Tally(1, 0, []).as_json())
ONE_DUPLICATE = orjson.dumps(Tally(0, 1, []).as_json())
counted = lru_cache(maxsize=10_000)(events.EVENTS.labels)
TALLY = {"description": "accepted, duplicates, and rejected: [{index, code, detail}]"}


class BadView(Invalid):
    """A single view that is refused: the code is the reason."""

    def __init__(self, code: Reason, detail: str) -> None:
        super().__init__(detail, errors={"event": [detail]})
        self.code = code.value  # type: ignore[misc]


class RejectionsIn(Schema):
    window = ma.fields.String(load_default="1d", validate=ma.validate.OneOf(["1d", "7d", "30d"]))


class RejectionsOut(Schema):
    window = ma.fields.String(required=True)
    total = ma.fields.Integer(required=True)
    reasons = ma.fields.Dict(keys=ma.fields.String(), values=ma.fields.Integer(), required=True)


@blueprint.post("/api/v1/pages/<external_id>/views")
@quiet
@requires(May.SEND_EVENTS, checks_token=True)
@idempotent
@blueprint.doc(
    summary="One view of a page",
    description="Body, all optional: user, id (counted once), occurred_at.",
    requestBody={"content": {"application/json": {"schema": {"type": "object"}}}},
    responses={"202": TALLY},
)
def send_view(external_id: str) -> ResponseReturnValue:
    actor = current_actor()
    try:
        part = view_part(actor, external_id, request.environ)
    except events.Refused as refused:
        after_refusal(partial(record, actor.tenant_id, refused.code, token=actor.client_token))
        raise BadView(refused.code, refused.detail) from None
    result = event_writes.write(part)[0].result
    if result is Result.UNKNOWN_PAGE:
        # In a transaction of this request's own the refusal is rolled back with it, and recorded after it.
        is_recorded = current_tx() is None
        after_refusal(partial(events.reject if is_recorded else record, actor.tenant_id, Reason.UNKNOWN_PAGE))
        raise PageNotFound(external_id)
    after_commit(partial(count_view, actor.tenant_id, result))
    return Response(view_answer(result), status=202, content_type="application/json")


def view_part(actor: Actor, external_id: str, environ: dict[str, Any]) -> Part:
    """What a single view's request wants written."""
    now = utcnow()
    sent = body.read_json(environ) if body.is_there(environ) else {}
    if not isinstance(sent, dict) or "type" in sent or "page" in sent:
        raise Invalid.field("body", "user, id, occurred_at", detail="The body may have user, id and occurred_at")
    if EXTERNAL_ID.fullmatch(external_id) is None:
        raise PageNotFound(external_id)
    item = events.check({**sent, "type": "view", "page": external_id}, now=now, ages=ages_of(actor, now))
    assert isinstance(item, Item)  # noqa: S101  an event of the type "view"
    return Part(actor.tenant_id, [item], now, token=actor.client_token)


def count_view(tenant_id: str, result: Result) -> None:
    """In the metrics: a view that is committed, or was before."""
    if result is Result.DUPLICATE:
        events.DUPLICATES.labels(tenant_id).inc()
    else:
        counted(tenant_id, "view").inc()


def view_answer(result: Result) -> bytes:
    return ONE_DUPLICATE if result is Result.DUPLICATE else ONE_ACCEPTED


@blueprint.post("/api/v1/events")
@quiet
@requires(May.SEND_EVENTS, checks_token=True)
@idempotent
@blueprint.doc(
    summary="Up to 1000 events at once",
    description="Each is accepted, a duplicate, or rejected with a reason; bad ones do not stop good ones. "
    "At most 1 MiB; gzip is taken.",
    requestBody={
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["events"],
                    "properties": {
                        "events": {
                            "type": "array",
                            "minItems": 1,
                            "maxItems": events.MOST_ITEMS,
                            "items": msgspec.json.schema_components([EventIn])[1]["EventIn"],
                        }
                    },
                }
            }
        },
    },
    responses={"202": TALLY},
)
def send_events() -> ResponseReturnValue:
    sent = body.read_json(request.environ)
    raw = sent.get("events") if isinstance(sent, dict) and set(sent) == {"events"} else None
    if not isinstance(raw, list) or not 1 <= len(raw) <= events.MOST_ITEMS:
        raise Invalid.field("events", f"a list of 1 to {events.MOST_ITEMS} events, and nothing beside it")
    batch = batch_of(current_actor(), raw)
    tally = write_with_actions(batch) if batch.actions else batch.tally(event_writes.write(batch.part))
    after_commit(tally.measure)
    return answer(tally)


@blueprint.post("/api/v1/beacon")
@quiet
@publishable_key
@blueprint.doc(
    summary="One view, from a browser",
    description="With a publishable key, as navigator.sendBeacon sends it: text/plain JSON with page, or url.",
    requestBody={"content": {"text/plain": {"schema": {"type": "string"}}}},
    responses={"202": TALLY},
)
def beacon() -> ResponseReturnValue:
    key, now = current_key(), utcnow()
    sent = body.parse_json(body.read_bytes(request.environ)[: BEACON_MAX_BYTES + 1])
    if not isinstance(sent, dict) or not set(sent) <= {"page", "url"} or len(sent) != 1:
        raise Invalid.field("body", "page, or url, and nothing else", detail="Send page or url")
    agent, network = request.headers.get("User-Agent", "")[:MAX_AGENT_CHARS], caller_network()
    limit_network(key.tenant_id, network)
    if is_bot(agent):
        return refuse(key.tenant_id, Reason.BOT, "the user agent is a robot's")
    page = page_of(key.tenant_id, sent)
    if page is None:
        return refuse(key.tenant_id, Reason.UNKNOWN_PAGE, "there is no such page")
    visitors = services().visitors
    visitor = visitors.identify(network=network, agent=agent, today=now.date())
    if not visitors.first_visit(key.tenant_id, visitor, page):
        events.DUPLICATES.labels(key.tenant_id).inc()
        return answer(Tally(0, 1, []))
    try:
        outcome = event_writes.write(Part(key.tenant_id, [Item(Does.VIEW, page, now)], now))[0]
    except BaseException:
        visitors.forget_visit(key.tenant_id, visitor, page)
        raise
    if outcome.result is Result.UNKNOWN_PAGE:
        visitors.forget_visit(key.tenant_id, visitor, page)
        events.reject(key.tenant_id, Reason.UNKNOWN_PAGE)
        return answer(_refused(Reason.UNKNOWN_PAGE, "there is no such page"))
    events.EVENTS.labels(key.tenant_id, "view").inc()
    return answer(Tally(1, 0, []))


@blueprint.get("/plaudit.js")
@public
@blueprint.doc(summary="The script that sends the beacon", responses={"200": {"description": "JavaScript"}})
def script() -> Response:
    return Response(
        SCRIPT.read_bytes(),
        content_type="text/javascript; charset=utf-8",
        headers={"Cache-Control": "public, max-age=3600", "Cross-Origin-Resource-Policy": "cross-origin"},
    )


@blueprint.get("/api/v1/ingest/rejections")
@requires(May.SEE_REJECTIONS)
@blueprint.arguments(RejectionsIn, location="query")
@blueprint.response(200, RejectionsOut)
def rejections(query: dict[str, str]) -> Any:
    """How many events were refused, by reason."""
    since = utcnow() - timedelta(days=int(query["window"].removesuffix("d")))
    with actor_tx() as tx:
        reasons = writes.rejections(tx, since=since)
    return {"window": query["window"], "total": sum(reasons.values()), "reasons": reasons}


def batch_of(actor: Actor, raw: list[Any]) -> Batch:
    now = utcnow()
    return Batch(actor.tenant_id, raw, now=now, ages=ages_of(actor, now), token=actor.client_token)


def write_with_actions(batch: Batch) -> Tally:
    """All of a batch in one transaction, so that what fails can be sent again. What is counted comes last.

    A client's token is checked before anything is done, and by `apply` once more as the effect is written.
    """
    now, settings = utcnow(), tenant_settings.recent(batch.tenant_id)
    user_ids = _make_users(batch, now=now)
    with actor_tx() as tx:
        _require_valid_token(tx, batch.part)
        done = _pay(tx, batch, user_ids, settings, now=now)
        results = [_result(one) for one in done]
        refused = Counter(one.code.value for one in results if isinstance(one, Refused))
        batch.part.rejected = refused + Counter(batch.part.rejected or {})
        writes.apply(tx, [batch.part])
        if batch.part.error is not None:
            raise BadCredentials
        tx.after_commit(lambda: wake([batch.tenant_id]))
    return batch.tally(batch.part.outcomes, results)


def _make_users(batch: Batch, *, now: datetime) -> dict[str, UUID | None]:
    """Whom the batch's actions name, in a short transaction of its own: nobody waits for a user who is being made.

    (With an Idempotency-Key it is the request's, which has one.) None: there is no room for another user.
    """
    with actor_tx() as tx:
        _require_valid_token(tx, batch.part)
        known = {action.type for action in catalog.list_(tx)}  # an unknown action creates no user
        named = {action.user for _, action in batch.actions if action.type in known}
        return {**dict.fromkeys(named), **users.ensure_all_external(tx, named, now=now)}


def _require_valid_token(tx: Tx, part: Part) -> None:
    if part.token is not None and not credentials.token_is_valid(tx, part.token):
        raise BadCredentials


def _pay(
    tx: Tx, batch: Batch, user_ids: dict[str, UUID | None], settings: TenantSettings, *, now: datetime
) -> list[Paid | DomainError]:
    actor = current_actor()
    vouched = Scope.ACTIONS_WRITE in actor.scopes or actor.is_admin
    outcomes: dict[int, Paid | DomainError] = {}
    firsts: dict[UUID, int] = {}
    no_room = CeilingReached(Ceiling.USERS, ceilings.read(tx)[Ceiling.USERS]) if None in user_ids.values() else None
    for index, action in batch.actions:
        if action.user not in user_ids:
            outcomes[index] = UnknownAction(action.type)
        elif user_ids[action.user] is None and no_room is not None:
            outcomes[index] = no_room
        elif action.event_key is not None and firsts.setdefault(action.event_key, index) != index:
            outcomes[index] = PayloadDiffers()  # the first with an id is the one that counts
    wanted = [(index, action) for index, action in batch.actions if index not in outcomes]
    deeds = [
        Deed(
            user_id,
            action.type,
            source=sources.of_event(action.event_key),
            verification=Verification.CLIENT,
            object=action.object,
            client_time=action.at,
            payload={"object": action.object},
            is_vouched=vouched,
        )
        for _, action in wanted
        if (user_id := user_ids[action.user]) is not None
    ]
    for (index, _), paid in zip(wanted, actions.perform_all(tx, deeds, settings, now=now), strict=True):
        outcomes[index] = paid
    return [outcomes[index] for index, _ in batch.actions]


def _result(done: Paid | DomainError) -> Result | Refused:
    if isinstance(done, Paid):
        return Result.DUPLICATE if done.replay else Result.ACCEPTED
    if isinstance(done, PayloadDiffers):  # an id counts once, whatever it comes with
        return Result.DUPLICATE
    if isinstance(done, ImpossibleTime):  # one who may backfill views
        return Refused(Reason.TOO_OLD, done.detail)
    if isinstance(done, UnknownAction):
        return Refused(Reason.UNKNOWN_ACTION, done.detail)
    return Refused(Reason.INVALID if isinstance(done, Invalid) else Reason.LIMITED, done.detail)


def ages_of(actor: Actor, now: datetime) -> Ages:
    backfill = Scope.EVENTS_BACKFILL in actor.scopes or actor.is_admin
    days = tenant_settings.recent(actor.tenant_id).retention.hourly_buckets_days if backfill else None
    return Ages.for_caller(now, backfill_days=days)


def page_of(tenant_id: str, sent: dict[str, Any]) -> str | None:
    """The page that a browser names, by its id or its address."""
    page, url = sent.get("page"), sent.get("url")
    if isinstance(page, str):
        return page if EXTERNAL_ID.fullmatch(page) else None
    if isinstance(url, str) and len(url) <= pages.URL_MAX:
        with tenant_tx(tenant_id) as tx:
            return pages.find_by_url(tx, url)
    raise Invalid.field("body", "page and url are text", detail="page and url are text")


def limit_network(tenant_id: str, network: str) -> None:
    amount = tenant_settings.recent(tenant_id).limits.beacons_per_minute
    try:
        throttle.require(
            "beacon", throttle.per_minute(amount), tenant_id, network, detail="Too many views from this address"
        )
    except TooMany:
        record(tenant_id, Reason.LIMITED)
        raise


def refuse(tenant_id: str, reason: Reason, detail: str) -> Response:
    record(tenant_id, reason)
    return answer(_refused(reason, detail))


def record(tenant_id: str, reason: Reason, *, token: ClientToken | None = None) -> None:
    """Count a refusal for the metrics and for the tenant's admins; not with a token that is not valid any more."""
    event_writes.write(Part(tenant_id, [], utcnow(), token=token, rejected={reason.value: 1}))
    events.reject(tenant_id, reason)


def answer(tally: Tally) -> Response:
    return Response(orjson.dumps(tally.as_json()), status=202, content_type="application/json")


def _refused(reason: Reason, detail: str) -> Tally:
    return Tally(0, 0, [events.Rejection(0, reason, detail)])
