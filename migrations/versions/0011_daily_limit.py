"""`daily_cap` is points a day. It was times a day, which is `daily_limit` from now on.

Not an expansion: the release before would read the new `daily_cap` as times a day, and cannot find the limits that
were stored. So its processes must be stopped before this migration runs, as the CHANGELOG says.
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    # Renaming moves every stored value at once, without rewriting the table. A cap in points needs the range of points.
    op.alter_column("action_catalog", "daily_cap", new_column_name="daily_limit")
    op.add_column("action_catalog", sa.Column("daily_cap", sa.BigInteger))
