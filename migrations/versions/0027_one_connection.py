"""Projections are planned and carried out in two transactions, and remember the server whose boards Redis has.

`step` counts the plans of a tenant: only the last one may be carried out. `server` is the PostgreSQL server, with its
timeline, on which boards were last written; NULL until the next projection, which takes the present one.
"""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"


def upgrade() -> None:
    op.add_column("projections", sa.Column("step", sa.BigInteger, nullable=False, server_default="0"))
    for table in ("projections", "global_boards"):
        op.add_column(table, sa.Column("server", sa.Text))
