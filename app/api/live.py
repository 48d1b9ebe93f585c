"""Tickets for the sockets and streams, which a separate process serves."""

from typing import Any

import marshmallow as ma
from flask import Response, g, request
from werkzeug.routing.exceptions import WebsocketMismatch

from app.api.blueprint import SOMETIMES, Blueprint, Schema
from app.api.leaderboards import RowOut
from app.http import errors
from app.http.auth import Actor, caller_network, current_key, current_reader
from app.http.edge import quiet
from app.http.errors import UpgradeRequired
from app.http.rights import May, public, requires_or_key
from app.http.services import essentials
from tenants import throttle, tickets
from tenants.db import tenant_tx, utcnow
from tenants.errors import NotFound
from tenants.tickets import Holder

blueprint = Blueprint("live", __name__, description="Live: tickets for sockets and streams")

TICKETS_PER_MINUTE = {"user": 120, "client": 6_000, "key": 60}


class TicketIn(Schema):
    key = ma.fields.String(metadata={"description": "a publishable key, instead of the header"})


class TicketOut(Schema):
    ticket = ma.fields.String(required=True)
    expires_in = ma.fields.Integer(required=True)
    live_url = ma.fields.String(required=True, metadata={"description": "the address of the sockets and streams"})


class LiveMessage(Schema):
    """What sockets and streams send."""

    type = ma.fields.String(
        metadata={"enum": ["subscribed", "unsubscribed", "invalidated", "top", "resync", "error", "pong"]}
    )
    v = ma.fields.Integer(metadata={"description": "the version of this protocol: 1"})
    seq = ma.fields.Integer(metadata={"description": "counts the messages of the connection"})
    topic = ma.fields.String(metadata={"description": "<scope>:<window>:<metric>, or of quests", **SOMETIMES})
    version = ma.fields.Integer(metadata={"description": "of the board", **SOMETIMES})
    items = ma.fields.List(ma.fields.Nested(RowOut), metadata={"description": "the rows, of `top`", **SOMETIMES})
    changed_positions = ma.fields.List(
        ma.fields.Integer(), metadata={"description": "the ranks that differ from the rows before", **SOMETIMES}
    )
    timestamp = ma.fields.AwareDateTime(metadata={"description": "of `top` and `pong`", **SOMETIMES})
    code = ma.fields.String(metadata={"description": "of an error", **SOMETIMES})
    detail = ma.fields.String(metadata=SOMETIMES)
    errors = ma.fields.Dict(keys=ma.fields.String(), values=ma.fields.List(ma.fields.String()), metadata=SOMETIMES)


class ServedElsewhere(NotFound):
    code = "served_elsewhere"
    title = "Sockets and streams are served by a separate process"


@blueprint.post("/api/v1/live/tickets")
@quiet
@requires_or_key(May.READ_BOARDS)
@blueprint.arguments(TicketIn, location="query")
@blueprint.response(201, TicketOut)
def issue_ticket(_query: dict[str, Any]) -> Any:
    """A ticket for opening a socket or stream: valid once, within 30 seconds."""
    holder, now = _holder(), utcnow()
    key = caller_network() if holder.kind == "key" else holder.proof
    limit = throttle.per_minute(TICKETS_PER_MINUTE[holder.kind])
    throttle.require("tickets", limit, holder.tenant_id, holder.id, key, detail="Too many tickets in a minute")
    with tenant_tx(holder.tenant_id) as tx:
        ticket, expires_at = tickets.issue(tx, holder, signer=essentials().signer, now=now)
    settings = essentials().settings
    expires_in = int((expires_at - now).total_seconds())
    return {"ticket": ticket, "expires_in": expires_in, "live_url": settings.live_url}


# The live process serves these; they are documented here. A proxy may serve both under one address.
UPGRADED = {
    "responses": {
        "101": {"description": "a WebSocket of JSON messages (`LiveMessage`)"},
        "426": {"$ref": "#/components/responses/UpgradeRequired"},
        "429": {"$ref": "#/components/responses/Limited"},
    }
}
STREAMED = {
    "responses": {
        "200": {
            "description": "Server-Sent Events; the `data` of each is a `LiveMessage` as JSON",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
        "429": {"$ref": "#/components/responses/Limited"},
    },
    "parameters": [
        {
            "in": "header",
            "name": "Last-Event-ID",
            "description": "the `id` of the last event that was received: resumes the stream without a ticket",
            "schema": {"type": "string"},
        }
    ],
}


class SocketIn(Schema):
    class Meta:
        unknown = ma.EXCLUDE

    ticket = ma.fields.String()


class ScoreboardIn(SocketIn):
    tenant = ma.fields.String(metadata={"description": "instead of a ticket, if the scoreboard is public"})


class StreamIn(SocketIn):
    topic = ma.fields.List(
        ma.fields.String(),
        required=True,
        metadata={"description": "<scope>:<window>:<metric>, quests:open or quests:user:<id>; may be repeated"},
    )
    top = ma.fields.Integer(
        metadata={
            "description": "how many rows to send with each change; without it, only the version",
            "minimum": 1,
            "maximum": 100,
        }
    )


@blueprint.get("/ws/leaderboards")
@public
@blueprint.arguments(SocketIn, location="query")
@blueprint.doc(**UPGRADED)
def boards_socket(_query: dict[str, Any]) -> None:
    """WebSocket: send `{"op": "subscribe", "scope", "window", "metric", "top"?}`, or `{"op": "subscribe", "topic"}`
    with `quests:open` or `quests:user:<id>`; `unsubscribe`; or `ping`."""
    raise _no_upgrade()


@blueprint.get("/ws/scoreboard/top10")
@public
@blueprint.arguments(ScoreboardIn, location="query")
@blueprint.doc(**UPGRADED)
def scoreboard_socket(_query: dict[str, Any]) -> None:
    """WebSocket: the top ten users, on connecting and after each change, with `changed_positions`."""
    raise _no_upgrade()


@blueprint.get("/api/v1/live/events")
@public
@blueprint.arguments(StreamIn, location="query")
@blueprint.doc(**STREAMED)
def stream(_query: dict[str, Any]) -> None:
    """Server-Sent Events: the same messages. `Last-Event-ID` resumes an interrupted stream."""
    raise _served_elsewhere()


def answer_upgrade(error: WebsocketMismatch) -> Response:
    """A request that asks to become a websocket never reaches a route here, which are all of plain requests."""
    if request.path.startswith("/ws/"):
        return errors.answer_domain_error(_served_elsewhere())
    return errors.answer_http_error(error)


def _no_upgrade() -> UpgradeRequired:
    return UpgradeRequired(f"{UpgradeRequired.title}. {_served_elsewhere().detail}")


def _served_elsewhere() -> ServedElsewhere:
    settings = essentials().settings
    return ServedElsewhere(f"Open it at {settings.live_url}, with a ticket from POST /api/v1/live/tickets")


def _holder() -> Holder:
    reader, actor = current_reader(), g.get("actor")
    if not isinstance(actor, Actor):
        return Holder(reader.tenant_id, "key", current_key().key_id)
    if actor.kind == "user":
        proof = actor.token_id or str(actor.session_id)
        return Holder(actor.tenant_id, "user", actor.id, proof, until=actor.token_expires_at)
    return Holder(actor.tenant_id, "client", actor.id, actor.token_id, until=actor.token_expires_at)
