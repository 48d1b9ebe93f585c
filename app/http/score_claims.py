"""A user's claim that they did an action: from the body to a write request, and its answer.

Shared by the routes and the fast lane, as is the limit of a user's attempts.
"""

from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from analytics.ingest.writes import WriteRequest
from analytics.scores import sources
from analytics.scores.actions import ActionClaim, Payment, Verification
from tenants import allowances
from tenants import settings as tenant_settings
from tenants.db import utcnow
from tenants.throttle import TooMany

# Each costs a lock of the user's row and a look into the ledger, also a replay and a claim that is refused. So a user
# may send this many for each payment that `limits.score_updates_per_minute` allows.
ATTEMPTS_PER_PAYMENT: Final = 10
# In the WSGI environment: this request is counted. The fast lane may pass it on to a thread, and that to the route.
COUNTED: Final = "plaudit.attempt_counted"


def count_attempt(environ: dict[str, Any], tenant_id: str, user_id: UUID) -> None:
    """Count a user's request that claims an action, once, before the database is asked; or raise TooMany.

    On an event loop `WouldWait`, if the user sends so many that Redis must be asked.
    """
    if COUNTED in environ:
        return
    limit = ATTEMPTS_PER_PAYMENT * tenant_settings.recent(tenant_id).limits.score_updates_per_minute
    state = allowances.take_one("score-attempts", limit, tenant_id, str(user_id))
    if not state.is_allowed:
        raise TooMany(f"At most {limit} score updates a minute, replays and refused ones included", state=state)
    environ[COUNTED] = True


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


def claim_request(tenant_id: str, claim: ActionClaim, *, request_id: str) -> WriteRequest:
    settings = tenant_settings.recent(tenant_id)
    return WriteRequest(tenant_id, [], utcnow(), claims=[claim], settings=settings, request_id=request_id)


def payment_answer(payment: Payment) -> tuple[dict[str, Any], dict[str, str]]:
    """The body and the headers of an answer to a claim that was paid."""
    body = {"score": payment.score, "delta": payment.delta, "rank": payment.rank, "event_id": payment.event_id}
    return body, payment.limit.headers() if payment.limit is not None else {}
