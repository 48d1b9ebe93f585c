"""Quests, their attestations, history and rewards; users get XP, reputation, and counts of what they did."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from tenants import rls

revision = "0018"
down_revision = "0017"

TIME = sa.DateTime(timezone=True)
STATUSES = "'OPEN', 'CLAIMED', 'PENDING_REVIEW', 'COMPLETE', 'DISPUTED', 'EXPIRED', 'CANCELLED'"
COUNTS = (
    *("experience_points", "reputation"),
    *("quests_created", "quests_completed", "attestations_given", "attestations_received"),
)


def key(table: str, *columns: str) -> sa.PrimaryKeyConstraint:
    return sa.PrimaryKeyConstraint("tenant_id", *columns, name=f"pk_{table}")


def of_tenant(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], ondelete="CASCADE", name=f"fk_{table}_tenant_id")


def of_quest(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["tenant_id", "quest_id"],
        ["quests.tenant_id", "quests.id"],
        ondelete="CASCADE",
        name=f"fk_{table}_tenant_id_quest_id",
    )


def of_user(table: str, column: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["tenant_id", column], ["users.tenant_id", "users.id"], name=f"fk_{table}_tenant_id_{column}"
    )


def text_(name: str, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=nullable)


def uuid_(name: str, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.Uuid, nullable=nullable)


def time_(name: str, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, TIME, nullable=nullable)


def small(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.SmallInteger, nullable=False)


def texts(name: str) -> sa.Column[object]:
    return sa.Column(name, ARRAY(sa.Text), nullable=False)


def upgrade() -> None:
    users()
    quests()
    attestations()
    history()
    failed_rewards()
    templates()


def users() -> None:
    for name in COUNTS:
        op.add_column("users", sa.Column(name, sa.BigInteger, nullable=False, server_default="0"))
        op.create_check_constraint(name, "users", f"{name} >= 0")
    for name in ("xp_reached_at", "reputation_reached_at"):
        op.add_column("users", sa.Column(name, TIME))


def quests() -> None:
    op.create_table(
        "quests",
        text_("tenant_id"),
        uuid_("id"),
        text_("status"),
        sa.Column("version", sa.BigInteger, nullable=False),
        small("round"),
        uuid_("creator_id"),
        uuid_("performer_id", nullable=True),
        text_("title"),
        text_("description"),
        texts("requirements"),
        texts("tags"),
        sa.Column("reward_xp", sa.Integer, nullable=False),
        sa.Column("reward_reputation", sa.Integer, nullable=False),
        small("attestations_required"),
        small("min_rating"),
        text_("submission", nullable=True),
        time_("created_at"),
        time_("updated_at"),
        time_("claimed_at", nullable=True),
        time_("submitted_at", nullable=True),
        time_("completed_at", nullable=True),
        time_("expires_at", nullable=True),
        key("quests", "id"),
        of_tenant("quests"),
        of_user("quests", "creator_id"),
        of_user("quests", "performer_id"),
        sa.CheckConstraint(f"status IN ({STATUSES})", name=op.f("ck_quests_status")),
    )
    indexes = {
        "status": (["status", "created_at", "id"], None),
        "newest": (["created_at", "id"], None),
        "changed": (["updated_at"], None),
        "creator": (["creator_id", "created_at", "id"], None),
        "performer": (["performer_id", "updated_at", "id"], "performer_id IS NOT NULL"),
        "claimed": (["performer_id", "claimed_at"], "status = 'CLAIMED'"),
        "expires_at": (["expires_at"], "expires_at IS NOT NULL AND status IN ('OPEN', 'CLAIMED')"),
    }
    for name, (columns, where) in indexes.items():
        op.create_index(
            f"ix_quests_{name}",
            "quests",
            ["tenant_id", *columns],
            postgresql_where=sa.text(where) if where is not None else None,
        )
    op.create_table(
        "quest_tags",
        text_("tenant_id"),
        uuid_("quest_id"),
        text_("tag"),
        time_("created_at"),
        key("quest_tags", "quest_id", "tag"),
        of_quest("quest_tags"),
    )
    op.create_index("ix_quest_tags_newest", "quest_tags", ["tenant_id", "tag", "created_at", "quest_id"])
    isolate("quests", service=("SELECT", "INSERT", "UPDATE"), platform=("SELECT",))
    isolate("quest_tags", service=("SELECT", "INSERT"))


def attestations() -> None:
    op.create_table(
        "attestations",
        text_("tenant_id"),
        uuid_("quest_id"),
        small("round"),
        uuid_("attester_id"),
        uuid_("performer_id"),
        small("rating"),
        text_("comments", nullable=True),
        text_("signature", nullable=True),
        time_("created_at"),
        key("attestations", "quest_id", "round", "attester_id"),
        of_quest("attestations"),
        of_user("attestations", "attester_id"),
        of_user("attestations", "performer_id"),
        sa.CheckConstraint("rating BETWEEN 1 AND 5", name=op.f("ck_attestations_rating")),
    )
    for person in ("attester", "performer"):
        op.create_index(f"ix_attestations_{person}", "attestations", ["tenant_id", f"{person}_id", "created_at"])
    isolate("attestations", service=("SELECT", "INSERT", "UPDATE"))


def history() -> None:
    op.create_table(
        "quest_history",
        text_("tenant_id"),
        uuid_("quest_id"),
        sa.Column("version", sa.BigInteger, nullable=False),
        text_("step"),
        text_("status_before", nullable=True),
        text_("status"),
        small("round"),
        uuid_("user_id", nullable=True),
        text_("by"),
        text_("reason", nullable=True),
        uuid_("performer_id", nullable=True),
        text_("submission", nullable=True),
        time_("at"),
        key("quest_history", "quest_id", "version"),
        of_quest("quest_history"),
    )
    for person in ("performer", "user"):
        op.create_index(f"ix_quest_history_{person}", "quest_history", ["tenant_id", f"{person}_id"])
    isolate("quest_history", service=("SELECT", "INSERT", "UPDATE"))


def failed_rewards() -> None:
    op.create_table(
        "failed_rewards",
        text_("tenant_id"),
        uuid_("id"),
        uuid_("quest_id"),
        uuid_("user_id"),
        text_("reward_type"),
        sa.Column("amount", sa.Integer, nullable=False),
        text_("reason"),
        sa.Column("error_details", JSONB, nullable=False),
        text_("status"),
        sa.Column("attempt_count", sa.Integer, nullable=False),
        time_("created_at"),
        time_("last_attempt_at"),
        time_("next_attempt_at"),
        time_("processed_at", nullable=True),
        text_("processed_by", nullable=True),
        key("failed_rewards", "id"),
        of_quest("failed_rewards"),
        of_user("failed_rewards", "user_id"),
        sa.CheckConstraint(
            "status IN ('PENDING', 'PROCESSING', 'COMPLETED', 'FAILED')", name=op.f("ck_failed_rewards_status")
        ),
        sa.CheckConstraint("reward_type IN ('XP', 'REPUTATION')", name=op.f("ck_failed_rewards_reward_type")),
    )
    of_one = ["tenant_id", "quest_id", "user_id", "reward_type"]
    op.create_index("uq_failed_rewards_quest", "failed_rewards", of_one, unique=True)
    op.create_index("ix_failed_rewards_newest", "failed_rewards", ["tenant_id", "created_at", "id"])
    op.create_index(
        "ix_failed_rewards_due",
        "failed_rewards",
        ["tenant_id", "next_attempt_at"],
        postgresql_where=sa.text("status IN ('PENDING', 'PROCESSING')"),
    )
    isolate("failed_rewards", service=("SELECT", "INSERT", "UPDATE"), platform=("SELECT",))


def templates() -> None:
    op.create_table(
        "quest_templates",
        text_("tenant_id"),
        uuid_("id"),
        text_("title"),
        text_("description"),
        sa.Column("reward_xp", sa.Integer, nullable=False),
        sa.Column("reward_reputation", sa.Integer, nullable=False),
        texts("tags"),
        time_("created_at"),
        time_("updated_at"),
        key("quest_templates", "id"),
        of_tenant("quest_templates"),
    )
    op.create_index("ix_quest_templates_newest", "quest_templates", ["tenant_id", "created_at", "id"])
    op.create_table(
        "quest_categories",
        text_("tenant_id"),
        text_("tag"),
        text_("name"),
        text_("description", nullable=True),
        time_("created_at"),
        key("quest_categories", "tag"),
        of_tenant("quest_categories"),
    )
    isolate("quest_templates")
    isolate("quest_categories")


def isolate(
    table: str, *, service: tuple[rls.Privilege, ...] = rls.ALL, platform: tuple[rls.Privilege, ...] = ()
) -> None:
    for statement in rls.isolate(table, service=service, platform=platform):
        op.execute(statement)
