"""Views and events: one at a time, and in batches."""

from datetime import timedelta
from functools import partial
from typing import Any

import marshmallow as ma
import msgspec
import orjson
from flask import Response, g, request
from flask.typing import ResponseReturnValue

from analytics.ingest import events
from analytics.ingest.batches import Batch, Tally
from analytics.ingest.events import EventIn
from analytics.ingest.pages import EXTERNAL_ID, PageNotFound
from analytics.ingest.reasons import Reason, Refused, Result
from analytics.ingest.rejections import by_reason
from analytics.ingest.unknown_addresses import Unknown
from analytics.ingest.writes import EventKind, WriteRequest
from analytics.scores.actions import OBJECT
from analytics.scores.catalog import ACTION_TYPE
from analytics.windows import SLIDING, WINDOWS, Window
from app.api import patterns
from app.api.blueprint import SOMETIMES, Blueprint, Schema, ref
from app.http import body, edge, event_writes
from app.http.auth import Actor, current_actor
from app.http.edge import quiet
from app.http.rights import May, requires
from app.http.services import services
from app.http.single_views import ages_of, count_view, view_answer, view_request
from app.http.transactions import actor_tx, after_commit, after_refusal, idempotent
from tenants import settings as tenant_settings
from tenants.credentials import ClientToken, Scope
from tenants.db import current_tx, utcnow
from tenants.errors import Invalid

blueprint = Blueprint("events", __name__, url_prefix="", description="Views and events")


class RejectionOut(Schema):
    index = ma.fields.Integer(metadata={"description": "the event's place in the batch, from 0"})
    code = ma.fields.String(metadata={"enum": [reason.value for reason in Reason]})
    detail = ma.fields.String()
    retry_after_s = ma.fields.Integer(metadata={"description": "when to try again, if that may help", **SOMETIMES})


class TallyOut(Schema):
    accepted = ma.fields.Integer()
    duplicates = ma.fields.Integer(metadata={"description": "events that were counted before, by their id"})
    rejected = ma.fields.List(ma.fields.Nested(RejectionOut))


# What msgspec does not know of an event, since it is checked later: so that a bad one does not refuse its batch.
OF_TEXT: dict[str, dict[str, Any]] = {
    "type": {"enum": [*(kind.value for kind in EventKind), "action"]},
    "page": {"pattern": patterns.whole(EXTERNAL_ID.pattern)},
    "user": {"pattern": patterns.whole(EXTERNAL_ID.pattern)},
    "id": {"minLength": 1, "maxLength": events.MAX_EVENT_ID_CHARS},
    "occurred_at": {"format": "date-time"},
    "action_type": {"pattern": patterns.whole(ACTION_TYPE.pattern)},
    "object": {"pattern": patterns.start(OBJECT.pattern)},
}
OF_A_VIEW = ("user", "id", "occurred_at")


