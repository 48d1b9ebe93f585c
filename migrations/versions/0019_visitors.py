"""Visitors: counted once for each page and day, in the transaction of their view; readers that a site signs for.

`write_page_events` replaces `write_events`, which the release before calls until it is stopped: its views count no
visitors. `visitor_salts` belongs to no tenant: with the salt of its day, nobody can compute a visitor from an address.
"""

import sqlalchemy as sa
from alembic import op

from migrations import metric_columns
from tenants import rls
from tenants.db import PLATFORM_ROLE, SERVICE_ROLE

revision = "0019"
down_revision = "0018"

WINDOWS = ("1d", "7d", "30d", "all")

# Which of some views are repeats, and which are the first of their visitor. The pages' counters are locked by the
# caller, so nobody else changes rows of these pages meanwhile.
ADMIT_VISITS = """
CREATE FUNCTION admit_visits(
    _tenant text,
    _places int[],         -- the places of the views among the events of the commit
    _pages bigint[],
    _days date[],
    _visitors uuid[],
    _networks uuid[],      -- where they come from; NULL: the visitor has a name, and is not limited by it
    _loads boolean[],      -- whether it is a page load in a browser: a repeat is not counted
    _max_loads int,        -- of a visitor, in a day
    _max_visitors int,     -- of a network, in a day
    _now timestamptz,
    OUT firsts int[],      -- the places of the views that are the first of their visitor that day
    OUT repeats int[],     -- of the loads that are not counted
    OUT crowded int[]      -- and of those from a network that has too many visitors
) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    _visit record;
    _new int[];
BEGIN
    FOR _visit IN
        SELECT v.* FROM unnest(_places, _pages, _days, _visitors, _networks, _loads)
             AS v(place, page_id, day, visitor, network, is_load) WHERE v.is_load ORDER BY v.place
    LOOP
        UPDATE page_visitors v SET loads = v.loads + 1, loaded_at = _now
        WHERE v.tenant_id = _tenant AND v.page_id = _visit.page_id AND v.day = _visit.day
          AND v.visitor = _visit.visitor AND v.loads < _max_loads AND v.loaded_at <= _now - interval '10 seconds';
        CONTINUE WHEN FOUND;
        PERFORM FROM page_visitors v WHERE v.tenant_id = _tenant AND v.page_id = _visit.page_id
                                       AND v.day = _visit.day AND v.visitor = _visit.visitor;
        IF FOUND THEN
            repeats := repeats || _visit.place;
            CONTINUE;
        END IF;
        IF _visit.network IS NOT NULL THEN
            INSERT INTO page_visitor_networks AS n (tenant_id, page_id, day, network, visitors)
            VALUES (_tenant, _visit.page_id, _visit.day, _visit.network, 1)
            ON CONFLICT (tenant_id, page_id, day, network) DO UPDATE SET visitors = n.visitors + 1
            WHERE n.visitors < _max_visitors;
            IF NOT FOUND THEN
                crowded := crowded || _visit.place;
                CONTINUE;
            END IF;
        END IF;
        INSERT INTO page_visitors (tenant_id, page_id, day, visitor, is_named, loads, loaded_at)
        VALUES (_tenant, _visit.page_id, _visit.day, _visit.visitor, _visit.network IS NULL, 1, _now);
        firsts := firsts || _visit.place;
    END LOOP;

    WITH visit AS MATERIALIZED (
        SELECT DISTINCT ON (v.page_id, v.day, v.visitor) v.page_id, v.day, v.visitor, v.place
        FROM unnest(_places, _pages, _days, _visitors, _loads) AS v(place, page_id, day, visitor, is_load)
        WHERE NOT v.is_load ORDER BY v.page_id, v.day, v.visitor, v.place
    ), added AS (
        INSERT INTO page_visitors (tenant_id, page_id, day, visitor, is_named, loads, loaded_at)
        SELECT t.id, v.page_id, v.day, v.visitor, true, 0, '-infinity'
        FROM tenants t CROSS JOIN visit v WHERE t.id = _tenant ORDER BY v.page_id, v.day, v.visitor
        ON CONFLICT (tenant_id, page_id, day, visitor) DO NOTHING
        RETURNING page_id, day, visitor
    )
    SELECT array_agg(v.place) INTO _new FROM visit v JOIN added USING (page_id, day, visitor);
    firsts := firsts || _new;
END $$
"""

