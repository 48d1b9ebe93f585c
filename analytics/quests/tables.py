"""The tables of quests. Every index is one of the lists that people ask for, in its order."""

from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import ARRAY, BigInteger, CheckConstraint, ForeignKeyConstraint, Index, SmallInteger, Text, Uuid, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from analytics.quests.states import EXPIRING, Status
from tenants.db import Base, DeletedWithTenant, TenantOwned

_EXPIRING = text("status IN ({})".format(", ".join(f"'{status}'" for status in EXPIRING)))
_STATUSES = "status IN ({})".format(", ".join(f"'{status}'" for status in Status))


def _of_user(column: str) -> ForeignKeyConstraint:
    return ForeignKeyConstraint(["tenant_id", column], ["users.tenant_id", "users.id"])


# When a quest (`q`) changes: after the change before, also if the statement has waited for that one. Live topics take
# it for a version. In UTC, since other sums of a time and an interval depend on a setting, which Citus refuses here.
CHANGED_AT = (
    "GREATEST(statement_timestamp(), (q.updated_at AT TIME ZONE 'UTC' + interval '1 microsecond') AT TIME ZONE 'UTC')"
)


class Quest(DeletedWithTenant, Base):
    __tablename__ = "quests"
    __table_args__ = (
        _of_user("creator_id"),
        _of_user("performer_id"),
        CheckConstraint(_STATUSES, name="status"),
        Index("ix_quests_status", "tenant_id", "status", "created_at", "id"),
        Index("ix_quests_newest", "tenant_id", "created_at", "id"),
        Index("ix_quests_changed", "tenant_id", "updated_at"),
        Index("ix_quests_creator", "tenant_id", "creator_id", "created_at", "id"),
        Index(
            "ix_quests_performer",
            *("tenant_id", "performer_id", "updated_at", "id"),
            postgresql_where=text("performer_id IS NOT NULL"),
        ),
        Index(
            "ix_quests_claimed",
            *("tenant_id", "performer_id", "claimed_at"),
            postgresql_where=text("status = 'CLAIMED'"),
        ),
        Index(
            "ix_quests_expires_at",
            *("tenant_id", "expires_at"),
            postgresql_where=text(f"expires_at IS NOT NULL AND {_EXPIRING}"),
        ),
    )

    id: Mapped[UUID] = mapped_column(Uuid, primary_key=True, default=uuid4)
    status: Mapped[str]
    # Counts steps: a step is taken only if the quest is as it was read.
    version: Mapped[int] = mapped_column(BigInteger)
    # Counts how often it was opened: attestations belong to a round.
    round: Mapped[int] = mapped_column(SmallInteger)
    creator_id: Mapped[UUID] = mapped_column(Uuid)
    performer_id: Mapped[UUID | None] = mapped_column(Uuid)
    title: Mapped[str]
    description: Mapped[str]
    requirements: Mapped[list[str]] = mapped_column(ARRAY(Text))
    tags: Mapped[list[str]] = mapped_column(ARRAY(Text))
    reward_xp: Mapped[int]
    reward_reputation: Mapped[int]
    attestations_required: Mapped[int] = mapped_column(SmallInteger)
    min_rating: Mapped[int] = mapped_column(SmallInteger)
    submission: Mapped[str | None]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    claimed_at: Mapped[datetime | None]
    submitted_at: Mapped[datetime | None]
    completed_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]


class QuestTag(TenantOwned, Base):
    """A tag of a quest. Tags never change, so a tag's quests are in the order in which they were created."""

    __tablename__ = "quest_tags"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id", "quest_id"], ["quests.tenant_id", "quests.id"], ondelete="CASCADE"),
        Index("ix_quest_tags_newest", "tenant_id", "tag", "created_at", "quest_id"),
    )

    quest_id: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    tag: Mapped[str] = mapped_column(primary_key=True)
    created_at: Mapped[datetime]


