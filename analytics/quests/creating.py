"""Creating quests, within what a creator may offer in a day."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import text

from analytics.quests import history, people
from analytics.quests.people import Person, RuleBroken
from analytics.quests.states import Status, Step
from analytics.quests.tables import Quest
from analytics.scores.actions import UserSuspended, midnight
from tenants.db import Tx
from tenants.errors import Invalid
from tenants.settings import Quests

MAX_ATTESTATIONS_REQUIRED = 10


@dataclass(frozen=True)
class NewQuest:
    """What a creator offers. Texts are cleaned, numbers in their ranges."""

    title: str
    description: str
    reward_xp: int
    reward_reputation: int
    tags: Sequence[str] = ()
    requirements: Sequence[str] = ()
    expires_at: datetime | None = None
    attestations_required: int | None = None
    min_rating: int | None = None


def create(tx: Tx, new: NewQuest, person: Person, settings: Quests, *, now: datetime) -> Quest:
    """Create a quest for this person, whose row is locked while their budget is counted."""
    creator_id = person.require_user()
    required = _at_least(new.attestations_required, settings.attestations_required, "attestations_required")
    min_rating = _at_least(new.min_rating, settings.min_rating, "min_rating")
    if new.expires_at is not None and new.expires_at <= now:
        raise Invalid.field("expires_at", "must be in the future")
    if not settings.members_create and not person.is_admin:
        raise RuleBroken("admins_only", "In this tenant only admins create quests")
    creator = people.lock(tx, [creator_id]).get(creator_id)
    if creator is None or creator.is_suspended or creator.is_erased:
        raise UserSuspended
    _require_budget(tx, creator_id, new.reward_xp, settings, now=now)
    quest_id = uuid4()
    tx.run(
        _INSERT,
        {
            "tenant": tx.tenant,
            "id": quest_id,
            "creator": creator_id,
            "title": new.title,
            "description": new.description,
            "requirements": list(new.requirements),
            "tags": list(new.tags),
            "xp": new.reward_xp,
            "reputation": new.reward_reputation,
            "required": required,
            "min_rating": min_rating,
            "expires_at": new.expires_at,
        },
    )
    quest = tx.get_one(Quest, (tx.tenant, quest_id))
    history.record(tx, quest, Step.CREATE, None, person)
    return quest


def _at_least(asked: int | None, least: int, name: str) -> int:
    if asked is None:
        return least
    if asked < least:
        raise Invalid.field(name, f"must be at least {least} in this tenant")
    return asked


def _require_budget(tx: Tx, creator_id: UUID, xp: int, settings: Quests, *, now: datetime) -> None:
    (today,) = tx.run(_TODAY, {"tenant": tx.tenant, "creator": creator_id, "midnight": midnight(now)})
    if today.quests >= settings.quests_per_day:
        raise RuleBroken("quest_budget_spent", f"You may create {settings.quests_per_day} quests in a day (UTC)")
    if today.xp + xp > settings.xp_per_day:
        left = max(0, settings.xp_per_day - today.xp)
        raise RuleBroken("xp_budget_spent", f"You may offer {settings.xp_per_day} XP in a day (UTC); {left} are left")


_TODAY = text("""
    SELECT count(*) AS quests, COALESCE(sum(reward_xp), 0)::bigint AS xp FROM quests
    WHERE tenant_id = :tenant AND creator_id = :creator AND created_at >= :midnight
""")
# One statement: the quest, its tags, and its creator's count.
_INSERT = text(f"""
    WITH quest AS (
        INSERT INTO quests AS n
            (tenant_id, id, status, version, round, creator_id, title, description, requirements, tags, reward_xp,
             reward_reputation, attestations_required, min_rating, created_at, updated_at, expires_at)
        SELECT t.id, :id, '{Status.OPEN}', 1, 1, :creator, :title, :description, CAST(:requirements AS text[]),
               CAST(:tags AS text[]), :xp, :reputation, :required, :min_rating, m.now, m.now, :expires_at
        FROM tenants t CROSS JOIN (SELECT statement_timestamp() AS now) m WHERE t.id = :tenant
        RETURNING id, creator_id, created_at
    ), tagged AS (
        INSERT INTO quest_tags AS n (tenant_id, quest_id, tag, created_at)
        SELECT t.id, q.id, w.tag, q.created_at
        FROM tenants t CROSS JOIN quest q CROSS JOIN unnest(CAST(:tags AS text[])) AS w(tag)
        WHERE t.id = :tenant RETURNING tag
    )
    UPDATE users u SET quests_created = u.quests_created + 1 FROM quest q
    WHERE u.tenant_id = :tenant AND u.id = q.creator_id
    RETURNING u.id
""")  # noqa: S608  our own names


def fields_of(template: Any) -> dict[str, Any]:
    """What a template has for a new quest."""
    return {
        "title": template.title,
        "description": template.description,
        "reward_xp": template.reward_xp,
        "reward_reputation": template.reward_reputation,
        "tags": list(template.tags),
    }
