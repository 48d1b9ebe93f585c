"""The roles, and the tenants."""

import sqlalchemy as sa
from alembic import op

from tenants import rls

revision = "0001"
down_revision = None


def upgrade() -> None:
    for statement in rls.create_roles():
        op.execute(statement)
    op.create_table(
        "tenants",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
        sa.Column("deleted_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("id", name="pk_tenants"),
        sa.CheckConstraint("id ~ '^[a-z][a-z0-9-]{1,62}$'", name=op.f("ck_tenants_slug")),
    )
    for statement in rls.isolate("tenants", tenant_column="id", service=("SELECT",), platform=("SELECT",)):
        op.execute(statement)
