"""How every process learns of revocations: the changes, and the processes that must have applied them."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql as pg

from tenants import rls
from tenants.db import PLATFORM_ROLE

revision = "0014"
down_revision = "0013"

TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    # Without a foreign key: other processes must still read that a tenant was deleted when its rows are gone.
    op.create_table(
        "credential_changes",
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), nullable=False),
        sa.Column("names", pg.ARRAY(sa.TEXT), nullable=False),
        sa.Column("at", TIME, nullable=False, server_default=sa.text("clock_timestamp()")),
        sa.PrimaryKeyConstraint("tenant_id", "id", name="pk_credential_changes"),
    )
    op.create_index("ix_credential_changes_at", "credential_changes", ["at"])
    for statement in rls.isolate("credential_changes", service=("SELECT", "INSERT"), platform=("SELECT",)):
        op.execute(statement)
    op.create_table(
        "processes",
        sa.Column("id", sa.Uuid, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("started_at", TIME, nullable=False, server_default=sa.text("clock_timestamp()")),
        sa.Column("seen_at", TIME, nullable=False, server_default=sa.text("clock_timestamp()")),
        sa.Column("seen", pg.ARRAY(sa.BigInteger), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_processes"),
    )
    op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON processes TO {PLATFORM_ROLE}")
