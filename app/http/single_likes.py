"""One like or unlike: its write request and its answer. Shared by the routes and the fast lane."""

from functools import lru_cache
from typing import Any
from uuid import UUID

from analytics.ingest import events
from analytics.ingest.writes import EventKind, Item, Outcome, WriteRequest
from app.http import request_counts
from app.http.auth import Actor
from tenants.db import utcnow

event_counter = lru_cache(maxsize=10_000)(events.EVENTS.labels)


def like_request(actor: Actor, external_id: str, kind: EventKind, user: str | UUID) -> WriteRequest:
    """The user likes the page from now on, or does not."""
    now = utcnow()
    item = Item(kind, external_id, now, user=user, is_dated=False)
    return WriteRequest(actor.tenant_id, [item], now, token=actor.client_token)


def count_like(tenant_id: str, kind: EventKind) -> None:
    """Count a committed like or unlike in the service's metrics."""
    request_counts.count(event_counter(tenant_id, kind.value))


def like_answer(kind: EventKind, outcome: Outcome) -> dict[str, Any]:
    return {"liked": kind is EventKind.LIKE, "likes": outcome.likes}
