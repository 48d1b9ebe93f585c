"""Whether quests add up: what users are said to have done, and that every completed quest was paid, or is owed."""

from collections.abc import Iterator
from uuid import UUID

from sqlalchemy import text

from analytics.comparing import Chunk, Found, Ids
from analytics.quests.rewards import Reward
from tenants.db import Tx

QUESTS = Ids(
    count=text("SELECT count(*) FROM quests WHERE tenant_id = :tenant"),
    after=text("SELECT id FROM quests WHERE tenant_id = :tenant AND id > :after ORDER BY id LIMIT :limit"),
    start=UUID(int=0),
)


def wrong_counts(tx: Tx, chunk: Chunk) -> Iterator[Found]:
    """The users of whom it is said that they did more or less than the quests have."""
    for row in tx.execute(_COUNTS, chunk.parameters):
        for name in ("quests_created", "quests_completed", "attestations_given", "attestations_received"):
            found, expected = getattr(row, name), getattr(row, f"expected_{name}")
            if found != expected:
                yield f"users.{name}", f"user {row.id}", found, expected


def wrong_payments(tx: Tx, chunk: Chunk) -> Iterator[Found]:
    """The quests that were not paid as they should be."""
    for reward in Reward:
        named = {**chunk.parameters, "account": reward.metric.account, "type": reward.value, "name": reward.lower()}
        for row in tx.execute(_PAYMENTS, named):
            expected = row.amount if row.is_due else "nothing"
            yield "quests", f"{reward} of quest {row.id}", row.paid or "nothing", expected


def _within(column: str) -> str:
    return f"tenant_id = :tenant AND {column} > :after AND {column} <= :last"


_COUNTS = text(f"""
    SELECT u.id, u.quests_created, u.quests_completed, u.attestations_given, u.attestations_received,
           COALESCE(c.count, 0) AS expected_quests_created, COALESCE(p.count, 0) AS expected_quests_completed,
           COALESCE(g.count, 0) AS expected_attestations_given, COALESCE(r.count, 0) AS expected_attestations_received
    FROM users u
    LEFT JOIN (SELECT creator_id AS id, count(*) FROM quests WHERE {_within("creator_id")} GROUP BY 1) c ON c.id = u.id
    LEFT JOIN (SELECT performer_id AS id, count(*) FROM quests
               WHERE {_within("performer_id")} AND status = 'COMPLETE' GROUP BY 1) p ON p.id = u.id
    LEFT JOIN (SELECT attester_id AS id, count(*) FROM attestations WHERE {_within("attester_id")} GROUP BY 1) g
           ON g.id = u.id
    LEFT JOIN (SELECT performer_id AS id, count(*) FROM attestations WHERE {_within("performer_id")} GROUP BY 1) r
           ON r.id = u.id
    WHERE u.tenant_id = :tenant AND u.id > :after AND u.id <= :last
      AND (u.quests_created, u.quests_completed, u.attestations_given, u.attestations_received)
          IS DISTINCT FROM (COALESCE(c.count, 0), COALESCE(p.count, 0), COALESCE(g.count, 0), COALESCE(r.count, 0))
""")  # noqa: S608  our own names
# Completed and neither paid nor owed; or paid the wrong amount; or paid, though it is not completed.
_PAYMENTS = text("""
    SELECT q.id, e.delta AS paid, q.status = 'COMPLETE' AS is_due,
           CASE WHEN :type = 'XP' THEN q.reward_xp ELSE q.reward_reputation END AS amount
    FROM quests q
    LEFT JOIN score_ledger e ON e.tenant_id = :tenant AND e.account = :account
          AND e.source = 'quest:' || q.id || ':' || q.performer_id || ':' || :name
    LEFT JOIN failed_rewards f ON f.tenant_id = :tenant AND f.quest_id = q.id AND f.reward_type = :type
    WHERE q.tenant_id = :tenant AND q.id > :after AND q.id <= :last AND CASE WHEN q.status = 'COMPLETE'
        THEN e.delta IS DISTINCT FROM (CASE WHEN :type = 'XP' THEN q.reward_xp ELSE q.reward_reputation END)
             AND (e.id IS NOT NULL OR f.id IS NULL OR f.status = 'COMPLETED')
        ELSE e.id IS NOT NULL END
""")
