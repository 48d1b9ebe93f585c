"""Boards of any of a user's segments, by an index.

A migration of its own, after the columns: to build an index blocks writers of its table, and to add a column also its
readers, until the transaction ends.
"""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"

MAX_SEGMENTS = 8


def upgrade() -> None:
    # One index for each place and not a GIN index: `@>` is not leakproof, so under row-level security it would not be
    # used; nor can it begin with the tenant.
    for table in ("users", "user_stats"):
        for place in range(2, MAX_SEGMENTS + 1):
            op.create_index(
                f"ix_{table}_segment_{place}",
                table,
                ["tenant_id", sa.text(f"(segments[{place}])")],
                postgresql_where=sa.text(f"segments[{place}] IS NOT NULL"),
            )
