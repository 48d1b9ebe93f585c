"""What `plaudit check` finds about users: ledgers and boards."""

from typing import Any

from sqlalchemy import text

from analytics.boards import checking, projection
from tenants import redis as tenants_redis
from tenants.db import owner_tx, utcnow
from tests.analytics.scores.conftest import UPDATE, claim_of
from tests.people import Caller


def test_check_finds_a_forged_score_a_broken_chain_and_a_wrong_board(player: Caller, tenant: str) -> None:
    player("POST", UPDATE, json=claim_of())
    projection.project_all(tenant, now=utcnow)
    assert checking.check(tenant, now=utcnow()).differences == []
    with tenants_redis.boards().client() as redis:
        key = f"lb:{tenant}:users:all:points"
        members: Any = redis.zrange(key, 0, -1)
        redis.zadd(key, {members[0]: 11})
    (difference,) = checking.check(tenant, now=utcnow()).differences
    assert (difference.found, difference.expected) == (11, 10)
    with owner_tx() as tx:
        tx.execute(text("UPDATE users SET current_score = 12 WHERE tenant_id = :t"), {"t": tenant})
    assert "users.current_score" in {d.where for d in checking.check(tenant, now=utcnow()).differences}
