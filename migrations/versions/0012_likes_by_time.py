"""Likes by the time they happened, and the function that writes all views and likes of a tenant in a commit.

Renames a column, so processes of the release before must be stopped first.
"""

import sqlalchemy as sa
from alembic import op

from tenants.db import SERVICE_ROLE

revision = "0012"
down_revision = "0011"

TIME = sa.DateTime(timezone=True)

# The ids of a tenant app's own users, created on first sight while there is room.
ENSURE_USERS = """
CREATE FUNCTION ensure_users(
    _tenant text,
    _names text[],         -- external ids, each once
    _room bigint,          -- how many users may be created
    _now timestamptz,
    OUT ids uuid[],        -- for each name the user's id; NULL: there is no room
    OUT created bigint
) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    created := 0;
    SELECT array_agg((SELECT u.id FROM users u WHERE u.tenant_id = _tenant AND u.external_id = n.name) ORDER BY n.place)
    INTO ids FROM unnest(_names) WITH ORDINALITY AS n(name, place);
    IF array_position(ids, NULL) IS NULL OR _room <= 0 THEN
        RETURN;
    END IF;
    INSERT INTO users (tenant_id, id, external_id, created_at, updated_at)
    SELECT t.id, gen_random_uuid(), m.name, _now, _now
    FROM tenants t CROSS JOIN
        (SELECT n.name FROM unnest(_names, ids) AS n(name, id) WHERE n.id IS NULL ORDER BY n.name LIMIT _room) m
    WHERE t.id = _tenant ORDER BY m.name
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS created = ROW_COUNT;
    SELECT array_agg((SELECT u.id FROM users u WHERE u.tenant_id = _tenant AND u.external_id = n.name) ORDER BY n.place)
    INTO ids FROM unnest(_names) WITH ORDINALITY AS n(name, place);
END $$
"""

# Likes given and taken back, in the order of the arrays. The pages' counters are locked by the caller, so nobody else
# changes these rows meanwhile. Of several changes of one like, the first is applied in the first round, the second in
# the second, and so on.
APPLY_LIKES = """
CREATE FUNCTION apply_likes(
    _tenant text,
    _pages bigint[],
    _users uuid[],
    _gives boolean[],      -- whether the like is given
    _times timestamptz[],  -- when it happened; NULL: now, and after everything before it
    _now timestamptz,
    OUT deltas int[]       -- for each change how it moved the page's likes: -1, 0 or 1
) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    _rounds int[];
    _places bigint[] := '{}';
    _moves int[] := '{}';
    _stale bigint[] := '{}';
    _done record;
BEGIN
    SELECT array_agg(r.round ORDER BY r.place) INTO _rounds
    FROM (SELECT c.place, row_number() OVER (PARTITION BY c.page_id, c.user_id ORDER BY c.place)::int AS round
          FROM unnest(_pages, _users) WITH ORDINALITY AS c(page_id, user_id, place)) r;
    FOR _round IN 1 .. COALESCE((SELECT max(r) FROM unnest(_rounds) r), 0) LOOP
        WITH change AS MATERIALIZED (
            SELECT c.place, c.page_id, c.user_id, c.gives, l.liked_at AS was_liked_at, l.decided_at AS was_decided_at,
                   COALESCE(c.at, GREATEST(_now, l.decided_at + interval '1 microsecond')) AS at
            FROM unnest(_pages, _users, _gives, _times, _rounds) WITH ORDINALITY
                 AS c(page_id, user_id, gives, at, round, place)
            LEFT JOIN page_likes l ON l.tenant_id = _tenant AND l.page_id = c.page_id AND l.user_id = c.user_id
            WHERE c.round = _round
        ), decided AS MATERIALIZED (
            SELECT place, page_id, user_id, was_liked_at, GREATEST(at, was_decided_at) AS decided_at,
                   CASE
                       -- The newest event decides; a newer like of a liked page keeps its time.
                       WHEN was_decided_at IS NULL OR at >= was_decided_at THEN
                           CASE WHEN gives THEN COALESCE(was_liked_at, at) END
                       -- An unlike that arrives late, between two likes: the page is liked since the second.
                       WHEN NOT gives AND was_liked_at <= at THEN was_decided_at
                       ELSE was_liked_at
                   END AS liked_at
            FROM change
        ), written AS (
            INSERT INTO page_likes AS l (tenant_id, page_id, user_id, liked_at, decided_at)
            SELECT t.id, d.page_id, d.user_id, d.liked_at, d.decided_at
            FROM tenants t CROSS JOIN decided d WHERE t.id = _tenant ORDER BY d.page_id, d.user_id
            ON CONFLICT (tenant_id, page_id, user_id)
            DO UPDATE SET liked_at = EXCLUDED.liked_at, decided_at = EXCLUDED.decided_at
            WHERE (l.liked_at, l.decided_at) IS DISTINCT FROM (EXCLUDED.liked_at, EXCLUDED.decided_at)
        )
        SELECT array_agg(place) AS places,
               array_agg((liked_at IS NOT NULL)::int - (was_liked_at IS NOT NULL)::int) AS moves,
               array_agg(page_id) FILTER (WHERE liked_at IS DISTINCT FROM was_liked_at) AS stale
        INTO _done FROM decided;
        _places := _places || _done.places;
        _moves := _moves || _done.moves;
        _stale := _stale || _done.stale;
    END LOOP;
    SELECT array_agg(m.move ORDER BY m.place) INTO deltas FROM unnest(_places, _moves) AS m(place, move);
    UPDATE page_counters c SET likes = c.likes + m.likes
    FROM (SELECT p.page_id, sum(p.move) AS likes FROM unnest(_pages, deltas) AS p(page_id, move)
          GROUP BY p.page_id HAVING sum(p.move) <> 0) m
    WHERE c.tenant_id = _tenant AND c.page_id = m.page_id;
    IF cardinality(_stale) > 0 THEN
        INSERT INTO outbox (tenant_id, kind, member)
        SELECT t.id, 'page', s.page_id::text
        FROM tenants t CROSS JOIN (SELECT DISTINCT unnest(_stale) AS page_id) s WHERE t.id = _tenant;
    END IF;
END $$
"""

