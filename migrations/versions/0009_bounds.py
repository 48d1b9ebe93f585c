"""What one tenant may cost the others has a bound."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    sharing()


def sharing() -> None:
    # The public pages that are not shared as the tenant's setting says: found without a look at the others.
    op.create_index(
        "ix_page_stats_public",
        "page_stats",
        ["tenant_id", "is_shared", "page_id"],
        postgresql_where=sa.text("is_public"),
    )
