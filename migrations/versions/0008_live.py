"""Tickets for sockets."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

from tenants import rls

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.create_table(
        "live_tickets",
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("ticket_hash", sa.Text, nullable=False),
        sa.Column("holder", JSONB, nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "ticket_hash", name="pk_live_tickets"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], ondelete="CASCADE", name="fk_live_tickets_tenant_id"),
    )
    op.create_index("ix_live_tickets_expires_at", "live_tickets", ["expires_at"])
    for statement in rls.isolate("live_tickets", service=("SELECT", "INSERT", "DELETE")):
        op.execute(statement)
