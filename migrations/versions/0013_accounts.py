"""Accounts in the ledger, and the functions that pay all claims of a tenant in a commit.

Renames columns, so processes of the release before must be stopped first.
"""

from alembic import op

from tenants.db import SERVICE_ROLE

revision = "0013"
down_revision = "0012"

# What decides about claims of actions, read after their users are locked. Each statement of the function sees what was
# committed before it began, so nothing that decides can change any more.
CLAIM_FACTS = """
CREATE FUNCTION claim_facts(
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
    SELECT array_agg(DISTINCT c.name) INTO _wanted FROM unnest(_user_names, _actions) AS c(name, action)
    WHERE c.name IS NOT NULL
      AND EXISTS (SELECT FROM action_catalog a WHERE a.tenant_id = _tenant AND a.type = c.action);
    IF _wanted IS NOT NULL THEN
        SELECT e.ids, e.created INTO _found, _created FROM ensure_users(_tenant, _wanted, _room, _now) e;
    END IF;
    SELECT array_agg(COALESCE(c.id, f.id) ORDER BY c.place) INTO _ids
    FROM unnest(_user_ids, _user_names) WITH ORDINALITY AS c(id, name, place)
    LEFT JOIN unnest(_wanted, _found) AS f(name, id) ON f.name = c.name;
    PERFORM u.id FROM users u WHERE u.tenant_id = _tenant AND u.id = ANY(_ids) ORDER BY u.id FOR NO KEY UPDATE;
    RETURN QUERY
    WITH claim AS MATERIALIZED (
        SELECT c.*,
               encode(sha256(convert_to(format('%s:%s:%s', c.id, c.action, c.object), 'UTF8')), 'hex') AS once,
               encode(sha256(convert_to(format('%s:%s:%s', c.id, c.action, c.spelling), 'UTF8')), 'hex') AS as_written
        FROM unnest(_ids, _actions, _sources, _objects, _spellings) WITH ORDINALITY
             AS c(id, action, source, object, spelling, place)
    )
    SELECT c.place, u.id, u.suspended_at IS NOT NULL, u.current_score, _created,
           e.user_id, e.score, e.delta, e.rank, e.event_id, e.payload_hash,
           a.points, a.daily_cap::bigint, a.daily_limit, a.cooldown_s, a.once_per_object, a.requires_token, a.enabled,
           c.once,
           EXISTS (SELECT FROM score_ledger o WHERE o.tenant_id = _tenant AND o.account = _account
                   AND o.once_key IN (c.once, c.as_written)),
           d.times_today, d.points_today,
           (SELECT max(l.at) FROM score_ledger l WHERE l.tenant_id = _tenant AND l.user_id = c.id
            AND l.account = _account AND l.action_type = c.action AND l.reverses IS NULL),
           -- Reversing a payment that is older than the hour makes no room in it.
           (SELECT COALESCE(sum(CASE WHEN l.reverses IS NULL THEN l.delta ELSE (
                SELECT l.delta FROM score_ledger o
                WHERE o.tenant_id = _tenant AND o.id = l.reverses AND o.at > f.since) END), 0)::bigint
            FROM score_ledger l
            WHERE l.tenant_id = _tenant AND l.user_id = c.id AND l.account = _account AND l.at > f.since),
           m.updates, m.oldest_update_at
    FROM claim c
    LEFT JOIN users u ON u.tenant_id = _tenant AND u.id = c.id AND u.erased_at IS NULL
    LEFT JOIN score_ledger e ON e.tenant_id = _tenant AND e.account = _account AND e.source = c.source
    LEFT JOIN action_catalog a ON a.tenant_id = _tenant AND a.type = c.action
    CROSS JOIN LATERAL (
        SELECT GREATEST(_hour_ago, max(g.resolved_at)) AS since FROM integrity_flags g
        WHERE g.tenant_id = _tenant AND g.user_id = c.id AND g.rule = _rule AND g.state = 'dismissed') f
    CROSS JOIN LATERAL (
        SELECT count(*) AS updates, min(l.at) AS oldest_update_at FROM score_ledger l
        WHERE l.tenant_id = _tenant AND l.user_id = c.id AND l.account = _account AND l.at > _minute_ago
          AND l.reverses IS NULL) m
    -- A payment of today that was taken back still counts for the day: a reversal gives no room to do it again.
    CROSS JOIN LATERAL (
        SELECT count(*) AS times_today, COALESCE(sum(l.delta), 0)::bigint AS points_today FROM score_ledger l
        WHERE l.tenant_id = _tenant AND l.user_id = c.id AND l.account = _account AND l.action_type = c.action
          AND l.at >= _today AND l.reverses IS NULL) d
    ORDER BY c.place;
END $$
"""

