"""People who attest each other's work: flagged for an admin, with the quests and payments that it is about.

Over 30 days: somebody from whom another has most of their attestations; or two or three people who attest each other in
a circle.
"""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import text

from analytics.quests.rewards import Reward
from analytics.scores import integrity, sources
from analytics.scores.integrity import Rule
from tenants.db import Tx, array

WINDOW = timedelta(days=30)
# One attester's attestations of one performer: so many, and so much of all that the performer got.
MIN_BY_ONE = 5
MIN_SHARE_OF_ONE = 0.6
# In a circle, each attests the next so often.
MIN_IN_CIRCLE = 2
MAX_QUESTS = 100
MAX_CIRCLES = 20
ACCOUNTS = [reward.metric.account for reward in Reward]


def watch(tx: Tx, *, attester_id: UUID, performer_id: UUID, now: datetime) -> None:
    """After an attestation: flag those who were paid by it, if it makes a ring."""
    people = _ring(tx, attester_id, performer_id, since=now - WINDOW)
    for paid, by in sorted(
        people, key=lambda pair: pair[0]
    ):  # in the order of their ids: two rings may have people in common
        quests = list(tx.scalars(_QUESTS, _named(tx, now - WINDOW, performer=paid, attesters=array(by))))
        of_rewards = [sources.of_quest(quest, paid, reward) for quest in quests for reward in Reward]
        entries = list(tx.scalars(_ENTRIES, {"tenant": tx.tenant, "accounts": ACCOUNTS, "sources": of_rewards}))
        details = {
            "people": sorted({str(paid), *map(str, by)}),
            "quests": [str(quest) for quest in quests],
            "accounts": ACCOUNTS,
            "entries": entries,
        }
        integrity.raise_or_extend(tx, paid, Rule.ATTESTATION_RING, details, now=now)


def _ring(tx: Tx, attester_id: UUID, performer_id: UUID, *, since: datetime) -> Sequence[tuple[UUID, Collection[UUID]]]:
    """Who was paid in a ring, each with those who attested them in it."""
    named = _named(tx, since, attester=attester_id, performer=performer_id)
    (pair,) = tx.run(_PAIR, named)
    if pair.by_one >= MIN_BY_ONE and pair.by_one >= MIN_SHARE_OF_ONE * pair.all_received:
        return [(performer_id, [attester_id])]
    if pair.by_one < MIN_IN_CIRCLE:
        return []
    by: dict[UUID, set[UUID]] = {}
    for row in tx.run(_CIRCLES, {**named, "often": MIN_IN_CIRCLE, "most": MAX_CIRCLES}):
        circle = [attester_id, performer_id, *([row.third] if row.third is not None else [])]
        for place, paid in enumerate(circle):
            by.setdefault(paid, set()).add(circle[place - 1])
    return list(by.items())


def _named(tx: Tx, since: datetime, **values: object) -> dict[str, object]:
    return {"tenant": tx.tenant, "since": since, "limit": MAX_QUESTS, **values}


_PAIR = text("""
    SELECT count(*) FILTER (WHERE attester_id = :attester) AS by_one, count(*) AS all_received FROM attestations
    WHERE tenant_id = :tenant AND performer_id = :performer AND created_at >= :since
""")
# The attester was attested by the performer; or by a third, who was attested by the performer.
_CIRCLES = text("""
    WITH attested_by_performer AS (
        SELECT performer_id AS id FROM attestations
        WHERE tenant_id = :tenant AND attester_id = :performer AND created_at >= :since
        GROUP BY performer_id HAVING count(*) >= :often
    ), attested_attester AS (
        SELECT attester_id AS id FROM attestations
        WHERE tenant_id = :tenant AND performer_id = :attester AND created_at >= :since
        GROUP BY attester_id HAVING count(*) >= :often
    )
    SELECT CAST(NULL AS uuid) AS third, 0 AS place FROM attested_attester WHERE id = :performer
    UNION ALL
    SELECT a.id, 1 FROM attested_attester a JOIN attested_by_performer b ON b.id = a.id
    ORDER BY place, third LIMIT :most
""")
_QUESTS = text("""
    SELECT quest_id FROM attestations
    WHERE tenant_id = :tenant AND performer_id = :performer AND attester_id = ANY(CAST(:attesters AS uuid[]))
      AND created_at >= :since
    GROUP BY quest_id ORDER BY max(created_at) DESC, quest_id LIMIT :limit
""")
_ENTRIES = text("""
    SELECT id FROM score_ledger
    WHERE tenant_id = :tenant AND account = ANY(CAST(:accounts AS text[])) AND source = ANY(CAST(:sources AS text[]))
    ORDER BY id
""")
