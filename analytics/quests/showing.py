"""What a reader sees of quests: people by their current names, and the submission only if it is for them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import select, text

from analytics.quests import history, rewards
from analytics.quests.listing import shown_status
from analytics.quests.people import Person
from analytics.quests.rewards import Reward
from analytics.quests.states import Status
from analytics.quests.tables import Attestation, Quest
from tenants.db import Tx, array

# In lists too.
BRIEF = """
    id version title description tags requirements reward_xp reward_reputation attestations_required min_rating round
    created_at updated_at claimed_at submitted_at completed_at expires_at
"""


@dataclass(frozen=True)
class Viewer:
    """Who looks: a person, and whether they see the tenant's own ids for users, and users' names and pictures."""

    person: Person
    sees_external_ids: bool
    sees_names: bool = True
    # Whether they are, or act for, somebody who may attest.
    may_attest: bool = True


def in_list(tx: Tx, quests: Sequence[Quest], viewer: Viewer, *, now: datetime) -> list[dict[str, Any]]:
    """Without submissions, attestations and history."""
    names = _names(tx, (user for quest in quests for user in (quest.creator_id, quest.performer_id)), viewer)
    return [_brief(quest, names, now=now) for quest in quests]


def in_full(tx: Tx, quest: Quest, viewer: Viewer, *, now: datetime) -> dict[str, Any]:
    attestations = tx.scalars(
        select(Attestation)
        .where(Attestation.quest_id == quest.id, Attestation.round == quest.round)
        .order_by(Attestation.created_at, Attestation.attester_id)
    ).all()
    steps = history.of_quest(tx, quest.id)
    attesters = [one.attester_id for one in attestations]
    involved = [quest.creator_id, quest.performer_id, *attesters, *(step.user_id for step in steps)]
    names = _names(tx, involved, viewer)
    states = rewards.states(tx, quest) if quest.status == Status.COMPLETE else {}
    return {
        **_brief(quest, names, now=now),
        "submission": quest.submission if _sees_submission(quest, attesters, viewer) else None,
        "attestations": [_attestation(one, names) for one in attestations],
        "rewards": [
            {"type": reward.value, "amount": reward.amount_of(quest), "status": states.get(reward)} for reward in Reward
        ],
        "history": [
            {
                "step": step.step,
                "from": step.status_before,
                "to": step.status,
                "version": step.version,
                "at": step.at,
                "by": names.get(step.user_id) if step.user_id is not None else None,
                "reason": step.reason,
            }
            for step in steps
        ],
    }


def _sees_submission(quest: Quest, attesters: Iterable[UUID], viewer: Viewer) -> bool:
    """While it is reviewed, everybody who may attest it; afterwards those who have to do with it, and admins."""
    person = viewer.person
    if person.is_admin or (quest.status == Status.PENDING_REVIEW and viewer.may_attest):
        return True
    return person.user_id is not None and person.user_id in {quest.creator_id, quest.performer_id, *attesters}


def _brief(quest: Quest, names: Mapping[UUID, Mapping[str, Any]], *, now: datetime) -> dict[str, Any]:
    return {
        **{name: getattr(quest, name) for name in BRIEF.split()},
        "status": shown_status(quest, now=now).value,
        "creator": names.get(quest.creator_id),
        "performer": names.get(quest.performer_id) if quest.performer_id is not None else None,
    }


def _attestation(one: Attestation, names: Mapping[UUID, Mapping[str, Any]]) -> dict[str, Any]:
    attester = names.get(one.attester_id)
    return {
        "attester": attester,
        "attester_username": attester["username"] if attester is not None else None,
        "rating": one.rating,
        "comments": one.comments,
        "signature": one.signature,
        "signature_verified": False,
        "on_chain": False,
        "timestamp": one.created_at,
    }


def _names(tx: Tx, user_ids: Iterable[UUID | None], viewer: Viewer) -> dict[UUID, Mapping[str, Any]]:
    """How to show these users; erased ones are missing."""
    wanted = {user_id for user_id in user_ids if user_id is not None}
    rows = tx.run(_NAMES, {"tenant": tx.tenant, "users": array(wanted)}) if wanted else []
    return {
        row.id: {
            "id": str(row.id),
            "username": row.username,
            "display_name": row.display_name if viewer.sees_names else None,
            "avatar_url": row.avatar_url if viewer.sees_names else None,
            "external_id": row.external_id if viewer.sees_external_ids else None,
        }
        for row in rows
    }


_NAMES = text("""
    SELECT id, username, external_id, display_name, avatar_url FROM users
    WHERE tenant_id = :tenant AND id = ANY(CAST(:users AS uuid[])) AND erased_at IS NULL
""")
