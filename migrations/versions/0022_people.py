"""Suspensions that end by themselves; who likes a page and what a user likes, and the audit of all users, by an index.

The indexes of likes and of the audit are built anew with the columns by which their lists are ordered: first, since
likes and actions wait meanwhile; reads do not, but for a moment at the end.
"""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"

IS_SUSPENDED = "u.suspended_at IS NOT NULL"


def upgrade() -> None:
    is_liked = sa.text("liked_at IS NOT NULL")
    build_anew("ix_page_likes_page_time", "page_likes", ["page_id", "liked_at", "user_id"], where=is_liked)
    build_anew("ix_page_likes_user", "page_likes", ["user_id", "liked_at", "page_id"])
    build_anew("ix_action_events_user", "action_events", ["user_id", "received_at", "id"])
    op.create_index("ix_action_events_type", "action_events", ["tenant_id", "action_type", "received_at", "id"])
    op.add_column("users", sa.Column("suspended_until", sa.DateTime(timezone=True)))
    is_ending = sa.text("suspended_until IS NOT NULL")
    op.create_index("ix_users_suspended_until", "users", ["suspended_until"], postgresql_where=is_ending)
    # As in 0017, but for a suspension that has ended.
    in_effect = f"({IS_SUSPENDED} AND (u.suspended_until IS NULL OR u.suspended_until > _now))"
    change_function("read_claim_facts", IS_SUSPENDED, in_effect)


def change_function(name: str, old: str, new: str) -> None:
    """Replace a part of a function, whatever other migration has replaced it meanwhile."""
    definition = op.get_bind().scalar(sa.text("SELECT pg_get_functiondef(to_regproc(:name))"), {"name": name})
    assert definition is not None  # noqa: S101
    assert definition.count(old) == 1, f"{name} has {old} {definition.count(old)} times"  # noqa: S101
    op.execute(definition.replace(old, new))


def build_anew(name: str, table: str, columns: list[str], *, where: sa.TextClause | None = None) -> None:
    """Build an index with other columns, and drop the old one only then: dropping it locks out reads too."""
    op.create_index(f"{name}_new", table, ["tenant_id", *columns], postgresql_where=where)
    op.drop_index(name)
    op.execute(f"ALTER INDEX {name}_new RENAME TO {name}")
