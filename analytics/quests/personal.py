"""What quests have about a user: exporting it, and erasing it. Quests go on without the name, as far as they can."""

from typing import Any
from uuid import UUID

from sqlalchemy import or_, select, text, update

from analytics.quests import topics
from analytics.quests.states import Status
from analytics.quests.tables import CHANGED_AT, Attestation, FailedReward, Quest, QuestStep
from tenants.db import Tx

QUEST = """
    id status title description requirements tags reward_xp reward_reputation created_at updated_at claimed_at
    submitted_at completed_at expires_at
"""
ATTESTATION = "quest_id round rating comments signature created_at"
STEP = "quest_id version step status reason submission at"
REWARD = "quest_id reward_type amount status created_at processed_at"


def export(tx: Tx, user_id: UUID) -> dict[str, Any]:
    """All data of this user in quests."""
    created = tx.scalars(select(Quest).where(Quest.creator_id == user_id).order_by(Quest.created_at))
    performed = tx.scalars(select(Quest).where(Quest.performer_id == user_id).order_by(Quest.updated_at))
    given = tx.scalars(select(Attestation).where(Attestation.attester_id == user_id).order_by(Attestation.created_at))
    own = or_(QuestStep.user_id == user_id, QuestStep.performer_id == user_id)
    steps = tx.scalars(select(QuestStep).where(own).order_by(QuestStep.at))
    owed = tx.scalars(select(FailedReward).where(FailedReward.user_id == user_id).order_by(FailedReward.created_at))
    return {
        "quests_created": [_fields(quest, QUEST) for quest in created],
        "quests_performed": [{**_fields(quest, QUEST), "submission": quest.submission} for quest in performed],
        "attestations_given": [_fields(one, ATTESTATION) for one in given],
        "quest_steps": [_fields(step, STEP) for step in steps],
        "failed_rewards": [_fields(one, REWARD) for one in owed],
    }


def erase(tx: Tx, user_id: UUID) -> int:
    """End what cannot go on without this user, whose row is locked, and remove what they wrote about work.

    Returns how many quests they had to do with.
    """
    named = {"tenant": tx.tenant, "user": user_id, "by": "erasure"}
    ended = [row for changes in (_CANCEL_CREATED, _RELEASE, _CANCEL_PERFORMED) for row in tx.run(changes, named)]
    if ended:
        topics.announce(tx, is_open=True, users=[user for row in ended for user in (row.creator_id, row.performer_id)])
    submitted = update(Quest).where(Quest.performer_id == user_id).values(submission=None)
    touched = set(tx.scalars(submitted.returning(Quest.id)))
    touched |= set(tx.scalars(select(Quest.id).where(Quest.creator_id == user_id)))
    tx.execute(update(QuestStep).where(QuestStep.performer_id == user_id).values(submission=None))
    tx.execute(update(QuestStep).where(QuestStep.user_id == user_id).values(submission=None, reason=None))
    tx.execute(update(Attestation).where(Attestation.attester_id == user_id).values(comments=None, signature=None))
    return len(touched)


def _fields(row: Any, names: str) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names.split()}


def _ending(where: str, to: Status, step: str, also: str = "") -> Any:
    """One statement: the quests of a user in some state, and their history."""
    return text(f"""
        WITH due AS (
            SELECT id, status, performer_id FROM quests WHERE tenant_id = :tenant AND {where} FOR NO KEY UPDATE
        ), ended AS (
            UPDATE quests q SET status = '{to}', version = q.version + 1, updated_at = {CHANGED_AT}{also}
            FROM due WHERE q.tenant_id = :tenant AND q.id = due.id
            RETURNING q.tenant_id, q.id, q.version, due.status AS before, q.round, due.performer_id, q.updated_at,
                      q.creator_id
        ), recorded AS (
            INSERT INTO quest_history AS h (tenant_id, quest_id, version, step, status_before, status, round, by,
                                       performer_id, at)
            SELECT t.id, e.id, e.version, '{step}', e.before, '{to}', e.round, :by, e.performer_id, e.updated_at
            FROM tenants t CROSS JOIN ended e WHERE t.id = :tenant RETURNING quest_id
        )
        SELECT e.creator_id, e.performer_id FROM tenants t CROSS JOIN ended e JOIN recorded r ON r.quest_id = e.id
        WHERE t.id = :tenant
    """)  # noqa: S608  our own names


_CANCEL_CREATED = _ending("creator_id = :user AND status = 'OPEN'", Status.CANCELLED, "cancel")
_RELEASE = _ending(
    "performer_id = :user AND status = 'CLAIMED'", Status.OPEN, "release", ", performer_id = NULL, claimed_at = NULL"
)
_CANCEL_PERFORMED = _ending(
    "performer_id = :user AND status IN ('PENDING_REVIEW', 'DISPUTED')", Status.CANCELLED, "cancel"
)
