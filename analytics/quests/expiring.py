"""Quests past their time, and claims that nobody worked on: ended by the step that finds them, and by a job."""

import contextlib
from collections.abc import Callable
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import text

from analytics.quests import steps, topics
from analytics.quests.people import JOB, Contended, Expected, WrongState
from analytics.quests.states import EXPIRING, Status, Step
from analytics.quests.tables import CHANGED_AT
from tenants import across
from tenants import settings as tenant_settings
from tenants.across import OF_ONE
from tenants.db import Tx, tenant_tx
from tenants.errors import Stale

MAX_PER_STEP = 500
# Each is a transaction of its own.
MAX_RELEASED_PER_STEP = 10
# The least that a tenant can set.
MIN_CLAIM_DAYS = 1


def expire(tenant_id: str, quest_id: UUID) -> None:
    """Make a quest EXPIRED if its time has come, in a transaction of its own: before its caller is told."""
    with tenant_tx(tenant_id) as tx:
        _expire(tx, quest_id)


def tenants_with_due(*, now: datetime) -> list[str]:
    """The tenants with quests past their time, or with claims that may be too old."""
    oldest = now - timedelta(days=MIN_CLAIM_DAYS)
    return [row.id for row in across.read(_TENANTS_WITH_DUE, {"now": now, "oldest": oldest})]


def _never() -> bool:
    return False


def end_due(tenant_id: str, *, now: datetime, is_over: Callable[[], bool] = _never) -> tuple[int, int]:
    """Expire and release what is due, step by step, until nothing is left or `is_over` says so.

    Returns how many quests expired, and how many claims were released.
    """
    expired = released = 0
    while True:
        with tenant_tx(tenant_id) as tx:
            ended = _expire(tx)
        expired += ended
        if ended < MAX_PER_STEP:
            break
        if is_over():
            return expired, released
    with tenant_tx(tenant_id) as tx:
        days = tenant_settings.read(tx)[0].quests.claim_days
        claimed = tx.run(_OLD_CLAIMS, {"tenant": tenant_id, "before": now - timedelta(days=days)})
    for number, quest in enumerate(claimed):
        if number and number % MAX_RELEASED_PER_STEP == 0 and is_over():
            break
        reason, as_listed = f"not submitted within {days} days", Expected(quest.version)
        with contextlib.suppress(WrongState, Stale, Contended), tenant_tx(tenant_id) as tx:  # somebody was quicker
            steps.release(tx, quest.id, JOB, reason=reason, expected=as_listed)
            released += 1
    return expired, released


def _expire(tx: Tx, quest_id: UUID | None = None) -> int:
    """One statement: the quests that are due (or this one, if it is), and their history."""
    parameters = {"tenant": tx.tenant, "quest": quest_id, "limit": MAX_PER_STEP, "by": JOB.by}
    ended = tx.run(_EXPIRE_DUE if quest_id is None else _EXPIRE_ONE, parameters)
    if ended:
        topics.announce(
            tx,
            is_open=True,
            users=[user for row in ended for user in (row.creator_id, row.performer_id)],
        )
    return len(ended)


_STATES = ", ".join(f"'{status}'" for status in EXPIRING)
_DUE = f"""
    SELECT id, status FROM quests
    WHERE tenant_id = :tenant AND expires_at IS NOT NULL AND status IN ({_STATES})
      AND expires_at <= statement_timestamp()
"""  # noqa: S608  our own names
_EXPIRE = f"""
    WITH due AS (%s), expired AS (
        UPDATE quests q SET status = '{Status.EXPIRED}', version = q.version + 1,
            updated_at = {CHANGED_AT}
        FROM due WHERE q.tenant_id = :tenant AND q.id = due.id
        RETURNING q.tenant_id, q.id, q.version, due.status AS before, q.round, q.updated_at, q.creator_id,
                  q.performer_id
    ), recorded AS (
        INSERT INTO quest_history AS h (tenant_id, quest_id, version, step, status_before, status, round, by, at)
        SELECT t.id, e.id, e.version, '{Step.EXPIRE}', e.before, '{Status.EXPIRED}', e.round, :by, e.updated_at
        FROM tenants t CROSS JOIN expired e WHERE t.id = :tenant RETURNING quest_id
    )
    SELECT e.creator_id, e.performer_id FROM tenants t CROSS JOIN expired e JOIN recorded r ON r.quest_id = e.id
    WHERE t.id = :tenant
"""  # noqa: S608  our own names
# Many that nobody works on just now; or this one, however long somebody does.
_EXPIRE_DUE = text(_EXPIRE % f"{_DUE} ORDER BY expires_at LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED")
_EXPIRE_ONE = text(_EXPIRE % f"{_DUE} AND id = :quest FOR NO KEY UPDATE")
_OLD_CLAIMS = text(f"""
    SELECT id, version FROM quests WHERE tenant_id = :tenant AND status = 'CLAIMED' AND claimed_at <= :before
    ORDER BY claimed_at LIMIT {MAX_PER_STEP}
""")  # noqa: S608  our own names
_TENANTS_WITH_DUE = text(f"""
    SELECT DISTINCT t.id FROM tenants t JOIN quests q ON q.tenant_id = t.id
    WHERE (q.expires_at IS NOT NULL AND q.status IN ({_STATES}) AND q.expires_at <= :now
           OR q.status = 'CLAIMED' AND q.claimed_at <= :oldest) AND {OF_ONE}
    ORDER BY t.id
""")  # noqa: S608  our own names
