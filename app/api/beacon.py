"""Views and likes from browsers: the beacon, and the script that sends it."""

from datetime import datetime
from typing import assert_never

from flask import Response, request
from flask.typing import ResponseReturnValue

from analytics.ingest import auto_pages, beacons, pages, visitors
from analytics.ingest.batches import Rejection, Tally
from analytics.ingest.beacons import Beacon, BeaconLimits
from analytics.ingest.pages import EXTERNAL_ID
from analytics.ingest.reasons import Reason, Result
from analytics.ingest.unknown_addresses import Unknown
from analytics.ingest.visitors import MAX_AGENT_CHARS, Visit, is_bot
from analytics.ingest.writes import EventKind, Item, WriteRequest
from app.api.blueprint import Blueprint
from app.api.events import OF_TEXT, TallyOut, answer, described, record
from app.http import body, event_writes
from app.http.auth import caller_network, current_key
from app.http.conditional import conditional
from app.http.edge import quiet
from app.http.rights import public, publishable_key
from app.http.services import services
from app.ui import script as plaudit_script
from tenants import settings as tenant_settings
from tenants.credentials import ValidKey
from tenants.db import tenant_tx, utcnow
from tenants.errors import TooLarge
from tenants.reader_signatures import BadSignature
from tenants.settings import TenantSettings
from tenants.throttle import TooMany

blueprint = Blueprint("beacon", __name__, url_prefix="", description="Views and likes from browsers")

MAX_BEACON_BYTES = 4096
BEACON = described(
    Beacon,
    {
        "type": {"enum": [kind.value for kind in EventKind]},
        "page": OF_TEXT["page"],
        "url": {"maxLength": pages.MAX_URL_BYTES, "description": "instead of `page`"},
        "user": OF_TEXT["user"],
        "user_signature": {"description": "which a like needs, and a view may have"},
    },
)["Beacon"]


@blueprint.post("/api/v1/beacon")
@quiet
@publishable_key
@blueprint.doc(
    summary="Send one view, like or unlike from a browser",
    description="With a publishable key. The body is JSON as text/plain (navigator.sendBeacon): page or url, and "
    "optionally type (view, like, unlike), title, canonical, referrer, user, user_signature.",
    requestBody={
        "required": True,
        "content": {
            "application/json": {"schema": BEACON},
            "text/plain": {
                "schema": {"type": "string", "contentMediaType": "application/json", "contentSchema": BEACON}
            },
        },
    },
)
@blueprint.response(202, TallyOut)
def beacon() -> ResponseReturnValue:
    key, now = current_key(), utcnow()
    sent = beacons.read(body.parse_json(read_bytes()))
    agent, network = request.headers.get("User-Agent", "")[:MAX_AGENT_CHARS], caller_network()
    settings = tenant_settings.recent(key.tenant_id)
    reader = signed_reader(key, sent)
    visit = (
        Visit(visitors.named(reader), is_load=True)
        if reader is not None
        else services().visitors.identify(key.tenant_id, network=network, agent=agent, now=now)
    )
    limits = BeaconLimits(key.tenant_id, network, visit.visitor.hex, settings.limits)
    try:
        limits.check()
    except TooMany:
        record(key.tenant_id, Reason.LIMITED)
        raise
    if reader is None and sent.kind is not EventKind.VIEW:
        limits.refused()
        record(key.tenant_id, Reason.INVALID)
        raise BadSignature
    if is_bot(agent):
        return refuse(limits, Reason.BOT, "the user agent is a bot")
    page = page_of(key, sent) or auto_page(key, sent, settings, network=network, now=now)
    if page is None:
        return refuse(limits, Reason.UNKNOWN_PAGE, "the page does not exist", unknown=unknown_address(key, sent))
    is_view = sent.kind is EventKind.VIEW
    item = Item(sent.kind, page, now, user=reader, is_dated=False, visit=visit if is_view else None)
    result = event_writes.write(WriteRequest(key.tenant_id, [item], now, settings=settings))[0].result
    return finish(limits, sent.kind, result)


def read_bytes() -> bytes:
    """The body, which is smaller than elsewhere with a publishable key."""
    sent = body.read_bytes(request.environ)
    if len(sent) > MAX_BEACON_BYTES:
        raise TooLarge(f"A body may have at most {MAX_BEACON_BYTES} bytes here")
    return sent


def signed_reader(key: ValidKey, sent: Beacon) -> str | None:
    """The reader that the site has signed for. A view whose signature is too old is an anonymous one."""
    if sent.user is None:
        return None
    is_valid = services().reader_signatures.is_valid(key, sent.user, sent.user_signature or "", now=utcnow())
    return sent.user if is_valid else None


def page_of(key: ValidKey, sent: Beacon) -> str | None:
    """The page that a browser names, by its id or its address."""
    if sent.page is not None:
        return sent.page if EXTERNAL_ID.fullmatch(sent.page) else None
    with tenant_tx(key.tenant_id) as tx:
        return pages.find_by_address(tx, sent.urls, key.origins)


def auto_page(key: ValidKey, sent: Beacon, settings: TenantSettings, *, network: str, now: datetime) -> str | None:
    """The page that makes itself by its first view, if the key or the tenant allows it."""
    if sent.url is None or sent.kind is not EventKind.VIEW or not key.auto_pages:
        return None
    with tenant_tx(key.tenant_id) as tx:
        return auto_pages.create(
            tx,
            url=sent.url,
            canonical=sent.canonical,
            title=sent.title,
            origins=key.origins,
            network=network,
            settings=settings,
            now=now,
        )


def unknown_address(key: ValidKey, sent: Beacon) -> Unknown | None:
    """What is listed of a refused view: its address, if it is on an origin of the key. Anybody could name others."""
    place = auto_pages.place_of(sent.url or "", sent.canonical, key.origins, is_listed=True)
    return (place.url, sent.title) if place is not None else None


def finish(limits: BeaconLimits, kind: EventKind, result: Result) -> Response:
    """The answer once it is committed or refused, which is recorded already."""
    tenant_id = limits.tenant_id
    match result:
        case Result.ACCEPTED:
            limits.accepted()
            tally = Tally(1, 0, [], tenant_id, {kind.value: 1})
        case Result.DUPLICATE:
            limits.duplicate()
            tally = Tally(0, 1, [], tenant_id)
        case Result.UNKNOWN_PAGE:
            tally = refused(limits, Reason.UNKNOWN_PAGE, "the page does not exist")
        case Result.UNKNOWN_USER:
            tally = refused(limits, Reason.INVALID, "user: erased just now")
        case Result.LIMITED:
            too_many = "too many visitors of this page from this address today"
            no_room = "the tenant has as many users as it may have"
            tally = refused(limits, Reason.LIMITED, too_many if kind is EventKind.VIEW else no_room)
        case _:
            assert_never(result)
    tally.measure()
    return answer(tally)


def refuse(limits: BeaconLimits, reason: Reason, detail: str, *, unknown: Unknown | None = None) -> Response:
    record(limits.tenant_id, reason, unknown=unknown)
    return answer(refused(limits, reason, detail))


def refused(limits: BeaconLimits, reason: Reason, detail: str) -> Tally:
    limits.refused()
    return Tally(0, 0, [Rejection(0, reason, detail)], limits.tenant_id)


@blueprint.get("/plaudit.js")
@public
@conditional("If-None-Match")
@blueprint.doc(summary="The script that sends the beacon")
@blueprint.response(200, {"type": "string"}, content_type="text/javascript")
def script() -> Response:
    return plaudit_script.serve()
