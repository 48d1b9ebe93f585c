"""Tickets for the sockets and streams, which a separate process serves."""

from typing import Any

import marshmallow as ma
from flask import g

from app.api.blueprint import Blueprint, Schema
from app.http.auth import Actor, caller_network, current_key, current_reader
from app.http.edge import quiet
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
        ticket, expires_at = tickets.issue(tx, holder, now=now)
    settings = essentials().settings
    expires_in = int((expires_at - now).total_seconds())
    return {"ticket": ticket, "expires_in": expires_in, "live_url": settings.live_url}


# The live process serves these; they are documented here. A proxy may serve both under one address.
UPGRADED = {"responses": {"101": {"description": "a WebSocket of JSON messages"}}}
STREAMED = {"responses": {"200": {"description": "text/event-stream; the data of each event is a JSON message"}}}


class SocketIn(Schema):
    class Meta:
        unknown = ma.EXCLUDE

    ticket = ma.fields.String()


class ScoreboardIn(SocketIn):
    tenant = ma.fields.String(metadata={"description": "instead of a ticket, if the scoreboard is public"})


class StreamIn(SocketIn):
    topic = ma.fields.List(
        ma.fields.String(),
        metadata={"description": "<scope>:<window>:<metric>, quests:open or quests:user:<id>; may be repeated"},
    )
    top = ma.fields.Integer(
        metadata={"description": "how many rows to send with each change; without it, only the version"}
    )


@blueprint.get("/ws/leaderboards")
@public
@blueprint.arguments(SocketIn, location="query")
@blueprint.doc(**UPGRADED)
def boards_socket(_query: dict[str, Any]) -> None:
    """WebSocket: send `{"op": "subscribe", "scope", "window", "metric", "top"?}`, or `{"op": "subscribe", "topic"}`
    with `quests:open` or `quests:user:<id>`; `unsubscribe`; or `ping`."""
    raise _served_elsewhere()


@blueprint.get("/ws/scoreboard/top10")
@public
@blueprint.arguments(ScoreboardIn, location="query")
@blueprint.doc(**UPGRADED)
def scoreboard_socket(_query: dict[str, Any]) -> None:
    """WebSocket: the top ten users, on connecting and after each change, with `changed_positions`."""
    raise _served_elsewhere()


@blueprint.get("/api/v1/live/events")
@public
@blueprint.arguments(StreamIn, location="query")
@blueprint.doc(**STREAMED)
def stream(_query: dict[str, Any]) -> None:
    """Server-Sent Events: the same messages. `Last-Event-ID` resumes an interrupted stream."""
    raise _served_elsewhere()


def _served_elsewhere() -> ServedElsewhere:
    settings = essentials().settings
    return ServedElsewhere(f"Open it at {settings.live_url}, with a ticket from POST /api/v1/live/tickets")


def _holder() -> Holder:
    reader, actor = current_reader(), g.get("actor")
    if not isinstance(actor, Actor):
        return Holder(reader.tenant_id, "key", current_key().key_id)
    if actor.kind == "user":
        return Holder(actor.tenant_id, "user", actor.id, str(actor.session_id))
    return Holder(actor.tenant_id, "client", actor.id, actor.token_id, until=actor.token_expires_at)
