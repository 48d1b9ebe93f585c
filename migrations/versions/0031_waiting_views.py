"""A view waits for no page's counter: where another transaction has locked it, the view becomes a row of the outbox.

Such a row (kind `views`) says how much is to be added to which hour of which page; the projection adds it
(`count_waiting_views`) before it computes. So a page that several nodes get views of makes none of them wait.
A like still waits for the counter, since its answer has the exact count.

Visitors are no longer protected by the lock on the page's counter. So their rows are written in one order (page, day,
visitor), then those of their networks; and a page that is about to be deleted is unknown.

The release before never reads rows of this kind: they wait until a worker of this release runs. Do not go back to that
release while there are some.
"""

import sqlalchemy as sa
from alembic import op

from migrations.functions import change_function
from tenants.db import SERVICE_ROLE

revision = "0031"
down_revision = "0030"

# What is counted, by whoever has locked the pages' counters: hours, totals, and the mark for the projection.
ADD_VIEWS = """
CREATE FUNCTION add_views(
    _tenant text, _pages bigint[], _buckets timestamptz[], _views bigint[], _visitors bigint[]
) RETURNS void LANGUAGE plpgsql SET plan_cache_mode TO 'force_generic_plan' AS $$
DECLARE
    _ids bigint[];
BEGIN
    INSERT INTO page_views_hour AS b (tenant_id, page_id, bucket_hour, views, visitors)
    SELECT t.id, n.page_id, n.bucket_hour, n.views, n.visitors
    FROM tenants t CROSS JOIN unnest(_pages, _buckets, _views, _visitors) AS n(page_id, bucket_hour, views, visitors)
    WHERE t.id = _tenant ORDER BY n.page_id, n.bucket_hour
    ON CONFLICT (tenant_id, page_id, bucket_hour)
    DO UPDATE SET views = b.views + EXCLUDED.views, visitors = b.visitors + EXCLUDED.visitors;
    SELECT array_agg(nextval('outbox_id_seq')) INTO _ids FROM unnest(_pages);
    INSERT INTO outbox (tenant_id, id, kind, member, hour) OVERRIDING SYSTEM VALUE
    SELECT t.id, min(n.id), 'page', n.page_id::text,
           CASE WHEN min(n.bucket_hour) = max(n.bucket_hour) THEN min(n.bucket_hour) END
    FROM tenants t CROSS JOIN unnest(_ids, _pages, _buckets) AS n(id, page_id, bucket_hour)
    WHERE t.id = _tenant GROUP BY t.id, n.page_id;
    UPDATE page_counters c SET views = c.views + n.views, visitors = c.visitors + n.visitors
    FROM (SELECT p.page_id, sum(p.views) AS views, sum(p.visitors) AS visitors
          FROM unnest(_pages, _views, _visitors) AS p(page_id, views, visitors) GROUP BY p.page_id) n
    WHERE c.tenant_id = _tenant AND c.page_id = n.page_id;
END $$
"""

