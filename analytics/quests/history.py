"""The history of a quest: a row for each step, in the step's transaction."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import select, text

from analytics.quests import topics
from analytics.quests.people import Person
from analytics.quests.states import Status, Step
from analytics.quests.tables import Quest, QuestStep
from tenants.db import Tx

MAX_STEPS = 200


def record(
    tx: Tx,
    quest: Quest,
    step: Step,
    before: Status | None,
    person: Person,
    *,
    reason: str | None = None,
    left: Mapping[str, Any] = {},
) -> None:
    """What was just done. `left`: what the quest has no longer, its `performer_id` or `submission`."""
    tx.run(
        _RECORD,
        {
            "tenant": tx.tenant,
            "quest": quest.id,
            "version": quest.version,
            "step": step.value,
            "before": before.value if before is not None else None,
            "status": quest.status,
            "round": quest.round,
            "user": person.user_id,
            "by": person.by,
            "reason": reason,
            "performer": left.get("performer_id"),
            "submission": left.get("submission"),
            "at": quest.updated_at,
        },
    )
    topics.announce(
        tx,
        is_open=Status.OPEN in {before, Status(quest.status)},
        users=[quest.creator_id, quest.performer_id, left.get("performer_id")],
    )


def of_quest(tx: Tx, quest_id: UUID) -> Sequence[QuestStep]:
    """The newest steps, oldest first."""
    newest = select(QuestStep).where(QuestStep.quest_id == quest_id).order_by(QuestStep.version.desc())
    return tx.scalars(newest.limit(MAX_STEPS)).all()[::-1]


_RECORD = text("""
    INSERT INTO quest_history (tenant_id, quest_id, version, step, status_before, status, round, user_id, by, reason,
                               performer_id, submission, at)
    VALUES (:tenant, :quest, :version, :step, :before, :status, :round, :user, :by, :reason, :performer, :submission,
            :at)
""")