class Attestation(TenantOwned, Base):
    """What a peer says about submitted work. `performer_id` is kept, since the quest may be opened again."""

    __tablename__ = "attestations"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id", "quest_id"], ["quests.tenant_id", "quests.id"], ondelete="CASCADE"),
        _of_user("attester_id"),
        _of_user("performer_id"),
        CheckConstraint("rating BETWEEN 1 AND 5", name="rating"),
        Index("ix_attestations_attester", "tenant_id", "attester_id", "created_at"),
        Index("ix_attestations_performer", "tenant_id", "performer_id", "created_at"),
    )

    quest_id: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    round: Mapped[int] = mapped_column(SmallInteger, primary_key=True)
    attester_id: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    performer_id: Mapped[UUID] = mapped_column(Uuid)
    rating: Mapped[int] = mapped_column(SmallInteger)
    comments: Mapped[str | None]
    # As it was sent: nobody has verified it.
    signature: Mapped[str | None]
    created_at: Mapped[datetime]


class QuestStep(TenantOwned, Base):
    """The history: a row for each step, with what the quest has no longer."""

    __tablename__ = "quest_history"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id", "quest_id"], ["quests.tenant_id", "quests.id"], ondelete="CASCADE"),
        Index("ix_quest_history_performer", "tenant_id", "performer_id"),
        Index("ix_quest_history_user", "tenant_id", "user_id"),
    )

    quest_id: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    # The quest's version after it.
    version: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    step: Mapped[str]
    # None: created by it.
    status_before: Mapped[str | None]
    status: Mapped[str]
    round: Mapped[int] = mapped_column(SmallInteger)
    # The user; and the caller: `user:<id>`, `client:<id>`, `job` or `command`.
    user_id: Mapped[UUID | None] = mapped_column(Uuid)
    by: Mapped[str]
    reason: Mapped[str | None]
    # Of a step that takes them from the quest.
    performer_id: Mapped[UUID | None] = mapped_column(Uuid)
    submission: Mapped[str | None]
    at: Mapped[datetime]


class FailedReward(TenantOwned, Base):
    """A reward that could not be paid when its quest was completed: retried, then COMPLETED or FAILED."""

    __tablename__ = "failed_rewards"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id", "quest_id"], ["quests.tenant_id", "quests.id"], ondelete="CASCADE"),
        _of_user("user_id"),
        CheckConstraint("status IN ('PENDING', 'PROCESSING', 'COMPLETED', 'FAILED')", name="status"),
        CheckConstraint("reward_type IN ('XP', 'REPUTATION')", name="reward_type"),
        Index("uq_failed_rewards_quest", "tenant_id", "quest_id", "user_id", "reward_type", unique=True),
        Index("ix_failed_rewards_newest", "tenant_id", "created_at", "id"),
        Index(
            "ix_failed_rewards_due",
            *("tenant_id", "next_attempt_at"),
            postgresql_where=text("status IN ('PENDING', 'PROCESSING')"),
        ),
    )

    id: Mapped[UUID] = mapped_column(Uuid, primary_key=True, default=uuid4)
    quest_id: Mapped[UUID] = mapped_column(Uuid)
    user_id: Mapped[UUID] = mapped_column(Uuid)
    reward_type: Mapped[str]
    amount: Mapped[int]
    reason: Mapped[str]
    error_details: Mapped[dict[str, Any]] = mapped_column(JSONB)
    status: Mapped[str]
    attempt_count: Mapped[int]
    created_at: Mapped[datetime]
    last_attempt_at: Mapped[datetime]
    # When it is tried again; while PROCESSING, when the lease of whoever tries it ends.
    next_attempt_at: Mapped[datetime]
    processed_at: Mapped[datetime | None]
    processed_by: Mapped[str | None]


class QuestTemplate(DeletedWithTenant, Base):
    __tablename__ = "quest_templates"
    __table_args__ = (Index("ix_quest_templates_newest", "tenant_id", "created_at", "id"),)

    id: Mapped[UUID] = mapped_column(Uuid, primary_key=True, default=uuid4)
    title: Mapped[str]
    description: Mapped[str]
    reward_xp: Mapped[int]
    reward_reputation: Mapped[int]
    tags: Mapped[list[str]] = mapped_column(ARRAY(Text))
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]


class QuestCategory(DeletedWithTenant, Base):
    """A tag that an admin has promoted."""

    __tablename__ = "quest_categories"

    tag: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    description: Mapped[str | None]
    created_at: Mapped[datetime]
