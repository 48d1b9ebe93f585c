"""What one tenant may cost the others has a bound."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

from tenants import rls

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    sharing()
    kept_answers()
    ceilings()


def sharing() -> None:
    # To find the public pages whose `is_shared` differs from the tenant's setting, without reading the others.
    op.create_index(
        "ix_page_stats_public",
        "page_stats",
        ["tenant_id", "is_shared", "page_id"],
        postgresql_where=sa.text("is_public"),
    )


def kept_answers() -> None:
    # Without a body: the answer was too large to be kept.
    op.alter_column("idempotency_keys", "body", nullable=True)
    op.create_table(
        "pending_redactions",
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("user_id", sa.Uuid, nullable=False),
        sa.Column("redacted_to", sa.Text, nullable=False, server_default=""),
        sa.Column("erased_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "user_id", name="pk_pending_redactions"),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], ondelete="CASCADE", name="fk_pending_redactions_tenant_id"
        ),
    )
    for statement in rls.isolate("pending_redactions", platform=("SELECT",)):
        op.execute(statement)


def ceilings() -> None:
    # The service may read the table, and only the owner may write it.
    op.add_column("tenants", sa.Column("ceilings", JSONB, nullable=False, server_default=sa.text("'{}'::jsonb")))
    op.create_index(
        "ix_users_segment", "users", ["tenant_id", "segment"], postgresql_where=sa.text("segment IS NOT NULL")
    )
