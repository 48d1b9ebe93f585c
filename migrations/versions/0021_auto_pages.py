"""Publishable keys may allow that pages make themselves."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    op.add_column("publishable_keys", sa.Column("auto_pages", sa.Boolean, nullable=False, server_default=sa.false()))
