"""Rows of the outbox have the time at which they were marked, so that everybody can tell how far boards are behind."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    op.add_column(
        "outbox", sa.Column("marked_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now())
    )
