"""Which server it is, and on which timeline, as far as it says so: not every managed server does."""

from alembic import op

from tenants.db import PLATFORM_ROLE, SERVICE_ROLE

revision = "0030"
down_revision = "0029"

# The timeline is in the name of the file that is written now; pg_control_checkpoint() has it only after a checkpoint.
CURRENT_SERVER = """
CREATE FUNCTION current_server() RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF pg_is_in_recovery() THEN
        RETURN NULL;
    END IF;
    RETURN (SELECT system_identifier::text FROM pg_control_system())
           || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8);
EXCEPTION
    WHEN insufficient_privilege OR feature_not_supported OR undefined_function OR object_not_in_prerequisite_state THEN
        RETURN NULL;
END $$
"""


def upgrade() -> None:
    op.execute(CURRENT_SERVER)
    op.execute(f"GRANT EXECUTE ON FUNCTION current_server() TO {SERVICE_ROLE}, {PLATFORM_ROLE}")
