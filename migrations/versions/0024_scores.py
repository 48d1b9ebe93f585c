"""Ranks of a commit, corrections of scores, and a rate limit for users' own claims alone.

A claim's rank is the board's, corrected by the users whose rows there are out of date: `read_pending_users` reads them.
A correction is a ledger entry with a reason; it counts for no limit. What a tenant's app claims for a user no longer
counts for the user's own rate.
"""

import sqlalchemy as sa
from alembic import op

from tenants.db import SERVICE_ROLE

revision = "0024"
down_revision = "0023"

# In `read_claim_facts`: for the hour no correction counts, and for a user's rate only what users claim themselves.
FACTS = {
    "FILTER (WHERE l.at > f.since)": "FILTER (WHERE l.at > f.since AND l.source NOT LIKE 'correction:%')",
    "l.at > _minute_ago AND l.reverses IS NULL": (
        "l.at > _minute_ago AND (l.source LIKE 'action:%' OR l.source LIKE 'token:%')"
    ),
}

# The users whose rows on the boards of points are out of date, and these users, as they are now. Without the former if
# there are more than _most.
READ_PENDING_USERS = """
CREATE FUNCTION read_pending_users(_tenant text, _users uuid[], _most int)
RETURNS TABLE (user_id uuid, score bigint, reached_at timestamptz, is_shown boolean)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    _pending uuid[];
    _most_rows int := 2 * _most;  -- one user may have changed several times
BEGIN
    SELECT array_agg(p.member::uuid) INTO _pending FROM (
        SELECT r.member, count(*) AS rows FROM (
            (SELECT o.member FROM outbox o
             WHERE o.tenant_id = _tenant AND o.kind = 'user' ORDER BY o.id LIMIT _most_rows + 1)
            UNION ALL
            (SELECT i.member FROM projecting i
             WHERE i.tenant_id = _tenant AND i.kind = 'user' LIMIT _most_rows + 1)) r
        GROUP BY r.member) p
    HAVING count(*) <= _most AND sum(p.rows) <= _most_rows;
    RETURN QUERY
    SELECT u.id, u.current_score, u.score_reached_at, u.suspended_at IS NULL AND u.erased_at IS NULL
    FROM users u WHERE u.tenant_id = _tenant AND u.id = ANY(_users || _pending);
END $$
"""

# As in 0007; of an erased user's ledger entries the reasons, which may be personal.
BLANK_AUDIT = """
CREATE OR REPLACE FUNCTION blank_audit(_user uuid) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    _tenant text := NULLIF(current_setting('plaudit.tenant', true), '');
    _blanked bigint;
BEGIN
    UPDATE public.score_ledger SET reason = NULL
    WHERE tenant_id = _tenant AND user_id = _user AND reason IS NOT NULL AND EXISTS (
        SELECT FROM public.users u WHERE u.tenant_id = _tenant AND u.id = _user AND u.erased_at IS NOT NULL);
    UPDATE public.action_events SET ip = NULL, agent = NULL, client_info = NULL, metadata = NULL, object = NULL
    WHERE tenant_id = _tenant AND user_id = _user AND EXISTS (
        SELECT FROM public.users u WHERE u.tenant_id = _tenant AND u.id = _user AND u.erased_at IS NOT NULL);
    GET DIAGNOSTICS _blanked = ROW_COUNT;
    RETURN _blanked;
END $$
"""


def upgrade() -> None:
    op.add_column("score_ledger", sa.Column("reason", sa.Text))
    op.create_index(
        "ix_outbox_users", "outbox", ["tenant_id", "id"], postgresql_where=sa.text("kind = 'user'")
    )  # a busy tenant has thousands of rows of pages
    change_function("read_claim_facts", FACTS)
    for function in (READ_PENDING_USERS, BLANK_AUDIT):
        op.execute(function)
    op.execute("REVOKE EXECUTE ON FUNCTION read_pending_users FROM PUBLIC")
    op.execute(f"GRANT EXECUTE ON FUNCTION read_pending_users TO {SERVICE_ROLE}")


def change_function(name: str, changes: dict[str, str]) -> None:
    """Replace parts of a function, whatever other migration has replaced it meanwhile."""
    definition = op.get_bind().scalar(sa.text("SELECT pg_get_functiondef(to_regproc(:name))"), {"name": name})
    assert definition is not None  # noqa: S101
    for old, new in changes.items():
        assert old in definition, f"{name} has no {old}"  # noqa: S101
        definition = definition.replace(old, new)
    op.execute(definition)