# By one transaction of a tenant at a time. Without a page: of all pages whose counters nobody has locked; with one, it
# waits for that counter. Rows of pages that were deleted meanwhile go without being counted.
COUNT_WAITING_VIEWS = """
CREATE FUNCTION count_waiting_views(
    _tenant text, _page bigint, _max int, OUT counted_rows int, OUT locked_pages bigint[]
) LANGUAGE plpgsql SET plan_cache_mode TO 'force_generic_plan' AS $$
DECLARE
    _wanted bigint[];
    _ours bigint[];
    _members text[];
    _rows record;
    _sums record;
BEGIN
    SELECT array_agg(DISTINCT o.member::bigint) INTO _wanted FROM outbox o
    WHERE o.tenant_id = _tenant AND o.kind = 'views' AND (_page IS NULL OR o.member = _page::text);
    counted_rows := 0;
    IF _wanted IS NULL THEN
        RETURN;
    END IF;
    IF _page IS NULL THEN
        SELECT array_agg(h.page_id) INTO _ours
        FROM (SELECT c.page_id FROM page_counters c WHERE c.tenant_id = _tenant AND c.page_id = ANY(_wanted)
              ORDER BY c.page_id FOR UPDATE SKIP LOCKED) h;
    ELSE
        SELECT array_agg(h.page_id) INTO _ours
        FROM (SELECT c.page_id FROM page_counters c WHERE c.tenant_id = _tenant AND c.page_id = _page FOR UPDATE) h;
    END IF;
    SELECT array_agg(c.page_id) INTO locked_pages FROM page_counters c
    LEFT JOIN unnest(_ours) AS o(page_id) ON o.page_id = c.page_id
    WHERE c.tenant_id = _tenant AND c.page_id = ANY(_wanted) AND o.page_id IS NULL;
    SELECT array_agg(w.page_id::text) INTO _members FROM unnest(_wanted) AS w(page_id)
    LEFT JOIN unnest(locked_pages) AS l(page_id) ON l.page_id = w.page_id WHERE l.page_id IS NULL;
    SELECT array_agg(w.id) AS ids, array_agg(w.page_id) AS pages, array_agg(w.hour) AS buckets,
           array_agg(w.views) AS views, array_agg(w.visitors) AS visitors
    INTO _rows
    FROM (SELECT o.id, o.member::bigint AS page_id, o.hour, o.views, o.visitors FROM outbox o
          WHERE o.tenant_id = _tenant AND o.kind = 'views' AND o.member = ANY(_members) ORDER BY o.id LIMIT _max) w;
    IF _rows.ids IS NULL THEN
        RETURN;
    END IF;
    SELECT array_agg(s.page_id) AS pages, array_agg(s.bucket_hour) AS buckets, array_agg(s.views) AS views,
           array_agg(s.visitors) AS visitors
    INTO _sums
    FROM (SELECT w.page_id, w.bucket_hour, sum(w.views)::bigint AS views, sum(w.visitors)::bigint AS visitors
          FROM unnest(_rows.pages, _rows.buckets, _rows.views, _rows.visitors)
               AS w(page_id, bucket_hour, views, visitors)
          JOIN unnest(_ours) AS o(page_id) ON o.page_id = w.page_id GROUP BY w.page_id, w.bucket_hour) s;
    IF _sums.pages IS NOT NULL THEN
        PERFORM add_views(_tenant, _sums.pages, _sums.buckets, _sums.views, _sums.visitors);
    END IF;
    DELETE FROM outbox o WHERE o.tenant_id = _tenant AND o.id = ANY(_rows.ids);
    counted_rows := cardinality(_rows.ids);
END $$
"""

