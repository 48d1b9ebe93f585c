"""Writes that cost less, and tell the projection more.

Claims of actions read only what decides about them, and write fewer index entries. Likes are applied in one pass. An
outbox row of a page names the hour to which counts were added, if it is one: if that is in every window, the projection
adds the difference to the saved numbers instead of counting a month again. What takes counts away names none: they may
have been in some of the windows only. Rows of older processes name none.
"""

import sqlalchemy as sa
from alembic import op

from tenants.db import SERVICE_ROLE

revision = "0017"
down_revision = "0016"

# What decides about claims of actions, read after their users are locked. Each statement of the function sees what was
# committed before it began, so nothing that decides can change any more. Instead of `claim_facts`: what the terms of an
# action do not ask for (caps, cooldowns, objects paid before) is not read, and a user's last hour is read once.
READ_CLAIM_FACTS = """
CREATE FUNCTION read_claim_facts(
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
               FILTER (WHERE l.at > f.since), 0)::bigint AS points,
               count(*) FILTER (WHERE l.at > _minute_ago AND l.reverses IS NULL) AS updates,
               min(l.at) FILTER (WHERE l.at > _minute_ago AND l.reverses IS NULL) AS oldest_update_at
        FROM score_ledger l
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

# Likes given and taken back, in the order of the arrays, with the same result as before. The pages' counters are locked
# by the caller, so nobody else changes these rows meanwhile: they are read once, changed in memory, and written once.
# Before, each further change of the same like was a round of its own, so a batch of a thousand of them took a second.
APPLY_LIKES = """
CREATE OR REPLACE FUNCTION apply_likes(
    _tenant text,
    _pages bigint[],
    _users uuid[],
    _gives boolean[],      -- whether the like is given
    _times timestamptz[],  -- when it happened; NULL: now, and after everything before it
    _now timestamptz,
    OUT deltas int[]       -- for each change how it moved the page's likes: -1, 0 or 1
) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    _likes int[];               -- for each change the place of its like among those below
    _like_pages bigint[];       -- each like once
    _like_users uuid[];
    _liked_at timestamptz[];    -- as it is so far
    _decided_at timestamptz[];
    _was_liked_at timestamptz[];
    _like int;
    _at timestamptz;
    _before timestamptz;
BEGIN
    SELECT array_agg(c.number ORDER BY c.place) INTO _likes
    FROM (SELECT u.place, dense_rank() OVER (ORDER BY u.page_id, u.user_id)::int AS number
          FROM unnest(_pages, _users) WITH ORDINALITY AS u(page_id, user_id, place)) c;
    SELECT array_agg(k.page_id ORDER BY k.page_id, k.user_id), array_agg(k.user_id ORDER BY k.page_id, k.user_id),
           array_agg(l.liked_at ORDER BY k.page_id, k.user_id), array_agg(l.decided_at ORDER BY k.page_id, k.user_id)
    INTO _like_pages, _like_users, _liked_at, _decided_at
    FROM (SELECT DISTINCT u.page_id, u.user_id FROM unnest(_pages, _users) AS u(page_id, user_id)) k
    LEFT JOIN page_likes l ON l.tenant_id = _tenant AND l.page_id = k.page_id AND l.user_id = k.user_id;
    _was_liked_at := _liked_at;
    FOR _place IN 1 .. cardinality(_likes) LOOP
        _like := _likes[_place];
        _before := _liked_at[_like];
        _at := COALESCE(_times[_place], GREATEST(_now, _decided_at[_like] + interval '1 microsecond'));
        IF _decided_at[_like] IS NULL OR _at >= _decided_at[_like] THEN
            -- The newest event decides; a newer like of a liked page keeps its time.
            _liked_at[_like] := CASE WHEN _gives[_place] THEN COALESCE(_before, _at) END;
            _decided_at[_like] := _at;
        ELSIF NOT _gives[_place] AND _before <= _at THEN
            -- An unlike that arrives late, between two likes: the page is liked since the second.
            _liked_at[_like] := _decided_at[_like];
        END IF;
        deltas[_place] := (_liked_at[_like] IS NOT NULL)::int - (_before IS NOT NULL)::int;
    END LOOP;
    INSERT INTO page_likes AS l (tenant_id, page_id, user_id, liked_at, decided_at)
    SELECT t.id, n.page_id, n.user_id, n.liked_at, n.decided_at
    FROM tenants t CROSS JOIN unnest(_like_pages, _like_users, _liked_at, _decided_at)
         AS n(page_id, user_id, liked_at, decided_at)
    WHERE t.id = _tenant ORDER BY n.page_id, n.user_id
    ON CONFLICT (tenant_id, page_id, user_id)
    DO UPDATE SET liked_at = EXCLUDED.liked_at, decided_at = EXCLUDED.decided_at
    WHERE (l.liked_at, l.decided_at) IS DISTINCT FROM (EXCLUDED.liked_at, EXCLUDED.decided_at);
    UPDATE page_counters c SET likes = c.likes + m.likes
    FROM (SELECT p.page_id, sum(p.move) AS likes FROM unnest(_pages, deltas) AS p(page_id, move)
          GROUP BY p.page_id HAVING sum(p.move) <> 0) m
    WHERE c.tenant_id = _tenant AND c.page_id = m.page_id;
    INSERT INTO outbox (tenant_id, kind, member, hour)
    SELECT t.id, 'page', n.page_id::text,
           CASE WHEN bool_and(n.was_liked_at IS NULL) AND min(n.hour) = max(n.hour) THEN min(n.hour) END
    FROM tenants t CROSS JOIN (
        SELECT l.*, date_trunc('hour', l.liked_at, 'UTC') AS hour
        FROM unnest(_like_pages, _liked_at, _was_liked_at) AS l(page_id, liked_at, was_liked_at)) n
    WHERE t.id = _tenant AND n.liked_at IS DISTINCT FROM n.was_liked_at GROUP BY t.id, n.page_id;
