"""What a distributed database (Citus) needs, and what nothing else misses.

Every statement of the functions becomes one that a coordinator sends to the tenant's node as it is. So numbers and ids
are drawn before an `INSERT … SELECT`, not by it; rows that a statement returns are read by a loop, not by another part
of the statement; and a statement writes one table. `write_events` and `claim_facts` go: nothing calls them since 0019.

A page's owner is a plain foreign key: users are deleted only with their tenant, and their pages with them. The trigger
that blanked erased users for processes of 0.1.0 goes: those were stopped for this release.
"""

import sqlalchemy as sa
from alembic import op

from tenants.db import SERVICE_ROLE

revision = "0029"
down_revision = "0028"

OWNER = "fk_pages_tenant_id_owner_id"
UNUSED = ("write_events", "claim_facts")

# For each function what is replaced in it, as it is since 0026.
CHANGES: dict[str, dict[str, str]] = {
    "ensure_users": {
        "BEGIN\n    created := 0;": "DECLARE\n    _new text[];\n    _new_ids uuid[];\nBEGIN\n    created := 0;",
        """    INSERT INTO users (tenant_id, id, external_id, created_at, updated_at)
    SELECT t.id, gen_random_uuid(), m.name, _now, _now
    FROM tenants t CROSS JOIN
        (SELECT n.name FROM unnest(_names, ids) AS n(name, id) WHERE n.id IS NULL ORDER BY n.name LIMIT _room) m
    WHERE""": """    SELECT array_agg(m.name), array_agg(gen_random_uuid()) INTO _new, _new_ids
    FROM (SELECT n.name FROM unnest(_names, ids) AS n(name, id) WHERE n.id IS NULL ORDER BY n.name LIMIT _room) m;
    INSERT INTO users (tenant_id, id, external_id, created_at, updated_at)
    SELECT t.id, m.id, m.name, _now, _now FROM tenants t CROSS JOIN unnest(_new_ids, _new) AS m(id, name)
    WHERE""",
    },
    "apply_likes": {
        "    _like int;\n": """    _like int;
    _ids bigint[];              -- the outbox rows to write
    _stale text[];
    _stale_hours timestamptz[];
""",
        """    INSERT INTO outbox (tenant_id, kind, member, hour)
    SELECT t.id, 'page', n.page_id::text,
           CASE WHEN bool_and(n.was_liked_at IS NULL) AND min(n.hour) = max(n.hour) THEN min(n.hour) END
    FROM tenants t CROSS JOIN (
        SELECT l.*, date_trunc('hour', l.liked_at, 'UTC') AS hour
        FROM unnest(_like_pages, _liked_at, _was_liked_at) AS l(page_id, liked_at, was_liked_at)) n
    WHERE t.id = _tenant AND n.liked_at IS DISTINCT FROM n.was_liked_at GROUP BY t.id, n.page_id;
""": """    SELECT array_agg(nextval('outbox_id_seq')), array_agg(n.page_id::text), array_agg(n.hour)
    INTO _ids, _stale, _stale_hours
    FROM (SELECT l.page_id,
                 CASE WHEN bool_and(l.was_liked_at IS NULL) AND min(l.hour) = max(l.hour) THEN min(l.hour) END AS hour
          FROM (SELECT c.*, date_trunc('hour', c.liked_at, 'UTC') AS hour
                FROM unnest(_like_pages, _liked_at, _was_liked_at) AS c(page_id, liked_at, was_liked_at)) l
          WHERE l.liked_at IS DISTINCT FROM l.was_liked_at GROUP BY l.page_id) n;
    IF _ids IS NOT NULL THEN
        INSERT INTO outbox (tenant_id, id, kind, member, hour) OVERRIDING SYSTEM VALUE
        SELECT t.id, s.id, 'page', s.member, s.hour
        FROM tenants t CROSS JOIN unnest(_ids, _stale, _stale_hours) AS s(id, member, hour) WHERE t.id = _tenant;
    END IF;
""",
    },
    "apply_profiles": {
        "    _changing uuid[];\n": "    _changing uuid[];\n    _ids bigint[];\n",
        """    INSERT INTO outbox (tenant_id, kind, member)
    SELECT t.id, 'user', c.id::text FROM tenants t CROSS JOIN unnest(_changing) AS c(id) WHERE t.id = _tenant;
""": """    SELECT array_agg(nextval('outbox_id_seq')) INTO _ids FROM unnest(_changing);
    INSERT INTO outbox (tenant_id, id, kind, member) OVERRIDING SYSTEM VALUE
    SELECT t.id, c.id, 'user', c.member::text
    FROM tenants t CROSS JOIN unnest(_ids, _changing) AS c(id, member) WHERE t.id = _tenant;
""",
    },
    "count_unknown_addresses": {
        "    _new text[];\n": "    _new text[];\n    _counted record;\n",
        """    WITH counted AS (
        INSERT""": """    FOR _counted IN
        INSERT""",
        """        RETURNING u.address, xmax = 0 AS is_new
    )
    SELECT array_agg(c.address) FILTER (WHERE c.is_new) INTO _new FROM counted c;
""": """        RETURNING u.address, xmax = 0 AS is_new
    LOOP
        IF _counted.is_new THEN
            _new := _new || _counted.address;
        END IF;
    END LOOP;
""",
    },
    "admit_visits": {
        "    _new int[];\n": """    _new_places int[];     -- the first view of each visitor and day that is no load
    _new_pages bigint[];
    _new_days date[];
    _new_visitors uuid[];
    _pages_added bigint[] := '{}';
    _days_added date[] := '{}';
    _visitors_added uuid[] := '{}';
""",
        """    WITH visit AS MATERIALIZED (
        SELECT DISTINCT ON""": """
    SELECT array_agg(n.place), array_agg(n.page_id), array_agg(n.day), array_agg(n.visitor)
    INTO _new_places, _new_pages, _new_days, _new_visitors FROM (
        SELECT DISTINCT ON""",
        """v.visitor, v.place
    ), added AS (
        INSERT""": """v.visitor, v.place) n;
    IF _new_places IS NULL THEN
        RETURN;
    END IF;
    FOR _visit IN
        INSERT""",
        "page_visitors (tenant_id, page_id, day, visitor, is_named, loads, loaded_at)\n        SELECT": (
            "page_visitors AS n (tenant_id, page_id, day, visitor, is_named, loads, loaded_at)\n        SELECT"
        ),
        "FROM tenants t CROSS JOIN visit v WHERE": (
            "FROM tenants t CROSS JOIN unnest(_new_pages, _new_days, _new_visitors) AS v(page_id, day, visitor)\n"
            "        WHERE"
        ),
        """        RETURNING page_id, day, visitor
    )
    SELECT array_agg(v.place) INTO _new FROM visit v JOIN added USING (page_id, day, visitor);
    firsts := firsts || _new;
""": """        RETURNING page_id, day, visitor
    LOOP
        _pages_added := _pages_added || _visit.page_id;
        _days_added := _days_added || _visit.day;
        _visitors_added := _visitors_added || _visit.visitor;
    END LOOP;
    SELECT firsts || array_agg(v.place) INTO firsts
    FROM unnest(_new_places, _new_pages, _new_days, _new_visitors) AS v(place, page_id, day, visitor)
    JOIN unnest(_pages_added, _days_added, _visitors_added) AS a(page_id, day, visitor) USING (page_id, day, visitor);
""",
    },
    "record_payments": {
        "BEGIN\n    WITH paid AS MATERIALIZED (\n": """DECLARE
    _entries bigint[];
    _stale text[];
    _stale_ids bigint[];
BEGIN
    SELECT array_agg(nextval('score_ledger_id_seq')) INTO _entries FROM unnest(_users);
    SELECT array_agg(u.id::text), array_agg(nextval('outbox_id_seq')) INTO _stale, _stale_ids
    FROM (SELECT DISTINCT unnest(_users) AS id) u;
""",
        """        SELECT * FROM unnest(_users, _sources, _actions, _deltas, _scores, _ranks, _events, _hashes, _onces,
                             _verifications, _client_times, _objects, _ips, _agents, _client_infos, _metadata)
        WITH ORDINALITY AS p(user_id, source, action_type, delta, score, rank, event_id, payload_hash, once_key,
                             verification, client_time, object, ip, agent, client_info, metadata, place)
    ), entry AS (
        INSERT INTO score_ledger (tenant_id, user_id,""": """    INSERT INTO score_ledger (tenant_id, id, user_id,""",
        "event_id, payload_hash, once_key)\n        SELECT t.id, p.user_id,": (
            "event_id, payload_hash, once_key) OVERRIDING SYSTEM VALUE\n        SELECT t.id, p.id, p.user_id,"
        ),
        """        FROM tenants t CROSS JOIN paid p WHERE t.id = _tenant ORDER BY p.place
    ), hour AS (
        INSERT""": """        FROM tenants t CROSS JOIN
             unnest(_entries, _users, _sources, _actions, _deltas, _scores, _ranks, _events, _hashes, _onces)
             AS p(id, user_id, source, action_type, delta, score, rank, event_id, payload_hash, once_key)
        WHERE t.id = _tenant ORDER BY p.id;
    INSERT""",
        "FROM tenants t CROSS JOIN paid p WHERE t.id = _tenant GROUP BY t.id, p.user_id": (
            "FROM tenants t CROSS JOIN unnest(_users, _deltas) AS p(user_id, delta)\n"
            "        WHERE t.id = _tenant GROUP BY t.id, p.user_id"
        ),
        """GREATEST(h.last_at, EXCLUDED.last_at)
    ), audited AS (
        INSERT""": """GREATEST(h.last_at, EXCLUDED.last_at);
    INSERT""",
        """        FROM tenants t CROSS JOIN paid p WHERE t.id = _tenant
    ), used AS (
        INSERT""": """        FROM tenants t CROSS JOIN
             unnest(_users, _sources, _actions, _deltas, _events, _hashes, _verifications, _client_times, _objects,
                    _ips, _agents, _client_infos, _metadata)
             AS p(user_id, source, action_type, delta, event_id, payload_hash, verification, client_time, object, ip,
                  agent, client_info, metadata)
        WHERE t.id = _tenant;
    IF cardinality(_tokens) > 0 THEN
        INSERT""",
        """        WHERE t.id = _tenant ON CONFLICT DO NOTHING
    ), stale AS (
        INSERT INTO outbox (tenant_id, kind, member)
        SELECT DISTINCT t.id, 'user', p.user_id::text FROM tenants t CROSS JOIN paid p WHERE t.id = _tenant
    )
""": """        WHERE t.id = _tenant ON CONFLICT DO NOTHING;
    END IF;
    INSERT INTO outbox (tenant_id, id, kind, member) OVERRIDING SYSTEM VALUE
    SELECT t.id, s.id, 'user', s.member FROM tenants t CROSS JOIN unnest(_stale_ids, _stale) AS s(id, member)
    WHERE t.id = _tenant;
""",
        "    FROM (SELECT user_id, max(score) AS score, count(*) AS actions FROM paid GROUP BY user_id) n\n": (
            "    FROM (SELECT p.user_id, max(p.score) AS score, count(*) AS actions\n"
            "          FROM unnest(_users, _scores) AS p(user_id, score) GROUP BY p.user_id) n\n"
        ),
    },
    "write_page_events": {
        "    _firsts int[];\n": """    _keyed_places int[];   -- of the events with an id: where each id comes first
    _keyed uuid[];
    _seen record;
    _new uuid[] := '{}';
    _pages bigint[];       -- what is added to the hours of pages
    _buckets timestamptz[];
    _counts bigint[];
    _first_counts bigint[];
    _ids bigint[];
    _firsts int[];
""",
        """    WITH item AS MATERIALIZED (
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
""": """    SELECT array_agg(i.place) FILTER (WHERE i.key IS NULL) INTO accepted
    FROM unnest(_items, _keys) WITH ORDINALITY AS i(item, key, place) WHERE page_ids[i.item] IS NOT NULL;
    SELECT array_agg(f.place), array_agg(f.key) INTO _keyed_places, _keyed
    FROM (SELECT DISTINCT ON (i.key) i.key, i.place FROM unnest(_items, _keys) WITH ORDINALITY AS i(item, key, place)
          WHERE i.key IS NOT NULL AND page_ids[i.item] IS NOT NULL ORDER BY i.key, i.place) f;
    IF _keyed IS NOT NULL THEN
        FOR _seen IN
            INSERT INTO seen_events AS s (tenant_id, event_key, seen_on)
            SELECT t.id, k.key, (_now AT TIME ZONE 'UTC')::date
            FROM tenants t CROSS JOIN unnest(_keyed) AS k(key) WHERE t.id = _tenant ORDER BY k.key
            ON CONFLICT (tenant_id, event_key) DO UPDATE SET seen_on = EXCLUDED.seen_on
            WHERE s.seen_on < EXCLUDED.seen_on
            RETURNING event_key, xmax = 0 AS is_new
        LOOP
            IF _seen.is_new THEN
                _new := _new || _seen.event_key;
            END IF;
        END LOOP;
        SELECT accepted || array_agg(k.place) INTO accepted
        FROM unnest(_keyed_places, _keyed) AS k(place, key) JOIN unnest(_new) AS n(key) ON n.key = k.key;
    END IF;
""",
        """    WITH new AS MATERIALIZED (
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
""": """    SELECT array_agg(n.page_id), array_agg(n.bucket_hour), array_agg(n.views), array_agg(n.visitors),
           array_agg(nextval('outbox_id_seq'))
    INTO _pages, _buckets, _counts, _first_counts, _ids
    FROM (SELECT page_ids[_items[a.place]] AS page_id, to_timestamp(_hours[a.place] * 3600.0) AS bucket_hour,
                 count(*) AS views, count(f.place) AS visitors
          FROM unnest(accepted) AS a(place) LEFT JOIN unnest(_firsts) AS f(place) ON f.place = a.place
          WHERE _views[a.place] GROUP BY 1, 2) n;
    IF _pages IS NOT NULL THEN
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
""",
    },
}


def upgrade() -> None:
    op.execute("DROP TRIGGER blank_erased ON users")
    op.execute("DROP FUNCTION blank_erased()")
    op.execute(f"ALTER TABLE pages DROP CONSTRAINT {OWNER}")
    op.execute(
        f"ALTER TABLE pages ADD CONSTRAINT {OWNER} FOREIGN KEY (tenant_id, owner_id) REFERENCES users (tenant_id, id)"
    )
    op.execute(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {SERVICE_ROLE}")
    for name in UNUSED:
        op.execute(f"DROP FUNCTION {name}")
    for name, changes in CHANGES.items():
        change_function(name, changes)


def change_function(name: str, changes: dict[str, str]) -> None:
    """Replace parts of a function, whatever other migration has replaced it meanwhile."""
    definition = op.get_bind().scalar(sa.text("SELECT pg_get_functiondef(to_regproc(:name))"), {"name": name})
    assert definition is not None  # noqa: S101
    for old, new in changes.items():
        assert old in definition, f"{name} has no {old}"  # noqa: S101
        definition = definition.replace(old, new)
    op.execute(definition)
