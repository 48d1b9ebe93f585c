"""Writes of the fast lane: a single view, a like or unlike, a claimed action, on their plain cases.

Each is one write request, which the fast lane has the group commit write. If its outcome is not the usual one, the
route answers, without writing again.
"""

import re
from datetime import datetime
from typing import assert_never
from uuid import UUID

import msgspec
import orjson

from analytics.ingest.pages import EXTERNAL_ID
from analytics.ingest.reasons import Result
from analytics.ingest.writes import EventKind, WriteRequest
from analytics.scores.actions import Payment
from analytics.scores.catalog import ACTION_TYPE, MAX_POINTS
from app.http import body
from app.http.auth import Actor, address_of
from app.http.fast_answer import FastAnswer
from app.http.fast_calls import Environ, FastWrite
from app.http.rights import May
from app.http.score_claims import claim_request, count_attempt, payment_answer, update_claim
from app.http.services import Services
from app.http.single_likes import count_like, like_answer, like_request
from app.http.single_views import count_view, plain_view_request, view_answer, view_request

PAGES = re.compile(r"/api/v1/pages/([^/]+)/(views|like|likes/([^/]+))")
UPDATE = "/api/v1/scores/update"
# With more digits of a second, libraries differ.
TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:Z|[+-]\d\d:\d\d)")
VIEW_ANSWERS = {
    result: FastAnswer.of("202 ACCEPTED", view_answer(result)) for result in (Result.ACCEPTED, Result.DUPLICATE)
}
KINDS = {"PUT": EventKind.LIKE, "DELETE": EventKind.UNLIKE}


class Update(msgspec.Struct, forbid_unknown_fields=True):
    """The usual body of `POST /scores/update`; one with other fields is the route's to read."""

    action_id: UUID = msgspec.field(name="actionId")
    action_type: str = msgspec.field(name="actionType")
    timestamp: str
    wanted: int | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="scoreDelta")


class PlainView(msgspec.Struct, forbid_unknown_fields=True):
    """The usual body of a single view; one with other fields is read as the route reads it."""

    id: str


class FastWrites:
    def __init__(self, services: Services) -> None:
        self._proxy_hops = services.settings.proxy_hops
        of_page = "/api/v1/pages/<external_id>/"
        self._views = FastWrite("POST", f"{of_page}views", May.SEND_EVENTS, _view, _view_answer)
        self._update = FastWrite("POST", UPDATE, May.ACT, self._claim, _claim_answer)
        self._own = {method: FastWrite(method, f"{of_page}like", May.LIKE, _like, _like_answer) for method in KINDS}
        self._others = {
            method: FastWrite(method, f"{of_page}likes/<user>", May.SEND_EVENTS, _like, _like_answer)
            for method in KINDS
        }

    def find(self, method: str, path: str, query: str) -> FastWrite | None:
        if query:
            return None
        if path == UPDATE:
            return self._update if method == "POST" else None
        match = PAGES.fullmatch(path)
        if match is None:
            return None
        if match[2] == "views":
            return self._views if method == "POST" else None
        return (self._own if match[2] == "like" else self._others).get(method)

    def _claim(self, actor: Actor, environ: Environ) -> WriteRequest | None:
        sent = body.read_bytes(environ) if environ.get("CONTENT_TYPE") == "application/json" else b""
        update = msgspec.json.decode(sent, type=Update)
        wanted = None if update.wanted is msgspec.UNSET else update.wanted
        is_plain = TIMESTAMP.fullmatch(update.timestamp) and ACTION_TYPE.fullmatch(update.action_type)
        if not is_plain or (wanted is not None and not 1 <= wanted <= MAX_POINTS):
            return None
        claimed = {
            "action_id": update.action_id,
            "action_type": update.action_type,
            "timestamp": datetime.fromisoformat(update.timestamp),
            "wanted": wanted,
        }
        count_attempt(environ, actor.tenant_id, actor.user_id)
        address = address_of(environ, proxy_hops=self._proxy_hops)
        claim = update_claim(actor.user_id, claimed, ip=address, agent=environ.get("HTTP_USER_AGENT"))
        return claim_request(actor.tenant_id, claim, request_id=environ["HTTP_X_REQUEST_ID"])


def _claim_answer(_actor: Actor, _environ: Environ, written: WriteRequest) -> FastAnswer | None:
    payment = written.payments[0]
    if not isinstance(payment, Payment):
        return None
    answer, headers = payment_answer(payment)
    return FastAnswer.of("200 OK", orjson.dumps(answer), tuple(headers.items()))


def _view(actor: Actor, environ: Environ) -> WriteRequest | None:
    if actor.kind != "client":
        return None
    page = environ["PATH_INFO"].split("/")[4]
    if body.has_body(environ):
        try:
            plain = msgspec.json.decode(body.read_bytes(environ), type=PlainView)
        except msgspec.MsgspecError:
            view = view_request(actor, page, environ)
            return None if view.profiles_of_items else view
        if environ.get("CONTENT_TYPE") != "application/json" or EXTERNAL_ID.fullmatch(page) is None:
            return None
        return plain_view_request(actor, page, plain.id)
    return view_request(actor, page, environ)


def _view_answer(actor: Actor, _environ: Environ, written: WriteRequest) -> FastAnswer | None:
    result = written.outcomes[0].result
    match result:
        case Result.ACCEPTED | Result.DUPLICATE:
            count_view(actor.tenant_id, result)
            return VIEW_ANSWERS[result]
        case Result.UNKNOWN_PAGE | Result.UNKNOWN_USER | Result.LIMITED:
            return None
        case _:
            assert_never(result)


def _like(actor: Actor, environ: Environ) -> WriteRequest | None:
    _, _, _, _, external_id, _, *user = environ["PATH_INFO"].split("/")
    if actor.public_only or body.has_body(environ) or (actor.kind != "client" and user):
        return None
    if any(EXTERNAL_ID.fullmatch(name) is None for name in (external_id, *user)):
        return None
    kind = KINDS[environ["REQUEST_METHOD"]]
    return like_request(actor, external_id, kind, user[0] if user else actor.user_id)


def _like_answer(actor: Actor, environ: Environ, written: WriteRequest) -> FastAnswer | None:
    outcome = written.outcomes[0]
    if outcome.result is not Result.ACCEPTED:
        return None
    kind = KINDS[environ["REQUEST_METHOD"]]
    count_like(actor.tenant_id, kind)
    return FastAnswer.of("200 OK", orjson.dumps(like_answer(kind, outcome)))