WRITE_PAGE_EVENTS = {
    "    _locked bigint[];\n": """    _liked bigint[];
    _locked bigint[];      -- the pages whose counters are ours
    _existing bigint[];
    _is_contended boolean;
""",
    """    _ids bigint[];
    _firsts int[];
""": """    _firsts int[];
""",
    """    SELECT array_agg(h.page_id) INTO _locked
    FROM (SELECT c.page_id FROM page_counters c WHERE c.tenant_id = _tenant AND c.page_id = ANY(page_ids)
          ORDER BY c.page_id FOR UPDATE) h;
    IF COALESCE(cardinality(_locked), 0) < cardinality(array_remove(page_ids, NULL)) THEN  -- some were just deleted
        SELECT array_agg(CASE WHEN i.id = ANY(_locked) THEN i.id END ORDER BY i.place)
        INTO page_ids FROM unnest(page_ids) WITH ORDINALITY AS i(id, place);
    END IF;
""": """    -- Those that are liked first, and waiting for them: what follows waits for no counter.
    IF cardinality(_likes) > 0 THEN
        SELECT array_agg(page_ids[_items[l.place]]) INTO _liked FROM unnest(_likes) AS l(place);
        PERFORM FROM page_counters c WHERE c.tenant_id = _tenant AND c.page_id = ANY(_liked)
        ORDER BY c.page_id FOR UPDATE;
    END IF;
    SELECT COALESCE(array_agg(h.page_id), '{}') INTO _locked
    FROM (SELECT c.page_id FROM page_counters c WHERE c.tenant_id = _tenant AND c.page_id = ANY(page_ids)
          ORDER BY c.page_id FOR UPDATE SKIP LOCKED) h;
    IF cardinality(_locked) < cardinality(array_remove(page_ids, NULL)) THEN
        -- The others have been locked, or deleted. A new visitor locks the page, which must not wait for its deletion.
        SELECT array_agg(c.page_id) INTO _existing FROM page_counters c
        WHERE c.tenant_id = _tenant AND c.page_id = ANY(page_ids);
        IF cardinality(_visits) > 0 THEN
            SELECT array_agg(h.id) INTO _existing
            FROM (SELECT p.id FROM pages p WHERE p.tenant_id = _tenant AND p.id = ANY(_existing)
                  ORDER BY p.id FOR KEY SHARE SKIP LOCKED) h;
        END IF;
        SELECT array_agg(p.id ORDER BY i.place) INTO page_ids
        FROM unnest(page_ids) WITH ORDINALITY AS i(id, place) LEFT JOIN unnest(_existing) AS p(id) ON p.id = i.id;
    END IF;
    _is_contended := cardinality(_locked) < cardinality(array_remove(page_ids, NULL));
""",
    """
    SELECT array_agg(n.page_id), array_agg(n.bucket_hour), array_agg(n.views), array_agg(n.visitors),
           array_agg(nextval('outbox_id_seq'))
    INTO _pages, _buckets, _counts, _first_counts, _ids
    FROM (SELECT""": """
    SELECT array_agg(n.page_id), array_agg(n.bucket_hour), array_agg(n.views), array_agg(n.visitors)
    INTO _pages, _buckets, _counts, _first_counts
    FROM (SELECT""",
    """    IF _pages IS NOT NULL THEN
        INSERT INTO page_views_hour AS b (tenant_id, page_id, bucket_hour, views, visitors)
        SELECT t.id, n.page_id, n.bucket_hour, n.views, n.visitors
        FROM tenants t CROSS JOIN
             unnest(_pages, _buckets, _counts, _first_counts) AS n(page_id, bucket_hour, views, visitors)
        WHERE t.id = _tenant ORDER BY n.page_id, n.bucket_hour
        ON CONFLICT (tenant_id, page_id, bucket_hour)
        DO UPDATE SET views = b.views + EXCLUDED.views, visitors = b.visitors + EXCLUDED.visitors;
        INSERT INTO outbox (tenant_id, id, kind, member, hour) OVERRIDING SYSTEM VALUE
        SELECT t.id, min(n.id), 'page', n.page_id::text,
               CASE WHEN min(n.bucket_hour) = max(n.bucket_hour) THEN min(n.bucket_hour) END
        FROM tenants t CROSS JOIN unnest(_ids, _pages, _buckets) AS n(id, page_id, bucket_hour)
        WHERE t.id = _tenant GROUP BY t.id, n.page_id;
        UPDATE page_counters c SET views = c.views + n.views, visitors = c.visitors + n.visitors
        FROM (SELECT p.page_id, sum(p.views) AS views, sum(p.visitors) AS visitors
              FROM unnest(_pages, _counts, _first_counts) AS p(page_id, views, visitors) GROUP BY p.page_id) n
        WHERE c.tenant_id = _tenant AND c.page_id = n.page_id;
    END IF;
""": """    IF _is_contended AND _pages IS NOT NULL THEN
        PERFORM add_waiting_views(_tenant, w.pages, w.buckets, w.views, w.visitors)
        FROM (SELECT array_agg(n.page_id) AS pages, array_agg(n.bucket_hour) AS buckets, array_agg(n.views) AS views,
                     array_agg(n.visitors) AS visitors
              FROM unnest(_pages, _buckets, _counts, _first_counts) AS n(page_id, bucket_hour, views, visitors)
              LEFT JOIN unnest(_locked) AS l(page_id) ON l.page_id = n.page_id WHERE l.page_id IS NULL) w;
        SELECT array_agg(n.page_id), array_agg(n.bucket_hour), array_agg(n.views), array_agg(n.visitors)
        INTO _pages, _buckets, _counts, _first_counts
        FROM unnest(_pages, _buckets, _counts, _first_counts) AS n(page_id, bucket_hour, views, visitors)
        JOIN unnest(_locked) AS l(page_id) ON l.page_id = n.page_id;
    END IF;
    IF _pages IS NOT NULL THEN
        PERFORM add_views(_tenant, _pages, _buckets, _counts, _first_counts);
    END IF;
""",
}

