"""Rewards of quests that could not be paid at once."""

from datetime import datetime
from typing import Any
from uuid import UUID

from analytics.quests import rewards
from app.api.blueprint import Blueprint
from app.api.quest_schemas import FailedRewardOut, FailedRewardsIn, FailedRewardsOut
from app.http import paging
from app.http.auth import current_actor
from app.http.rights import May, requires
from app.http.transactions import actor_tx, audit
from tenants.db import utcnow
from tenants.security_events import SecurityEvent

blueprint = Blueprint("rewards", __name__, url_prefix="/api/v1/rewards", description="Rewards of quests")


@blueprint.get("/failed")
@requires(May.MANAGE_QUESTS)
@blueprint.arguments(FailedRewardsIn, location="query")
@blueprint.response(200, FailedRewardsOut)
def list_failed(query: dict[str, Any]) -> Any:
    """Rewards that could not be paid when their quest was completed, newest first, and what became of them."""
    asked = paging.slice_of(query, created_at=datetime, id=UUID)
    with actor_tx() as tx:
        rows = rewards.list_(tx, status=query.get("status"), after=asked.after, limit=asked.fetch)
    return asked.answer(rows)


@blueprint.post("/failed/<uuid:reward_id>/retry")
@requires(May.MANAGE_QUESTS)
@blueprint.response(200, FailedRewardOut)
def retry(reward_id: UUID) -> Any:
    """Try to pay it now. Its `status` says whether that worked; one that was paid is a 409."""
    actor, now = current_actor(), utcnow()
    with actor_tx() as tx:
        lease = rewards.lease_one(tx, reward_id, now=now)
    is_paid = rewards.attempt_leased(actor.tenant_id, lease, by=actor.caller, now=now)
    audit(SecurityEvent.REWARD_RETRIED, reward=str(reward_id), paid=is_paid)
    with actor_tx() as tx:
        return rewards.get(tx, reward_id)