# What claims are paid: ledger, audit, hours, balances, used tokens, outbox. The users are locked. False, and nothing is
# written, if another transaction has just paid one of the sources to another user.
RECORD_PAYMENTS = """
CREATE FUNCTION record_payments(
    _tenant text,
    _account text,
    _now timestamptz,
    _at timestamptz,       -- in milliseconds, as everything that is shown
    _hour timestamptz,
    _users uuid[],
    _sources text[],
    _actions text[],
    _deltas bigint[],
    _scores bigint[],
    _ranks bigint[],
    _events uuid[],
    _hashes bytea[],
    _onces text[],
    _verifications text[],
    _client_times timestamptz[],
    _objects text[],
    _ips text[],
    _agents text[],
    _client_infos text[],
    _metadata text[],
    _tokens text[],
    _tokens_expire timestamptz[]
) RETURNS boolean LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    WITH paid AS MATERIALIZED (
        SELECT * FROM unnest(_users, _sources, _actions, _deltas, _scores, _ranks, _events, _hashes, _onces,
                             _verifications, _client_times, _objects, _ips, _agents, _client_infos, _metadata)
        WITH ORDINALITY AS p(user_id, source, action_type, delta, score, rank, event_id, payload_hash, once_key,
                             verification, client_time, object, ip, agent, client_info, metadata, place)
    ), entry AS (
        INSERT INTO score_ledger (tenant_id, user_id, account, source, action_type, delta, previous, score, rank, at,
                                  event_id, payload_hash, once_key)
        SELECT t.id, p.user_id, _account, p.source, p.action_type, p.delta, p.score - p.delta, p.score, p.rank, _at,
               p.event_id, p.payload_hash, p.once_key
        FROM tenants t CROSS JOIN paid p WHERE t.id = _tenant ORDER BY p.place
    ), hour AS (
        INSERT INTO user_points_hour AS h (tenant_id, user_id, account, bucket_hour, points, last_at)
        SELECT t.id, p.user_id, _account, _hour, sum(p.delta), _at
        FROM tenants t CROSS JOIN paid p WHERE t.id = _tenant GROUP BY t.id, p.user_id ORDER BY p.user_id
        ON CONFLICT (tenant_id, user_id, account, bucket_hour)
        DO UPDATE SET points = h.points + EXCLUDED.points, last_at = GREATEST(h.last_at, EXCLUDED.last_at)
    ), audited AS (
        INSERT INTO action_events (tenant_id, received_at, id, user_id, action_type, source, payload_hash, verification,
                                   client_time, points, object, ip, agent, client_info, metadata)
        SELECT t.id, _now, p.event_id, p.user_id, p.action_type, p.source, p.payload_hash, p.verification,
               p.client_time, p.delta, p.object, p.ip::inet, p.agent, p.client_info::jsonb, p.metadata::jsonb
        FROM tenants t CROSS JOIN paid p WHERE t.id = _tenant
    ), used AS (
        INSERT INTO consumed_tokens (tenant_id, token_id, expires_at)
        SELECT t.id, k.id, k.expires_at FROM tenants t CROSS JOIN unnest(_tokens, _tokens_expire) AS k(id, expires_at)
        WHERE t.id = _tenant ON CONFLICT DO NOTHING
    ), stale AS (
        INSERT INTO outbox (tenant_id, kind, member)
        SELECT DISTINCT t.id, 'user', p.user_id::text FROM tenants t CROSS JOIN paid p WHERE t.id = _tenant
    )
    UPDATE users u SET current_score = n.score, total_actions = u.total_actions + n.actions,
        score_reached_at = GREATEST(COALESCE(u.score_reached_at, _at), _at)
    FROM (SELECT user_id, max(score) AS score, count(*) AS actions FROM paid GROUP BY user_id) n
    WHERE u.tenant_id = _tenant AND u.id = n.user_id;
    RETURN true;
EXCEPTION WHEN unique_violation THEN
    RETURN false;
END $$
"""
FUNCTIONS = {"claim_facts": CLAIM_FACTS, "record_payments": RECORD_PAYMENTS}


def upgrade() -> None:
    name_accounts()
    for name, function in FUNCTIONS.items():
        op.execute(function)
        op.execute(f"REVOKE EXECUTE ON FUNCTION {name} FROM PUBLIC")
        op.execute(f"GRANT EXECUTE ON FUNCTION {name} TO {SERVICE_ROLE}")


def name_accounts() -> None:
    """An entry adds to an account of its user; a source, or what is paid once, is unique in each account."""
    op.alter_column("score_ledger", "metric", new_column_name="account")
    op.alter_column("user_points_hour", "metric", new_column_name="account")
    keys = {
        "uq_score_ledger_source": (["tenant_id", "account", "source"], True),
        "uq_score_ledger_once_key": (["tenant_id", "account", "once_key"], True),
        "ix_score_ledger_time": (["tenant_id", "user_id", "account", "at"], False),
        "ix_score_ledger_action": (["tenant_id", "user_id", "account", "action_type", "at"], False),
    }
    for name, (columns, unique) in keys.items():
        op.drop_index(name)
        op.create_index(name, "score_ledger", columns, unique=unique)