END $$
"""

# As in 0012, but for the hour in the outbox.
WRITE_EVENTS = """
CREATE OR REPLACE FUNCTION write_events(
    _tenant text,
    _names text[],         -- the pages named, each once
    _items int[],          -- for each event the place of its page in _names
    _hours int[],          -- and the hour it happened, since 1970
    _keys uuid[],          -- and its id, or NULL
    _views boolean[],      -- and whether it is a view
    _clients text[],       -- the tokens shown
    _jtis text[],
    _now timestamptz,
    _likes int[],          -- the places of the events that give or take back a like
    _gives boolean[],      -- for each of them: whether it is given
    _times timestamptz[],  -- and when it happened; NULL: now
    _user_names text[],    -- and its user, by external id
    _user_ids uuid[],      -- or by our id
    _room bigint,          -- how many users may be created
    _reasons text[],       -- why events were refused before they came here
    _refused bigint[],     -- and how many
    _is_last boolean,      -- whether to count rejections; else the caller does, after what it writes next
    OUT invalid_tokens text[], -- the tokens that are no longer valid; if there are any, nothing was written
    OUT page_ids bigint[],     -- for each name the page's id, or NULL
    OUT accepted int[],        -- the places of the events that are neither duplicates nor of an unknown page
    OUT page_likes bigint[],   -- for each name how many liked the page before
    OUT like_places int[],     -- the places of the likes that were applied
    OUT like_deltas int[],     -- and how each moved the page's likes
    OUT limited int[],         -- the places of likes whose user was not created, since there is no room
    OUT erased int[],          -- and of those whose user does not exist any more
    OUT created_users bigint
) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    _locked bigint[];
    _wanted text[];
    _found uuid[];
    _present uuid[];
    _applied record;
