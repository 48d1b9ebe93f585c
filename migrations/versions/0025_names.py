"""People with names and pictures, in several segments.

A user's first segment stays in `segment`, where the release before reads and writes it; `segments` has all of them, the
first included. Whoever reads takes the first from `segment` and the others from `segments`, so whatever that release
writes is counted, and no row has to be moved.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY

from tenants.db import SERVICE_ROLE

revision = "0025"
down_revision = "0024"

# What events say of their users. A lock is a write too: only rows that will change are locked, by id.
APPLY_PROFILES = """
CREATE FUNCTION apply_profiles(
    _tenant text,
    _users text[],          -- external ids, each once
    _display_names text[],  -- for each the name; NULL: it stays
    _avatars text[],        -- and the address of the picture; NULL: it stays
    _now timestamptz
) RETURNS bigint LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    _changing uuid[];
BEGIN
    SELECT array_agg(l.id) INTO _changing
    FROM (SELECT u.id FROM unnest(_users, _display_names, _avatars) AS p(name, display_name, avatar_url)
          JOIN users u ON u.tenant_id = _tenant AND u.external_id = p.name
          WHERE COALESCE(p.display_name, u.display_name) IS DISTINCT FROM u.display_name
             OR COALESCE(p.avatar_url, u.avatar_url) IS DISTINCT FROM u.avatar_url
          ORDER BY u.id FOR NO KEY UPDATE OF u) l;
    IF _changing IS NULL THEN
        RETURN 0;
    END IF;
    UPDATE users u
    SET display_name = COALESCE(p.display_name, u.display_name), avatar_url = COALESCE(p.avatar_url, u.avatar_url),
        profile_changed_at = _now, updated_at = _now
    FROM unnest(_users, _display_names, _avatars) AS p(name, display_name, avatar_url)
    WHERE u.tenant_id = _tenant AND u.external_id = p.name AND u.id = ANY(_changing);
    INSERT INTO outbox (tenant_id, kind, member)
    SELECT t.id, 'user', c.id::text FROM tenants t CROSS JOIN unnest(_changing) AS c(id) WHERE t.id = _tenant;
    RETURN cardinality(_changing);
END $$
"""

# For a commit with claims of actions and with profiles of other users: all of them are locked at once, by id, and none
# is created afterwards. Otherwise two commits could each wait for a user of the other.
LOCK_CLAIMS_AND_PROFILES = """
CREATE FUNCTION lock_claims_and_profiles(
    _tenant text,
    _profiles text[],      -- external ids
    _user_ids uuid[],      -- for each claim its user, by our id
    _user_names text[],    -- or by external id
    _actions text[],
    _room bigint,          -- how many users may be created
    _now timestamptz
) RETURNS bigint LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    _wanted text[];
    _created bigint := 0;
BEGIN
    -- As read_claim_facts does: an action that the catalog does not have creates no user.
    SELECT array_agg(DISTINCT c.name) INTO _wanted FROM unnest(_user_names, _actions) AS c(name, action)
    WHERE c.name IS NOT NULL
      AND EXISTS (SELECT FROM action_catalog a WHERE a.tenant_id = _tenant AND a.type = c.action);
    IF _wanted IS NOT NULL THEN
        SELECT e.created INTO _created FROM ensure_users(_tenant, _wanted, _room, _now) e;
    END IF;
    PERFORM u.id FROM users u
    WHERE u.tenant_id = _tenant AND (u.external_id = ANY(_profiles || _wanted) OR u.id = ANY(_user_ids))
    ORDER BY u.id FOR NO KEY UPDATE;
    RETURN _created;
END $$
"""

# The release before knows nothing of these columns when it erases a user.
BLANK_ERASED = """
CREATE FUNCTION blank_erased() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.display_name := NULL;
    NEW.segments := '{}';
    NEW.profile_changed_at := NULL;
    RETURN NEW;
END $$
"""


def upgrade() -> None:
    for table in ("users", "user_stats"):
        none = sa.text("'{}'::text[]")
        op.add_column(table, sa.Column("segments", ARRAY(sa.Text), nullable=False, server_default=none))
        op.add_column(table, sa.Column("profile_changed_at", sa.DateTime(timezone=True)))
    op.add_column("users", sa.Column("display_name", sa.Text))
    op.execute(BLANK_ERASED)
    op.execute("""
        CREATE TRIGGER blank_erased BEFORE UPDATE OF erased_at ON users FOR EACH ROW
        WHEN (NEW.erased_at IS NOT NULL) EXECUTE FUNCTION blank_erased()
    """)
    for name, function in {
        "apply_profiles": APPLY_PROFILES,
        "lock_claims_and_profiles": LOCK_CLAIMS_AND_PROFILES,
    }.items():
        op.execute(function)
        op.execute(f"REVOKE EXECUTE ON FUNCTION {name} FROM PUBLIC")
        op.execute(f"GRANT EXECUTE ON FUNCTION {name} TO {SERVICE_ROLE}")
