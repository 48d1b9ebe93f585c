"""A user's claim that they did an action: from the body to a write request, and its answer.

Shared by the route and the fast lane.
"""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from analytics.ingest.writes import WriteRequest
from analytics.scores import sources
from analytics.scores.actions import ActionClaim, Payment, Verification
from tenants import settings as tenant_settings
from tenants.db import utcnow


def update_claim(user_id: UUID, body: Mapping[str, Any], *, ip: str | None, agent: str | None) -> ActionClaim:
    """The claim of `POST /scores/update`, from its checked body."""
    return ActionClaim(
        user_id,
        body["action_type"],
        source=sources.of_action(user_id, body["action_id"]),
        verification=Verification.SESSION,
        object=body.get("object"),
        wanted_points=body.get("wanted"),
        client_time=body["timestamp"],
        metadata=body.get("metadata_"),
        client_info=body.get("client_info"),
        payload={name: body.get(name) for name in ("wanted", "timestamp", "object", "metadata_")},
        ip=ip,
        agent=agent,
    )


def claim_request(tenant_id: str, claim: ActionClaim) -> WriteRequest:
    return WriteRequest(tenant_id, [], utcnow(), claims=[claim], settings=tenant_settings.recent(tenant_id))


def payment_answer(payment: Payment) -> tuple[dict[str, Any], dict[str, str]]:
    """The body and the headers of an answer to a claim that was paid."""
    body = {"score": payment.score, "delta": payment.delta, "rank": payment.rank, "event_id": payment.event_id}
    return body, payment.limit.headers() if payment.limit is not None else {}
