"""Drops the functions that nothing calls since 0012.

They inserted rows by `INSERT … SELECT` without joining the tenant's row, so a distributed database could not run them
where the tenant's rows are. Processes of 0.1.0, which call them, were stopped for 0012.
"""

from alembic import op

revision = "0016"
down_revision = "0015"

UNUSED = (
    "record_events(text, text[], int[], int[], uuid[], boolean[], text[], text[], date)",
    "record_events(text, text[], int[], int[], uuid[], boolean[], text[], text[], timestamptz, text[], bigint[])",
)


def upgrade() -> None:
    for function in UNUSED:
        op.execute(f"DROP FUNCTION {function}")
