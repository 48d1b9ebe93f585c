"""An answer that is kept for an `Idempotency-Key` says with which rights it was given.

Whoever has other rights now does not get it again. Answers kept before are for whoever sends their key.
"""

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"


def upgrade() -> None:
    op.add_column("idempotency_keys", sa.Column("rights", sa.Text))
