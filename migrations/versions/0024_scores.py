"""Ranks of a commit, corrections of scores, and a rate limit for users' own claims alone.

A claim's rank is the board's, corrected by the users whose rows there are out of date: `read_pending_users` reads them.
A correction is a ledger entry with a reason; it counts for no limit. What a tenant's app claims for a user no longer
counts for the user's own rate.
"""

import sqlalchemy as sa
from alembic import op

from tenants.db import SERVICE_ROLE

revision = "0024"
down_revision = "0021"

# As in 0017, but for what counts: for the user's rate only what users claim themselves, and for the hour no correction.
READ_CLAIM_FACTS = """
CREATE OR REPLACE FUNCTION read_claim_facts(
    _tenant text,
    _account text,
    _user_ids uuid[],      -- for each claim its user, by our id
    _user_names text[],    -- or by external id
    _actions text[],
    _sources text[],
    _objects text[],       -- the object in the form that is compared
    _spellings text[],     -- and as it was sent, which older entries have
    _room bigint,          -- how many users may be created
    _now timestamptz,
    _today timestamptz,
    _hour_ago timestamptz,
    _minute_ago timestamptz,
    _rule text             -- the rule of integrity whose dismissed flags count
) RETURNS TABLE (
    place bigint, user_id uuid, is_suspended boolean, balance bigint, created bigint,
    paid_user uuid, paid_score bigint, paid_delta bigint, paid_rank bigint, paid_event_id uuid, paid_hash bytea,
    points bigint, daily_cap bigint, daily_limit int, cooldown_s int,
    once_per_object boolean, requires_token boolean, enabled boolean,
    once_key text, was_done boolean,
    times_today bigint, points_today bigint, last_at timestamptz,
    points_in_last_hour bigint, updates bigint, oldest_update_at timestamptz
) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    _wanted text[];
    _found uuid[];
    _ids uuid[];
    _created bigint := 0;
BEGIN
    -- An action that the catalog does not have creates no user.
    IF array_length(array_remove(_user_names, NULL), 1) > 0 THEN
        SELECT array_agg(DISTINCT c.name) INTO _wanted FROM unnest(_user_names, _actions) AS c(name, action)
        WHERE c.name IS NOT NULL
          AND EXISTS (SELECT FROM action_catalog a WHERE a.tenant_id = _tenant AND a.type = c.action);
    END IF;
    IF _wanted IS NULL THEN
        _ids := _user_ids;
    ELSE
        SELECT e.ids, e.created INTO _found, _created FROM ensure_users(_tenant, _wanted, _room, _now) e;
        SELECT array_agg(COALESCE(c.id, f.id) ORDER BY c.place) INTO _ids
        FROM unnest(_user_ids, _user_names) WITH ORDINALITY AS c(id, name, place)
        LEFT JOIN unnest(_wanted, _found) AS f(name, id) ON f.name = c.name;
    END IF;
    PERFORM u.id FROM users u WHERE u.tenant_id = _tenant AND u.id = ANY(_ids) ORDER BY u.id FOR NO KEY UPDATE;
    RETURN QUERY
    WITH claim AS MATERIALIZED (
        SELECT c.id, c.action, c.source, c.place,
               a.points, a.daily_cap::bigint AS daily_cap, a.daily_limit, a.cooldown_s, a.once_per_object,
               a.requires_token, a.enabled,
               CASE WHEN a.once_per_object THEN
                   encode(sha256(convert_to(format('%s:%s:%s', c.id, c.action, c.object), 'UTF8')), 'hex')
               END AS once,
               CASE WHEN a.once_per_object THEN
                   encode(sha256(convert_to(format('%s:%s:%s', c.id, c.action, c.spelling), 'UTF8')), 'hex')
               END AS as_written
        FROM unnest(_ids, _actions, _sources, _objects, _spellings) WITH ORDINALITY
             AS c(id, action, source, object, spelling, place)
        LEFT JOIN action_catalog a ON a.tenant_id = _tenant AND a.type = c.action
    )
    SELECT c.place, u.id, u.suspended_at IS NOT NULL, u.current_score, _created,
           e.user_id, e.score, e.delta, e.rank, e.event_id, e.payload_hash,
           c.points, c.daily_cap, c.daily_limit, c.cooldown_s, c.once_per_object, c.requires_token, c.enabled,
           c.once,
           CASE WHEN c.once_per_object THEN
               EXISTS (SELECT FROM score_ledger o WHERE o.tenant_id = _tenant AND o.account = _account
                       AND o.once_key IN (c.once, c.as_written))
           ELSE false END,
           d.times_today, d.points_today,
           CASE WHEN c.cooldown_s > 0 THEN
               (SELECT max(l.at) FROM score_ledger l WHERE l.tenant_id = _tenant AND l.user_id = c.id
                AND l.account = _account AND l.action_type = c.action AND l.reverses IS NULL)
           END,
           h.points, h.updates, h.oldest_update_at
    FROM claim c
    LEFT JOIN users u ON u.tenant_id = _tenant AND u.id = c.id AND u.erased_at IS NULL
    LEFT JOIN score_ledger e ON e.tenant_id = _tenant AND e.account = _account AND e.source = c.source
    CROSS JOIN LATERAL (
        SELECT GREATEST(_hour_ago, max(g.resolved_at)) AS since FROM integrity_flags g
        WHERE g.tenant_id = _tenant AND g.user_id = c.id AND g.rule = _rule AND g.state = 'dismissed') f
    -- Reversing a payment that is older than the hour makes no room in it.
    CROSS JOIN LATERAL (
        SELECT COALESCE(sum(CASE WHEN l.reverses IS NULL THEN l.delta ELSE (
                   SELECT l.delta FROM score_ledger o
                   WHERE o.tenant_id = _tenant AND o.id = l.reverses AND o.at > f.since) END)
               FILTER (WHERE l.at > f.since AND l.source NOT LIKE 'correction:%'), 0)::bigint AS points,
               count(*) FILTER (WHERE l.at > _minute_ago AND o.is_own) AS updates,
               min(l.at) FILTER (WHERE l.at > _minute_ago AND o.is_own) AS oldest_update_at
        FROM score_ledger l
        CROSS JOIN LATERAL (SELECT l.source LIKE 'action:%' OR l.source LIKE 'token:%' AS is_own) o
        WHERE l.tenant_id = _tenant AND l.user_id = c.id AND l.account = _account AND l.at > _hour_ago) h
    -- A payment of today that was taken back still counts for the day: a reversal gives no room to do it again.
    CROSS JOIN LATERAL (
        SELECT count(*) AS times_today, COALESCE(sum(l.delta), 0)::bigint AS points_today FROM score_ledger l
        WHERE (c.daily_cap IS NOT NULL OR c.daily_limit IS NOT NULL)
          AND l.tenant_id = _tenant AND l.user_id = c.id AND l.account = _account AND l.action_type = c.action
          AND l.at >= _today AND l.reverses IS NULL) d
    ORDER BY c.place;
END $$
"""

# The users whose rows on the boards of points are out of date, and these users, as they are now. Without the former if
# there are more than _most.
READ_PENDING_USERS = """
CREATE FUNCTION read_pending_users(_tenant text, _users uuid[], _most int)
RETURNS TABLE (user_id uuid, score bigint, reached_at timestamptz, is_shown boolean)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    _pending uuid[];
BEGIN
    SELECT array_agg(p.member::uuid) INTO _pending FROM (
        (SELECT o.member FROM outbox o WHERE o.tenant_id = _tenant AND o.kind = 'user' ORDER BY o.id LIMIT _most + 1)
        UNION ALL
        (SELECT i.member FROM projecting i WHERE i.tenant_id = _tenant AND i.kind = 'user' LIMIT _most + 1)) p
    HAVING count(*) <= _most;
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
    for function in (READ_CLAIM_FACTS, READ_PENDING_USERS, BLANK_AUDIT):
        op.execute(function)
    op.execute("REVOKE EXECUTE ON FUNCTION read_pending_users FROM PUBLIC")
    op.execute(f"GRANT EXECUTE ON FUNCTION read_pending_users TO {SERVICE_ROLE}")
