"""The group commit's hot path as one function, whose plans the server keeps."""

from alembic import op

from tenants.db import SERVICE_ROLE

revision = "0004"
down_revision = "0003"

# Written thousands of times a second: checking the foreign key to the tenant for each was most of their cost. The page
# that an event names is locked while the event is written, so its tenant cannot be removed meanwhile;
# `registry.purge` removes these rows.
WITHOUT_FOREIGN_KEY = ("seen_events", "outbox")

# Runs as its caller, so that row-level security applies inside. Everything is locked in one order (pages by id, event
# ids, buckets), so that no two commits deadlock.
RECORD_EVENTS = """
CREATE FUNCTION record_events(
    _tenant text,
    _names text[],      -- the pages named, each once
    _items int[],       -- for each event the place of its page in _names
    _hours int[],       -- and the hour it happened, since 1970
    _keys uuid[],       -- and its id, or NULL
    _views boolean[],   -- and whether it is a view
    _clients text[],    -- the tokens shown
    _jtis text[],
    _today date,
    OUT dead text[],     -- the tokens that are no longer valid; if there are any, nothing was written
    OUT ids bigint[],    -- for each name the page's id, or NULL
    OUT accepted int[]   -- the places of the events that are neither duplicates nor of an unknown page
) LANGUAGE plpgsql AS $$
BEGIN
    SELECT array_agg(t.jti) INTO dead FROM unnest(_clients, _jtis) AS t(client_id, jti)
    WHERE NOT EXISTS (SELECT FROM oauth_clients c
                      WHERE c.tenant_id = _tenant AND c.id = t.client_id AND c.revoked_at IS NULL)
       OR NOT EXISTS (SELECT FROM tenants o WHERE o.id = _tenant AND o.deleted_at IS NULL)
       OR EXISTS (SELECT FROM revoked_tokens r WHERE r.tenant_id = _tenant AND r.jti = t.jti);
    IF dead IS NOT NULL THEN
        RETURN;
    END IF;

    PERFORM FROM pages WHERE tenant_id = _tenant AND external_id = ANY(_names) ORDER BY id FOR KEY SHARE;
    SELECT array_agg((SELECT p.id FROM pages p WHERE p.tenant_id = _tenant AND p.external_id = n.name) ORDER BY n.place)
    INTO ids FROM unnest(_names) WITH ORDINALITY AS n(name, place);

    WITH item AS MATERIALIZED (
        SELECT i.place, ids[i.item] AS page_id, to_timestamp(i.hour * 3600.0) AS bucket_hour, i.key, i.is_view
        FROM unnest(_items, _hours, _keys, _views) WITH ORDINALITY AS i(item, hour, key, is_view, place)
        WHERE ids[i.item] IS NOT NULL
    ), first AS MATERIALIZED (
        SELECT DISTINCT ON (key) key, place FROM item WHERE key IS NOT NULL ORDER BY key, place
    ), remembered AS (
        INSERT INTO seen_events AS s (tenant_id, event_key, seen_on)
        SELECT _tenant, key, _today FROM first ORDER BY key
        ON CONFLICT (tenant_id, event_key) DO UPDATE SET seen_on = EXCLUDED.seen_on
        WHERE s.seen_on < EXCLUDED.seen_on
        RETURNING event_key, xmax = 0 AS is_new
    ), new AS MATERIALIZED (
        SELECT place, page_id, bucket_hour, is_view FROM item
        WHERE key IS NULL
           OR (key IN (SELECT event_key FROM remembered WHERE is_new) AND place IN (SELECT f.place FROM first f))
    ), counted AS (
        INSERT INTO page_views_hour AS b (tenant_id, page_id, bucket_hour, views)
        SELECT _tenant, page_id, bucket_hour, count(*) FROM new WHERE is_view
        GROUP BY page_id, bucket_hour ORDER BY page_id, bucket_hour
        ON CONFLICT (tenant_id, page_id, bucket_hour) DO UPDATE SET views = b.views + EXCLUDED.views
    ), marked AS (
        INSERT INTO outbox (tenant_id, kind, member)
        SELECT DISTINCT _tenant, 'page', page_id::text FROM new WHERE is_view
    )
    SELECT array_agg(place) INTO accepted FROM new;
END $$
"""


def upgrade() -> None:
    for table in WITHOUT_FOREIGN_KEY:
        op.drop_constraint(f"fk_{table}_tenant_id", table, type_="foreignkey")
    op.execute(RECORD_EVENTS)
    op.execute("REVOKE EXECUTE ON FUNCTION record_events FROM PUBLIC")
    op.execute(f"GRANT EXECUTE ON FUNCTION record_events TO {SERVICE_ROLE}")
