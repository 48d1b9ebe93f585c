"""Views wait for nobody: where another transaction has locked a page's counter, they become a row of the outbox.

Such a row (kind `views`) says how much is to be added to which hour of which page; the projection adds it
(`count_waiting_views`) before it computes. So a page that several nodes get views of makes none of them wait.
A like still waits for the counter, since its answer has the exact count.

Visitors are no longer protected by the lock on the page's counter. So their rows are written in an order: first those
of all visitors, then those of all networks.

The release before never reads rows of this kind: they wait until a worker of this release runs.
"""

import sqlalchemy as sa
from alembic import op

from migrations.functions import change_function

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

# By one transaction of a tenant at a time. Rows of pages that were deleted meanwhile go without being counted.
COUNT_WAITING_VIEWS = """
CREATE FUNCTION count_waiting_views(_tenant text, _max int) RETURNS int
LANGUAGE plpgsql SET plan_cache_mode TO 'force_generic_plan' AS $$
DECLARE
    _rows bigint[];
    _pages bigint[];
    _buckets timestamptz[];
    _views bigint[];
    _visitors bigint[];
    _present bigint[];
    _sums record;
BEGIN
    SELECT array_agg(w.id), array_agg(w.page_id), array_agg(w.hour), array_agg(w.views), array_agg(w.visitors)
    INTO _rows, _pages, _buckets, _views, _visitors
    FROM (SELECT o.id, o.member::bigint AS page_id, o.hour, o.views, o.visitors FROM outbox o
          WHERE o.tenant_id = _tenant AND o.kind = 'views' ORDER BY o.id LIMIT _max) w;
    IF _rows IS NULL THEN
        RETURN 0;
    END IF;
    SELECT array_agg(h.page_id) INTO _present
    FROM (SELECT c.page_id FROM page_counters c WHERE c.tenant_id = _tenant AND c.page_id = ANY(_pages)
          ORDER BY c.page_id FOR UPDATE) h;
    SELECT array_agg(s.page_id) AS pages, array_agg(s.bucket_hour) AS buckets, array_agg(s.views) AS views,
           array_agg(s.visitors) AS visitors
    INTO _sums
    FROM (SELECT w.page_id, w.bucket_hour, sum(w.views)::bigint AS views, sum(w.visitors)::bigint AS visitors
          FROM unnest(_pages, _buckets, _views, _visitors) AS w(page_id, bucket_hour, views, visitors)
          WHERE w.page_id = ANY(_present) GROUP BY w.page_id, w.bucket_hour) s;
    IF _sums.pages IS NOT NULL THEN
        PERFORM add_views(_tenant, _sums.pages, _sums.buckets, _sums.views, _sums.visitors);
    END IF;
    DELETE FROM outbox o WHERE o.tenant_id = _tenant AND o.id = ANY(_rows);
    RETURN cardinality(_rows);
END $$
"""

WRITE_PAGE_EVENTS = {
    "    _locked bigint[];\n": """    _liked bigint[];
    _locked bigint[];      -- the pages whose counters are ours
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
    IF cardinality(_locked) < cardinality(array_remove(page_ids, NULL)) THEN  -- the others, unless just deleted
        SELECT array_agg((SELECT c.page_id FROM page_counters c WHERE c.tenant_id = _tenant AND c.page_id = i.id)
                         ORDER BY i.place)
        INTO page_ids FROM unnest(page_ids) WITH ORDINALITY AS i(id, place);
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
        PERFORM leave_views(_tenant, w.pages, w.buckets, w.views, w.visitors)
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
LEAVE_VIEWS = """
CREATE FUNCTION leave_views(
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

ADMIT_VISITS = {
    # All visitors in one order, so that no two transactions wait for each other.
    "WHERE v.is_load ORDER BY v.place\n": "WHERE v.is_load ORDER BY v.page_id, v.day, v.visitor, v.place\n",
    """        IF _visit.network IS NOT NULL THEN
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

""": """        PERFORM FROM page_visitor_networks n WHERE n.tenant_id = _tenant AND n.page_id = _visit.page_id
            AND n.day = _visit.day AND n.network = _visit.network AND n.visitors >= _max_visitors;
        IF FOUND THEN
            crowded := crowded || _visit.place;
            CONTINUE;
        END IF;
        INSERT INTO page_visitors (tenant_id, page_id, day, visitor, is_named, loads, loaded_at)
        VALUES (_tenant, _visit.page_id, _visit.day, _visit.visitor, _visit.network IS NULL, 1, _now)
        ON CONFLICT (tenant_id, page_id, day, visitor) DO NOTHING;
        IF FOUND THEN
            firsts := firsts || _visit.place;
        ELSE  -- just added by another transaction
            repeats := repeats || _visit.place;
        END IF;
    END LOOP;
    -- Then their networks, each in its order too.
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
            firsts := array_remove(firsts, _visit.place);
            crowded := crowded || _visit.place;
        END IF;
    END LOOP;
""",
}


def upgrade() -> None:
    op.add_column("outbox", sa.Column("views", sa.BigInteger()))
    op.add_column("outbox", sa.Column("visitors", sa.BigInteger()))
    waiting = sa.text("kind = 'views'")
    op.create_index("ix_outbox_views", "outbox", ["tenant_id", "id"], postgresql_where=waiting)
    for function in (ADD_VIEWS, LEAVE_VIEWS, COUNT_WAITING_VIEWS):
        op.execute(function)
    change_function("admit_visits", ADMIT_VISITS)
    change_function("write_page_events", WRITE_PAGE_EVENTS)
