"""Live topics of quests: `quests:open`, and `quests:user:<id>` for what a user has created or performs.

A topic's version is the time of its newest change, in microseconds. It is published after the commit, with the time
then: a change that commits later is always newer. Whoever missed that reads it from PostgreSQL.
"""

import contextlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

import orjson
from sqlalchemy import text

from analytics.boards.redis_store import CHANNEL
from tenants import redis
from tenants.db import Tx, array, tenant_tx
from tenants.errors import Invalid
from tenants.redis import RedisUnavailable

OPEN, OF_USER = "quests:open", "quests:user:"


@dataclass(frozen=True)
class QuestTopic:
    tenant_id: str
    # None: the open quests.
    user_id: UUID | None = None

    @property
    def topic(self) -> str:
        return OPEN if self.user_id is None else f"{OF_USER}{self.user_id}"


def is_topic(name: str) -> bool:
    return name.startswith("quests:")


def parse(tenant_id: str, name: str) -> QuestTopic:
    """The topic with this name."""
    if name == OPEN:
        return QuestTopic(tenant_id)
    try:
        return QuestTopic(tenant_id, UUID(name.removeprefix(OF_USER)))
    except ValueError:
        raise Invalid.field("topic", f"{OPEN}, or {OF_USER}<id>") from None


def versions_of(tenant_id: str, topics: Iterable[QuestTopic]) -> dict[QuestTopic, int]:
    """The versions of these topics of a tenant in PostgreSQL."""
    wanted = {topic.user_id: topic for topic in topics}
    users = array(user_id for user_id in wanted if user_id is not None)
    with tenant_tx(tenant_id) as tx:
        rows = tx.run(_VERSIONS, {"tenant": tenant_id, "users": users, "is_open": None in wanted})
    found = {row.user_id: row.version for row in rows}
    return {topic: found.get(user_id) or 0 for user_id, topic in wanted.items()}


def announce(tx: Tx, *, is_open: bool, users: Iterable[UUID | None]) -> None:
    """After the commit, publish that the list of open quests has changed (`is_open`), and those of these users."""
    tenant_id = tx.tenant
    topics = [QuestTopic(tenant_id, user_id) for user_id in {*users} - {None}]
    if is_open:
        topics.append(QuestTopic(tenant_id))
    if topics:
        tx.after_commit(lambda: _publish(tenant_id, topics))


def _publish(tenant_id: str, topics: Sequence[QuestTopic]) -> None:
    if redis.is_configured():
        versions = {topic.topic: time.time_ns() // 1000 for topic in topics}
        with contextlib.suppress(RedisUnavailable), redis.boards().client() as client:
            client.publish(CHANNEL, orjson.dumps({"tenant": tenant_id, "versions": versions}))


_VERSIONS = text("""
    SELECT CAST(NULL AS uuid) AS user_id, floor(extract(epoch FROM max(updated_at)) * 1000000)::bigint AS version
    FROM quests WHERE tenant_id = :tenant AND :is_open
    UNION ALL
    SELECT u.id, floor(extract(epoch FROM GREATEST(
        (SELECT max(updated_at) FROM quests WHERE tenant_id = :tenant AND creator_id = u.id),
        (SELECT max(updated_at) FROM quests WHERE tenant_id = :tenant AND performer_id = u.id))) * 1000000)::bigint
    FROM unnest(CAST(:users AS uuid[])) AS u(id)
""")
