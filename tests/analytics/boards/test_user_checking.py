"""What `plaudit check` finds about users: ledgers and boards."""

from typing import Any
from uuid import uuid4

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


def test_check_finds_two_users_in_the_wrong_order_and_one_who_should_not_be_there(player: Caller, tenant: str) -> None:
    player("POST", UPDATE, json=claim_of())
    projection.project_all(tenant, now=utcnow)
    key = f"lb:{tenant}:users:all:points"
    with tenants_redis.boards().client() as redis:
        ((member, value),) = redis.zscan_iter(key)
        earlier = b"0" + member[1:]
        redis.zrem(key, member)
        redis.zadd(key, {earlier: value})
        redis.hset(f"lbu:{{{key}}}", player.id, earlier)
    found = {(one.where, one.member) for one in checking.check(tenant, now=utcnow()).differences}
    assert found == {(key, f"user {player.id}")}, "with its value, but in another place among those who have the same"
    projection.project_all(tenant, now=utcnow)
    nobody = f"{'9' * 13}{'f' * 16}:{uuid4()}"
    with tenants_redis.boards().client() as redis:
        redis.zadd(key, {member: value, nobody: 7})
        redis.zrem(key, earlier)
        redis.hset(f"lbu:{{{key}}}", player.id, member)
    (difference,) = checking.check(tenant, now=utcnow()).differences
    assert (difference.where, difference.member) == (key, f"user {nobody.rpartition(':')[2]}")
    assert (difference.found, difference.expected) == (7, None)