# For pages whose counters others have locked.
ADD_WAITING_VIEWS = """
CREATE FUNCTION add_waiting_views(
    _tenant text, _pages bigint[], _buckets timestamptz[], _views bigint[], _visitors bigint[]
) RETURNS void LANGUAGE plpgsql SET plan_cache_mode TO 'force_generic_plan' AS $$
DECLARE
    _ids bigint[];
BEGIN
    SELECT array_agg(nextval('outbox_id_seq')) INTO _ids FROM unnest(_pages);
    INSERT INTO outbox (tenant_id, id, kind, member, hour, views, visitors) OVERRIDING SYSTEM VALUE
    SELECT t.id, n.id, 'views', n.page_id::text, n.bucket_hour, n.views, n.visitors
    FROM tenants t CROSS JOIN unnest(_ids, _pages, _buckets, _views, _visitors)
         AS n(id, page_id, bucket_hour, views, visitors)
    WHERE t.id = _tenant;
END $$
"""

# Loads and views that a server names the visitor of may be of the same visitors, so one loop writes both.
ADMIT_VISITS = """
CREATE OR REPLACE FUNCTION admit_visits(
    _tenant text, _places int[], _pages bigint[], _days date[], _visitors uuid[], _networks uuid[], _loads boolean[],
    _max_loads int, _max_visitors int, _now timestamptz, OUT firsts int[], OUT repeats int[], OUT crowded int[]
) LANGUAGE plpgsql SET plan_cache_mode TO 'force_generic_plan' AS $$
DECLARE
    _visit record;
    _is_new boolean;
    _no_repeat timestamptz := _now - interval '10 seconds';  -- here, since a distributed statement must not subtract
BEGIN
    IF NOT true = ANY(_loads) THEN
        firsts := add_named_visitors(_tenant, _places, _pages, _days, _visitors);
        RETURN;
    END IF;
    FOR _visit IN
        SELECT v.* FROM unnest(_places, _pages, _days, _visitors, _networks, _loads)
             AS v(place, page_id, day, visitor, network, is_load) ORDER BY v.page_id, v.day, v.visitor, v.place
    LOOP
        IF NOT _visit.is_load THEN
            INSERT INTO page_visitors (tenant_id, page_id, day, visitor, is_named, loads, loaded_at)
            VALUES (_tenant, _visit.page_id, _visit.day, _visit.visitor, true, 0, '-infinity')
            ON CONFLICT (tenant_id, page_id, day, visitor) DO NOTHING;
            IF FOUND THEN
                firsts := firsts || _visit.place;
            END IF;
            CONTINUE;
        END IF;
        -- Most of those who are too many are refused without writing anything.
        PERFORM FROM page_visitors v WHERE v.tenant_id = _tenant AND v.page_id = _visit.page_id
                                       AND v.day = _visit.day AND v.visitor = _visit.visitor;
        IF NOT FOUND THEN
            PERFORM FROM page_visitor_networks n WHERE n.tenant_id = _tenant AND n.page_id = _visit.page_id
                AND n.day = _visit.day AND n.network = _visit.network AND n.visitors >= _max_visitors;
            IF FOUND THEN
                crowded := crowded || _visit.place;
                CONTINUE;
            END IF;
        END IF;
        _is_new := NULL;
        INSERT INTO page_visitors AS v (tenant_id, page_id, day, visitor, is_named, loads, loaded_at)
        VALUES (_tenant, _visit.page_id, _visit.day, _visit.visitor, _visit.network IS NULL, 1, _now)
        ON CONFLICT (tenant_id, page_id, day, visitor) DO UPDATE SET loads = v.loads + 1, loaded_at = EXCLUDED.loaded_at
        WHERE v.loads < _max_loads AND v.loaded_at <= _no_repeat
        RETURNING xmax = 0 INTO _is_new;
        IF _is_new IS NULL THEN
            repeats := repeats || _visit.place;
        ELSIF _is_new THEN
            firsts := firsts || _visit.place;
        END IF;
    END LOOP;

    -- Then the networks of new visitors, in an order too.
    FOR _visit IN
        SELECT v.* FROM unnest(_places, _pages, _days, _visitors, _networks) AS v(place, page_id, day, visitor, network)
        WHERE v.network IS NOT NULL AND v.place = ANY(firsts) ORDER BY v.page_id, v.day, v.network, v.place
    LOOP
        INSERT INTO page_visitor_networks AS n (tenant_id, page_id, day, network, visitors)
        VALUES (_tenant, _visit.page_id, _visit.day, _visit.network, 1)
        ON CONFLICT (tenant_id, page_id, day, network) DO UPDATE SET visitors = n.visitors + 1
        WHERE n.visitors < _max_visitors;
        IF NOT FOUND THEN
            DELETE FROM page_visitors v WHERE v.tenant_id = _tenant AND v.page_id = _visit.page_id
                                          AND v.day = _visit.day AND v.visitor = _visit.visitor;
            -- With the repeats of the same visitor in this transaction.
            crowded := crowded || ARRAY(
                SELECT v.place FROM unnest(_places, _pages, _days, _visitors) AS v(place, page_id, day, visitor)
                WHERE (v.page_id, v.day, v.visitor) = (_visit.page_id, _visit.day, _visit.visitor));
        END IF;
    END LOOP;
    IF crowded IS NOT NULL THEN
        firsts := ARRAY(SELECT f.place FROM unnest(firsts) AS f(place) WHERE f.place <> ALL(crowded));
        repeats := ARRAY(SELECT r.place FROM unnest(repeats) AS r(place) WHERE r.place <> ALL(crowded));
    END IF;
END $$
"""

