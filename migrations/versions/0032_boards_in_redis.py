"""In which Redis a tenant's boards were last written: processes with another one would leave these behind.

NULL: by a process of the release before, which does not say.
"""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"


def upgrade() -> None:
    op.add_column("projections", sa.Column("redis_run", sa.Text))
