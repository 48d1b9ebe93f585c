"""Pages have the address at which they are found, as browsers compare it.

Filled by a job (`analytics.ingest.page_addresses`), since that takes long on a large table. The index is built without
values then; writers of pages wait for that, views and likes do not.
"""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    op.add_column("pages", sa.Column("address", sa.Text))
    op.create_index("ix_pages_address", "pages", ["tenant_id", "address", "id"])