def described(parsed: type[msgspec.Struct], of_text: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The schema of what msgspec parses, and of its parts, by name; with these constraints of its texts."""
    schemas: dict[str, dict[str, Any]] = msgspec.json.schema_components(
        [parsed], ref_template="#/components/schemas/{name}"
    )[1]
    properties = schemas[parsed.__name__]["properties"]
    for name, constraints in of_text.items():
        for kind in properties[name].get("anyOf", [properties[name]]):
            if kind.get("type") == "string":
                kind.update(constraints)
    return schemas


def event_schemas() -> dict[str, dict[str, Any]]:
    """The schemas of events, from the type that parses them."""
    schemas = described(EventIn, OF_TEXT)
    properties = schemas["EventIn"]["properties"]
    view = {name: properties[name] for name in OF_A_VIEW}
    batch = {"type": "array", "minItems": 1, "maxItems": events.MAX_ITEMS, "items": ref("EventIn")}
    return {
        **schemas,
        "ViewIn": {"type": "object", "properties": view, "additionalProperties": False},
        "EventsIn": {
            "type": "object",
            "properties": {"events": batch},
            "required": ["events"],
            "additionalProperties": False,
        },
    }


class BadView(Invalid):
    """A refused single view: the code is the reason."""

    def __init__(self, code: Reason, detail: str) -> None:
        super().__init__(detail, errors={"event": [detail]})
        self.code = code.value


class RejectionsIn(Schema):
    window = ma.fields.String(load_default=Window.DAY.value, validate=ma.validate.OneOf([w.value for w in SLIDING]))


class RejectionsOut(Schema):
    window = ma.fields.String(required=True)
    total = ma.fields.Integer(required=True)
    reasons = ma.fields.Dict(keys=ma.fields.String(), values=ma.fields.Integer(), required=True)


@blueprint.post("/api/v1/pages/<external_id>/views")
@quiet
@requires(May.SEND_EVENTS)
@idempotent
@blueprint.doc(
    summary="Send one view of a page",
    description="All fields of the body are optional: user (an id, or an object as in events), id (the same id counts"
    " once), occurred_at.",
    requestBody={"content": {"application/json": {"schema": ref("ViewIn")}}},
)
@blueprint.response(202, TallyOut)
def send_view(external_id: str) -> ResponseReturnValue:
    actor = current_actor()
    try:
        view = view_request(actor, external_id, request.environ)
    except Refused as refused:
        after_refusal(partial(record, actor.tenant_id, refused.code, token=actor.client_token))
        raise BadView(refused.code, refused.detail) from None
    result = event_writes.write(view)[0].result
    if result is Result.UNKNOWN_PAGE:
        # In an idempotent request the record of the refusal is rolled back too, so it is written again afterwards.
        is_recorded = current_tx() is None
        after_refusal(partial(events.reject if is_recorded else record, actor.tenant_id, Reason.UNKNOWN_PAGE))
        raise PageNotFound(external_id)
    after_commit(partial(count_view, actor.tenant_id, result))
    return Response(view_answer(result), status=202, content_type="application/json")


@blueprint.post("/api/v1/events")
@quiet
@requires(May.SEND_EVENTS)
@idempotent
@blueprint.doc(
    summary="Send up to 1000 events",
    description="Each is accepted, a duplicate, or rejected with a reason; rejected events do not affect others. "
    "At most 1 MiB; gzip is accepted.",
    requestBody={"required": True, "content": {"application/json": {"schema": ref("EventsIn")}}},
)
@blueprint.response(202, TallyOut)
def send_events() -> ResponseReturnValue:
    sent = body.read_json(request.environ)
    raw = sent.get("events") if isinstance(sent, dict) and set(sent) == {"events"} else None
    if not isinstance(raw, list) or not 1 <= len(raw) <= events.MAX_ITEMS:
        raise Invalid.field("events", f"a list of 1 to {events.MAX_ITEMS} events, and no other field")
    batch = batch_of(current_actor(), raw)
    demo_secret = services().settings.demo_secret
    batch.request.request_id = g.request_id
    batch.request.is_logged = not edge.is_sent_by_demo(request.environ.get(edge.DEMO_HEADER), demo_secret)
    event_writes.write(batch.request)
    tally = batch.tally()
    after_commit(tally.measure)
    return answer(tally)


@blueprint.get("/api/v1/ingest/rejections")
@requires(May.SEE_REJECTIONS)
@blueprint.arguments(RejectionsIn, location="query")
@blueprint.response(200, RejectionsOut)
def rejections(query: dict[str, str]) -> Any:
    """How many events were rejected, by reason."""
    since = utcnow() - (WINDOWS[query["window"]].length or timedelta())
    with actor_tx() as tx:
        reasons = by_reason(tx, since=since)
    return {"window": query["window"], "total": sum(reasons.values()), "reasons": reasons}


def batch_of(actor: Actor, raw: list[Any]) -> Batch:
    now = utcnow()
    return Batch(
        actor.tenant_id,
        raw,
        now=now,
        ages=ages_of(actor, now),
        token=actor.client_token,
        settings=tenant_settings.recent(actor.tenant_id),
        is_vouched=Scope.ACTIONS_WRITE in actor.scopes or actor.is_admin,
    )


def record(tenant_id: str, reason: Reason, *, token: ClientToken | None = None, unknown: Unknown | None = None) -> None:
    """Count a rejection for the metrics and for the tenant's admins; not with a token that is no longer valid."""
    event_writes.write(WriteRequest(tenant_id, [], utcnow(), token=token, rejected={reason.value: 1}, unknown=unknown))
    events.reject(tenant_id, reason)


def answer(tally: Tally) -> Response:
    headers = {} if tally.retry_after_s is None else {"Retry-After": str(tally.retry_after_s)}
    return Response(orjson.dumps(tally.as_json()), status=202, content_type="application/json", headers=headers)
