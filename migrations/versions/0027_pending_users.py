"""`read_pending_users` counts users, not rows of the outbox: one user may have changed a hundred times.

As in 0024, but for that. It reads at most ten rows for each user of whom it may tell.
"""

from alembic import op

revision = "0027"
down_revision = "0026"

READ_PENDING_USERS = """
CREATE OR REPLACE FUNCTION read_pending_users(_tenant text, _users uuid[], _most int)
RETURNS TABLE (user_id uuid, score bigint, reached_at timestamptz, is_shown boolean)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    _pending uuid[];
    _most_rows int := 10 * _most;
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


def upgrade() -> None:
    op.execute(READ_PENDING_USERS)
