"""Processes compare their secret and public address; several may make the audit's months at once."""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"

# As migration 0007 has it, after a lock: of two who make a month at once, the second finds it made.
MONTH_OF_ACTIONS = """
CREATE OR REPLACE FUNCTION make_month_of_actions(_month date) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    _name text := 'action_events_' || to_char(_month, 'YYYY_MM');
BEGIN
    PERFORM pg_advisory_xact_lock(7526103844);
    EXECUTE format('CREATE TABLE IF NOT EXISTS %I PARTITION OF action_events FOR VALUES FROM (%L) TO (%L)',
                   _name, _month::timestamp AT TIME ZONE 'UTC', (_month + interval '1 month') AT TIME ZONE 'UTC');
    IF NOT (SELECT relforcerowsecurity FROM pg_class WHERE oid = _name::regclass) THEN
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', _name);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', _name);
        EXECUTE format('CREATE POLICY owner ON %I TO CURRENT_USER USING (true) WITH CHECK (true)', _name);
    END IF;
END $$
"""


def upgrade() -> None:
    # NULL: a process of the release before, or a value that is not set; then there is nothing to compare.
    op.add_column("processes", sa.Column("secret_fingerprint", sa.Text))
    op.add_column("processes", sa.Column("url_fingerprint", sa.Text))
    op.add_column("processes", sa.Column("differs", sa.Boolean, nullable=False, server_default=sa.false()))
    op.execute(MONTH_OF_ACTIONS)