# The visitors whom a server names, where no browser's are among them: all by one statement.
ADD_NAMED_VISITORS = """
CREATE FUNCTION add_named_visitors(
    _tenant text, _places int[], _pages bigint[], _days date[], _visitors uuid[], OUT firsts int[]
) LANGUAGE plpgsql SET plan_cache_mode TO 'force_generic_plan' AS $$
DECLARE
    _visit record;
    _first_places int[];    -- the first view of each visitor and day
    _first_pages bigint[];
    _first_days date[];
    _first_visitors uuid[];
    _pages_added bigint[] := '{}';
    _days_added date[] := '{}';
    _visitors_added uuid[] := '{}';
BEGIN
    SELECT array_agg(n.place), array_agg(n.page_id), array_agg(n.day), array_agg(n.visitor)
    INTO _first_places, _first_pages, _first_days, _first_visitors FROM (
        SELECT DISTINCT ON (v.page_id, v.day, v.visitor) v.page_id, v.day, v.visitor, v.place
        FROM unnest(_places, _pages, _days, _visitors) AS v(place, page_id, day, visitor)
        ORDER BY v.page_id, v.day, v.visitor, v.place) n;
    FOR _visit IN
        INSERT INTO page_visitors AS n (tenant_id, page_id, day, visitor, is_named, loads, loaded_at)
        SELECT t.id, v.page_id, v.day, v.visitor, true, 0, '-infinity'
        FROM tenants t CROSS JOIN unnest(_first_pages, _first_days, _first_visitors) AS v(page_id, day, visitor)
        WHERE t.id = _tenant ORDER BY v.page_id, v.day, v.visitor
        ON CONFLICT (tenant_id, page_id, day, visitor) DO NOTHING
        RETURNING page_id, day, visitor
    LOOP
        _pages_added := _pages_added || _visit.page_id;
        _days_added := _days_added || _visit.day;
        _visitors_added := _visitors_added || _visit.visitor;
    END LOOP;
    SELECT array_agg(v.place) INTO firsts
    FROM unnest(_first_places, _first_pages, _first_days, _first_visitors) AS v(place, page_id, day, visitor)
    JOIN unnest(_pages_added, _days_added, _visitors_added) AS a(page_id, day, visitor) USING (page_id, day, visitor);
END $$
"""

NEW_FUNCTIONS = {
    "add_views": ADD_VIEWS,
    "add_waiting_views": ADD_WAITING_VIEWS,
    "count_waiting_views": COUNT_WAITING_VIEWS,
    "add_named_visitors": ADD_NAMED_VISITORS,
}


def upgrade() -> None:
    op.add_column("outbox", sa.Column("views", sa.BigInteger()))
    op.add_column("outbox", sa.Column("visitors", sa.BigInteger()))
    waiting = sa.text("kind = 'views'")
    op.create_index("ix_outbox_views", "outbox", ["tenant_id", "id"], postgresql_where=waiting)
    for name, function in NEW_FUNCTIONS.items():
        op.execute(function)
        op.execute(f"REVOKE EXECUTE ON FUNCTION {name} FROM PUBLIC")
        op.execute(f"GRANT EXECUTE ON FUNCTION {name} TO {SERVICE_ROLE}")
    op.execute(ADMIT_VISITS)
    change_function("write_page_events", WRITE_PAGE_EVENTS)
