"""One view of a page: from the body to a write request, and its answer. Shared by the route and the fast lane."""

from datetime import datetime
from functools import lru_cache
from typing import Any, assert_never

import orjson

from analytics.ingest import events
from analytics.ingest.batches import Tally
from analytics.ingest.events import Ages
from analytics.ingest.pages import EXTERNAL_ID, PageNotFound
from analytics.ingest.reasons import Result
from analytics.ingest.writes import EventKind, Item, WriteRequest
from app.http import body, request_counts
from app.http.auth import Actor
from tenants import settings as tenant_settings
from tenants.credentials import Scope
from tenants.db import utcnow
from tenants.errors import Invalid

ONE_ACCEPTED = orjson.dumps(Tally(1, 0, []).as_json())
ONE_DUPLICATE = orjson.dumps(Tally(0, 1, []).as_json())
event_counter = lru_cache(maxsize=10_000)(events.EVENTS.labels)


def view_request(actor: Actor, external_id: str, environ: dict[str, Any]) -> WriteRequest:
    """The write request of a single view."""
    now = utcnow()
    sent = body.read_json(environ) if body.has_body(environ) else {}
    if not isinstance(sent, dict) or "type" in sent or "page" in sent:
        raise Invalid.field("body", "user, id, occurred_at", detail="The body may have user, id and occurred_at")
    if EXTERNAL_ID.fullmatch(external_id) is None:
        raise PageNotFound(external_id)
    item = events.check({**sent, "type": "view", "page": external_id}, now=now, ages=ages_of(actor, now))
    assert isinstance(item, Item)  # noqa: S101  an event of the type "view"
    said = {0: item.profile} if item.profile is not None else {}
    return WriteRequest(actor.tenant_id, [item], now, token=actor.client_token, profiles_of_items=said)


def plain_view_request(actor: Actor, external_id: str, event_id: str) -> WriteRequest:
    """The same of a view that has nothing but an id."""
    now = utcnow()
    item = Item(EventKind.VIEW, external_id, now, event_key=events.event_key(event_id), is_dated=False)
    return WriteRequest(actor.tenant_id, [item], now, token=actor.client_token)


def count_view(tenant_id: str, result: Result) -> None:
    """Count a committed view, or a duplicate, in the service's metrics."""
    match result:
        case Result.ACCEPTED:
            request_counts.count(event_counter(tenant_id, "view"))
        case Result.DUPLICATE:
            request_counts.count(events.DUPLICATES.labels(tenant_id))
        case Result.UNKNOWN_PAGE | Result.UNKNOWN_USER | Result.LIMITED:
            raise ValueError(f"not the result of such a view: {result}")
        case _:
            assert_never(result)


def view_answer(result: Result) -> bytes:
    """The answer to a view of an existing page."""
    match result:
        case Result.ACCEPTED:
            return ONE_ACCEPTED
        case Result.DUPLICATE:
            return ONE_DUPLICATE
        case Result.UNKNOWN_PAGE | Result.UNKNOWN_USER | Result.LIMITED:
            raise ValueError(f"not the result of such a view: {result}")
        case _:
            assert_never(result)


def ages_of(actor: Actor, now: datetime) -> Ages:
    may_backfill = Scope.EVENTS_BACKFILL in actor.scopes or actor.is_admin
    days = tenant_settings.recent(actor.tenant_id).retention.hourly_buckets_days if may_backfill else None
    return Ages.for_caller(now, backfill_days=days)