# As `write_events` in 0017, with visitors: which events are new, which of them are first visits, then the counts.
WRITE_PAGE_EVENTS = """
CREATE FUNCTION write_page_events(
    _tenant text,
    _names text[],         -- the pages named, each once
    _items int[],          -- for each event the place of its page in _names
    _hours int[],          -- and the hour it happened, since 1970
    _keys uuid[],          -- and its id, or NULL
    _views boolean[],      -- and whether it is a view
    _clients text[],       -- the tokens shown
    _jtis text[],
    _now timestamptz,
    _visits int[],         -- the places of the views whose visitor is known
    _visitors uuid[],      -- for each of them: the visitor
    _networks uuid[],      -- and where they come from; NULL: the visitor has a name
    _loads boolean[],      -- and whether it is a page load in a browser
    _max_loads int,        -- of a visitor and page, in a day
    _max_visitors int,     -- of a network and page, in a day
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
    OUT limited int[],         -- the places of events over a limit: no room for the like's user, too many visitors
    OUT erased int[],          -- and of likes whose user does not exist any more
    OUT created_users bigint
) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    _locked bigint[];
    _firsts int[];
    _repeats int[];
    _crowded int[];
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
        SELECT i.place, i.key FROM unnest(_items, _keys) WITH ORDINALITY AS i(item, key, place)
        WHERE page_ids[i.item] IS NOT NULL
    ), first AS MATERIALIZED (
        SELECT DISTINCT ON (key) key, place FROM item WHERE key IS NOT NULL ORDER BY key, place
    ), remembered AS (
        INSERT INTO seen_events AS s (tenant_id, event_key, seen_on)
        SELECT _tenant, key, (_now AT TIME ZONE 'UTC')::date FROM first ORDER BY key
        ON CONFLICT (tenant_id, event_key) DO UPDATE SET seen_on = EXCLUDED.seen_on
        WHERE s.seen_on < EXCLUDED.seen_on
        RETURNING event_key, xmax = 0 AS is_new
    )
    SELECT array_agg(n.place) INTO accepted FROM (
        SELECT i.place FROM item i WHERE i.key IS NULL
        UNION ALL
        SELECT f.place FROM first f JOIN remembered r ON r.event_key = f.key WHERE r.is_new) n;

    IF cardinality(_visits) > 0 THEN
        SELECT a.firsts, a.repeats, a.crowded INTO _firsts, _repeats, _crowded
        FROM (SELECT array_agg(v.place) AS places, array_agg(page_ids[_items[v.place]]) AS pages,
                     array_agg((to_timestamp(_hours[v.place] * 3600.0) AT TIME ZONE 'UTC')::date) AS days,
                     array_agg(v.visitor) AS visitors, array_agg(v.network) AS networks, array_agg(v.is_load) AS loads
              FROM unnest(_visits, _visitors, _networks, _loads) AS v(place, visitor, network, is_load)
              JOIN unnest(accepted) AS a(place) ON a.place = v.place) n
        CROSS JOIN LATERAL admit_visits(_tenant, n.places, n.pages, n.days, n.visitors, n.networks, n.loads,
                                        _max_loads, _max_visitors, _now) a
        WHERE n.places IS NOT NULL;
        IF _repeats IS NOT NULL OR _crowded IS NOT NULL THEN
            SELECT array_agg(a.place) INTO accepted FROM unnest(accepted) AS a(place)
            WHERE a.place <> ALL(COALESCE(_repeats, '{}') || COALESCE(_crowded, '{}'));
        END IF;
    END IF;

    WITH new AS MATERIALIZED (
        SELECT page_ids[_items[a.place]] AS page_id, to_timestamp(_hours[a.place] * 3600.0) AS bucket_hour,
               f.place IS NOT NULL AS is_first
        FROM unnest(accepted) AS a(place) LEFT JOIN unnest(_firsts) AS f(place) ON f.place = a.place
        WHERE _views[a.place]
    ), counted AS (
        INSERT INTO page_views_hour AS b (tenant_id, page_id, bucket_hour, views, visitors)
        SELECT t.id, n.page_id, n.bucket_hour, count(*), count(*) FILTER (WHERE n.is_first)
        FROM tenants t CROSS JOIN new n WHERE t.id = _tenant
        GROUP BY t.id, n.page_id, n.bucket_hour ORDER BY n.page_id, n.bucket_hour
        ON CONFLICT (tenant_id, page_id, bucket_hour)
        DO UPDATE SET views = b.views + EXCLUDED.views, visitors = b.visitors + EXCLUDED.visitors
    ), marked AS (
        INSERT INTO outbox (tenant_id, kind, member, hour)
        SELECT t.id, 'page', n.page_id::text,
               CASE WHEN min(n.bucket_hour) = max(n.bucket_hour) THEN min(n.bucket_hour) END
        FROM tenants t CROSS JOIN new n WHERE t.id = _tenant GROUP BY t.id, n.page_id
    )
    UPDATE page_counters c SET views = c.views + n.views, visitors = c.visitors + n.visitors
    FROM (SELECT page_id, count(*) AS views, count(*) FILTER (WHERE is_first) AS visitors FROM new GROUP BY page_id) n
    WHERE c.tenant_id = _tenant AND c.page_id = n.page_id;

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
        END IF;
    END IF;
    limited := limited || _crowded;
    IF limited IS NOT NULL OR erased IS NOT NULL THEN
        _reasons := _reasons || ARRAY['limited', 'invalid'];
        _refused := _refused || ARRAY[COALESCE(cardinality(limited), 0), COALESCE(cardinality(erased), 0)]::bigint[];
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
    for statement in metric_columns.page_metric("visitors", "bigint", WINDOWS):
        op.execute(statement)
    for table, column in (
        ("page_views_hour", "visitors"),
        ("page_counters", "visitors"),
        ("page_counters", "visitors_purged"),
    ):
        op.add_column(table, sa.Column(column, sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("publishable_keys", sa.Column("reader_salt", sa.Text, nullable=False, server_default=""))
    create_visitors()
    op.execute(ADMIT_VISITS)
    op.execute(WRITE_PAGE_EVENTS)
    for function in ("admit_visits", "write_page_events"):
        op.execute(f"REVOKE EXECUTE ON FUNCTION {function} FROM PUBLIC")
        op.execute(f"GRANT EXECUTE ON FUNCTION {function} TO {SERVICE_ROLE}")


def create_visitors() -> None:
    op.create_table(
        "page_visitors",
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("page_id", sa.BigInteger, nullable=False),
        sa.Column("day", sa.Date, nullable=False),
        sa.Column("visitor", sa.Uuid, nullable=False),
        sa.Column("is_named", sa.Boolean, nullable=False),
        sa.Column("loads", sa.Integer, nullable=False),
        sa.Column("loaded_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "page_id", "day", "visitor", name=op.f("pk_page_visitors")),
        _of_page(op.f("fk_page_visitors_tenant_id_page_id")),
        postgresql_with={"fillfactor": "80"},
    )
    op.create_index("ix_page_visitors_day", "page_visitors", ["tenant_id", "is_named", "day"])
    op.create_index(
        "ix_page_visitors_named", "page_visitors", ["tenant_id", "visitor"], postgresql_where=sa.text("is_named")
    )
    op.create_table(
        "page_visitor_networks",
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("page_id", sa.BigInteger, nullable=False),
        sa.Column("day", sa.Date, nullable=False),
        sa.Column("network", sa.Uuid, nullable=False),
        sa.Column("visitors", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "page_id", "day", "network", name=op.f("pk_page_visitor_networks")),
        _of_page(op.f("fk_page_visitor_networks_tenant_id_page_id")),
        postgresql_with={"fillfactor": "80"},
    )
    op.create_index("ix_page_visitor_networks_day", "page_visitor_networks", ["tenant_id", "day"])
    for table in ("page_visitors", "page_visitor_networks"):
        for statement in rls.isolate(table):
            op.execute(statement)
    op.create_table(
        "visitor_salts",
        sa.Column("day", sa.Date, nullable=False),
        sa.Column("salt", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("day", name=op.f("pk_visitor_salts")),
    )
    op.execute(f"GRANT SELECT, INSERT ON visitor_salts TO {PLATFORM_ROLE}")


def _of_page(name: str) -> sa.ForeignKeyConstraint:
    key, referred = ["tenant_id", "page_id"], ["pages.tenant_id", "pages.id"]
    return sa.ForeignKeyConstraint(key, referred, name=name, ondelete="CASCADE")