# How many events were refused, by reason. Always last in a transaction, and in one order.
COUNT_REJECTIONS = """
CREATE FUNCTION count_rejections(_tenant text, _now timestamptz, _reasons text[], _refused bigint[]) RETURNS void
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    INSERT INTO ingest_rejections_hour AS r (tenant_id, bucket_hour, reason, rejected)
    SELECT t.id, date_trunc('hour', _now, 'UTC'), w.reason, sum(w.rejected)
    FROM tenants t CROSS JOIN unnest(_reasons, _refused) AS w(reason, rejected)
    WHERE t.id = _tenant AND w.rejected > 0 GROUP BY t.id, w.reason ORDER BY w.reason
    ON CONFLICT (tenant_id, bucket_hour, reason) DO UPDATE SET rejected = r.rejected + EXCLUDED.rejected;
END $$
"""

# Views and likes of all requests of a tenant in a commit. Counters are locked by page id; then event ids, hourly
# counts, users, likes. Who deletes a page locks its counter first (`analytics.ingest.pages.delete`), so pages need no
# lock. Plans are made once, for any arrays: made for each call they were a third of its cost.
WRITE_EVENTS = """
CREATE FUNCTION write_events(
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
        INSERT INTO outbox (tenant_id, kind, member)
        SELECT DISTINCT t.id, 'page', n.page_id::text
        FROM tenants t CROSS JOIN new n WHERE t.id = _tenant AND n.is_view
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

FUNCTIONS = {
    "ensure_users": ENSURE_USERS,
    "apply_likes": APPLY_LIKES,
    "count_rejections": COUNT_REJECTIONS,
    "write_events": WRITE_EVENTS,
}


def upgrade() -> None:
    date_likes()
    for name, function in FUNCTIONS.items():
        op.execute(function)
        op.execute(f"REVOKE EXECUTE ON FUNCTION {name} FROM PUBLIC")
        op.execute(f"GRANT EXECUTE ON FUNCTION {name} TO {SERVICE_ROLE}")


def date_likes() -> None:
    """`liked_at` is NULL where a like was taken back: the row stays for a while, so that older events are outdated."""
    op.drop_index("ix_page_likes_time")
    op.drop_index("ix_page_likes_page_time")
    op.alter_column("page_likes", "created_at", new_column_name="liked_at", nullable=True)
    op.add_column("page_likes", sa.Column("decided_at", TIME))
    op.execute("UPDATE page_likes SET decided_at = liked_at")
    op.alter_column("page_likes", "decided_at", nullable=False)
    op.add_column("page_likes", sa.Column("liked", sa.Boolean, sa.Computed("liked_at IS NOT NULL", persisted=True)))
    liked, unliked = sa.text("liked_at IS NOT NULL"), sa.text("liked_at IS NULL")
    time = sa.text("(liked_at AT TIME ZONE 'UTC')")
    op.create_index("ix_page_likes_time", "page_likes", ["tenant_id", time, "page_id"], postgresql_where=liked)
    op.create_index(
        "ix_page_likes_page_time", "page_likes", ["tenant_id", "page_id", "liked_at"], postgresql_where=liked
    )
    op.create_index("ix_page_likes_unliked", "page_likes", ["tenant_id", "decided_at"], postgresql_where=unliked)