BEGIN
    created_users := 0;
    SELECT array_agg(t.jti) INTO invalid_tokens FROM unnest(_clients, _jtis) AS t(client_id, jti)
    WHERE NOT EXISTS (SELECT FROM oauth_clients c
                      WHERE c.tenant_id = _tenant AND c.id = t.client_id AND c.revoked_at IS NULL)
       OR NOT EXISTS (SELECT FROM tenants o WHERE o.id = _tenant AND o.deleted_at IS NULL)
       OR EXISTS (SELECT FROM revoked_tokens r WHERE r.tenant_id = _tenant AND r.jti = t.jti);
    IF invalid_tokens IS NOT NULL THEN
        RETURN;
    END IF;

    SELECT array_agg((SELECT p.id FROM pages p WHERE p.tenant_id = _tenant AND p.external_id = n.name) ORDER BY n.place)
    INTO page_ids FROM unnest(_names) WITH ORDINALITY AS n(name, place);
    SELECT array_agg(h.page_id) INTO _locked
    FROM (SELECT c.page_id FROM page_counters c WHERE c.tenant_id = _tenant AND c.page_id = ANY(page_ids)
          ORDER BY c.page_id FOR UPDATE) h;
    IF COALESCE(cardinality(_locked), 0) < cardinality(array_remove(page_ids, NULL)) THEN  -- some were just deleted
        SELECT array_agg(CASE WHEN i.id = ANY(_locked) THEN i.id END ORDER BY i.place)
        INTO page_ids FROM unnest(page_ids) WITH ORDINALITY AS i(id, place);
    END IF;

    WITH item AS MATERIALIZED (
        SELECT i.place, page_ids[i.item] AS page_id, to_timestamp(i.hour * 3600.0) AS bucket_hour, i.key, i.is_view
        FROM unnest(_items, _hours, _keys, _views) WITH ORDINALITY AS i(item, hour, key, is_view, place)
        WHERE page_ids[i.item] IS NOT NULL
    ), first AS MATERIALIZED (
        SELECT DISTINCT ON (key) key, place FROM item WHERE key IS NOT NULL ORDER BY key, place
    ), remembered AS (
        INSERT INTO seen_events AS s (tenant_id, event_key, seen_on)
        SELECT _tenant, key, (_now AT TIME ZONE 'UTC')::date FROM first ORDER BY key
        ON CONFLICT (tenant_id, event_key) DO UPDATE SET seen_on = EXCLUDED.seen_on
        WHERE s.seen_on < EXCLUDED.seen_on
        RETURNING event_key, xmax = 0 AS is_new
    ), new AS MATERIALIZED (
        SELECT place, page_id, bucket_hour, is_view FROM item
        WHERE key IS NULL
           OR (key IN (SELECT event_key FROM remembered WHERE is_new) AND place IN (SELECT f.place FROM first f))
    ), counted AS (
        INSERT INTO page_views_hour AS b (tenant_id, page_id, bucket_hour, views)
        SELECT t.id, n.page_id, n.bucket_hour, count(*)
        FROM tenants t CROSS JOIN new n WHERE t.id = _tenant AND n.is_view
        GROUP BY t.id, n.page_id, n.bucket_hour ORDER BY n.page_id, n.bucket_hour
        ON CONFLICT (tenant_id, page_id, bucket_hour) DO UPDATE SET views = b.views + EXCLUDED.views
    ), marked AS (
        INSERT INTO outbox (tenant_id, kind, member, hour)
        SELECT t.id, 'page', n.page_id::text,
               CASE WHEN min(n.bucket_hour) = max(n.bucket_hour) THEN min(n.bucket_hour) END
        FROM tenants t CROSS JOIN new n WHERE t.id = _tenant AND n.is_view GROUP BY t.id, n.page_id
    ), summed AS (
        UPDATE page_counters c SET views = c.views + n.views
        FROM (SELECT page_id, count(*) AS views FROM new WHERE is_view GROUP BY page_id) n
        WHERE c.tenant_id = _tenant AND c.page_id = n.page_id
    )
    SELECT array_agg(place) INTO accepted FROM new;

    IF cardinality(_likes) > 0 THEN
        -- Only users of likes that are accepted: a duplicate, or a like of an unknown page, creates none.
        SELECT array_agg(DISTINCT l.name) INTO _wanted FROM unnest(_likes, _user_names) AS l(place, name)
        WHERE l.name IS NOT NULL AND l.place = ANY(accepted);
        IF _wanted IS NOT NULL THEN
            SELECT e.ids, e.created INTO _found, created_users FROM ensure_users(_tenant, _wanted, _room, _now) e;
        END IF;
        SELECT array_agg(h.id) INTO _present
        FROM (SELECT u.id FROM users u
              WHERE u.tenant_id = _tenant AND u.id = ANY(_found || _user_ids) AND u.erased_at IS NULL
              ORDER BY u.id FOR KEY SHARE) h;
        SELECT array_agg((SELECT c.likes FROM page_counters c WHERE c.tenant_id = _tenant AND c.page_id = i.id)
                         ORDER BY i.place)
        INTO page_likes FROM unnest(page_ids) WITH ORDINALITY AS i(id, place);
        SELECT array_agg(l.place ORDER BY l.place) FILTER (WHERE l.is_present) AS places,
               array_agg(l.page_id ORDER BY l.place) FILTER (WHERE l.is_present) AS pages,
               array_agg(l.user_id ORDER BY l.place) FILTER (WHERE l.is_present) AS users,
               array_agg(l.gives ORDER BY l.place) FILTER (WHERE l.is_present) AS gives,
               array_agg(l.at ORDER BY l.place) FILTER (WHERE l.is_present) AS times,
               array_agg(l.place) FILTER (WHERE l.user_id IS NULL) AS limited,
               array_agg(l.place) FILTER (WHERE l.user_id IS NOT NULL AND NOT l.is_present) AS erased
        INTO _applied
        FROM (SELECT c.place, page_ids[_items[c.place]] AS page_id, COALESCE(c.id, f.id) AS user_id, c.gives, c.at,
                     COALESCE(COALESCE(c.id, f.id) = ANY(_present), false) AS is_present
              FROM unnest(_likes, _gives, _times, _user_names, _user_ids) AS c(place, gives, at, name, id)
              LEFT JOIN unnest(_wanted, _found) AS f(name, id) ON f.name = c.name
              WHERE c.place = ANY(accepted)) l;
        like_places := _applied.places;
        limited := _applied.limited;
        erased := _applied.erased;
        IF like_places IS NOT NULL THEN
            like_deltas := apply_likes(
                _tenant, _applied.pages, _applied.users, _applied.gives, _applied.times, _now);
        END IF;
        IF limited IS NOT NULL OR erased IS NOT NULL THEN  -- forgotten, so that they can be sent again
            DELETE FROM seen_events s WHERE s.tenant_id = _tenant AND s.event_key IN
                (SELECT _keys[r.place] FROM unnest(limited || erased) AS r(place));
            _reasons := _reasons || ARRAY['limited', 'invalid'];
            _refused := _refused
                || ARRAY[COALESCE(cardinality(limited), 0), COALESCE(cardinality(erased), 0)]::bigint[];
        END IF;
    END IF;

    IF NOT _is_last THEN
        RETURN;
    END IF;
    IF array_position(page_ids, NULL) IS NOT NULL THEN
        _reasons := _reasons || 'unknown_page'::text;
        _refused := _refused || (SELECT count(*) FROM unnest(_items) AS i(item) WHERE page_ids[i.item] IS NULL);
    END IF;
    IF cardinality(_reasons) > 0 THEN
        PERFORM count_rejections(_tenant, _now, _reasons, _refused);
    END IF;
END $$
"""


def upgrade() -> None:
    index_values_only()  # first: it takes long, and the outbox must not be locked meanwhile
    op.execute(READ_CLAIM_FACTS)
    op.execute("REVOKE EXECUTE ON FUNCTION read_claim_facts FROM PUBLIC")
    op.execute(f"GRANT EXECUTE ON FUNCTION read_claim_facts TO {SERVICE_ROLE}")
    op.add_column("outbox", sa.Column("hour", sa.DateTime(timezone=True)))
    op.execute(WRITE_EVENTS)
    op.execute(APPLY_LIKES)


def index_values_only() -> None:
    """Most ledger entries have neither of these columns, but had an entry in each index."""
    for name, columns in {
        "uq_score_ledger_once_key": ["tenant_id", "account", "once_key"],
        "uq_score_ledger_reverses": ["tenant_id", "reverses"],
    }.items():
        op.drop_index(name)
        where = sa.text(f"{columns[-1]} IS NOT NULL")
        op.create_index(name, "score_ledger", columns, unique=True, postgresql_where=where)
