"""Views from browsers: the beacon, and the script that sends it."""

from pathlib import Path
from typing import Any

from flask import Response, request
from flask.typing import ResponseReturnValue

from analytics.ingest import events, pages
from analytics.ingest.batches import Rejection, Tally
from analytics.ingest.pages import EXTERNAL_ID
from analytics.ingest.reasons import Reason, Result
from analytics.ingest.visitors import MAX_AGENT_CHARS, is_bot
from analytics.ingest.writes import EventKind, Item, WriteRequest
from app.api.blueprint import Blueprint
from app.api.events import TALLY, answer, record
from app.http import body, event_writes
from app.http.auth import caller_network, current_key
from app.http.edge import quiet
from app.http.rights import public, publishable_key
from app.http.services import services
from app.http.single_views import count_view, view_answer
from tenants import settings as tenant_settings
from tenants import throttle
from tenants.db import tenant_tx, utcnow
from tenants.errors import Invalid
from tenants.throttle import TooMany

blueprint = Blueprint("beacon", __name__, url_prefix="", description="Views from browsers")

MAX_BEACON_BYTES = 4096
SCRIPT = Path(__file__).parents[1] / "ui" / "static" / "plaudit.js"


@blueprint.post("/api/v1/beacon")
@quiet
@publishable_key
@blueprint.doc(
    summary="Send one view from a browser",
    description="With a publishable key. The body is JSON as text/plain (navigator.sendBeacon), with page or url.",
    requestBody={"content": {"text/plain": {"schema": {"type": "string"}}}},
    responses={"202": TALLY},
)
def beacon() -> ResponseReturnValue:
    key, now = current_key(), utcnow()
    sent = body.parse_json(body.read_bytes(request.environ)[: MAX_BEACON_BYTES + 1])
    if not isinstance(sent, dict) or not set(sent) <= {"page", "url"} or len(sent) != 1:
        raise Invalid.field("body", "either page or url, and no other field", detail="Send either page or url")
    agent, network = request.headers.get("User-Agent", "")[:MAX_AGENT_CHARS], caller_network()
    limit_network(key.tenant_id, network)
    if is_bot(agent):
        return refuse(key.tenant_id, Reason.BOT, "the user agent is a bot")
    page = page_of(key.tenant_id, sent)
    if page is None:
        return refuse(key.tenant_id, Reason.UNKNOWN_PAGE, "the page does not exist")
    visitors = services().visitors
    visitor = visitors.identify(network=network, agent=agent, today=now.date())
    if not visitors.is_first_visit(key.tenant_id, visitor, page):
        events.DUPLICATES.labels(key.tenant_id).inc()
        return answer(Tally(0, 1, []))
    try:
        outcome = event_writes.write(WriteRequest(key.tenant_id, [Item(EventKind.VIEW, page, now)], now))[0]
    except BaseException:
        visitors.forget_visit(key.tenant_id, visitor, page)
        raise
    if outcome.result is Result.UNKNOWN_PAGE:
        visitors.forget_visit(key.tenant_id, visitor, page)
        events.reject(key.tenant_id, Reason.UNKNOWN_PAGE)
        return answer(_refused(Reason.UNKNOWN_PAGE, "the page does not exist"))
    count_view(key.tenant_id, outcome.result)
    return Response(view_answer(outcome.result), status=202, content_type="application/json")


@blueprint.get("/plaudit.js")
@public
@blueprint.doc(summary="The script that sends the beacon", responses={"200": {"description": "JavaScript"}})
def script() -> Response:
    return Response(
        SCRIPT.read_bytes(),
        content_type="text/javascript; charset=utf-8",
        headers={"Cache-Control": "public, max-age=3600", "Cross-Origin-Resource-Policy": "cross-origin"},
    )


def page_of(tenant_id: str, sent: dict[str, Any]) -> str | None:
    """The page that a browser names, by its id or its address."""
    page, url = sent.get("page"), sent.get("url")
    if isinstance(page, str):
        return page if EXTERNAL_ID.fullmatch(page) else None
    if isinstance(url, str) and len(url) <= pages.MAX_URL_BYTES:
        with tenant_tx(tenant_id) as tx:
            return pages.find_by_url(tx, url)
    raise Invalid.field("body", "page and url must be text", detail="page and url must be text")


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


def _refused(reason: Reason, detail: str) -> Tally:
    return Tally(0, 0, [Rejection(0, reason, detail)])
