"""The group commit in one round trip: the function also counts rejected events, and locks less."""

from alembic import op

from tenants.db import SERVICE_ROLE

revision = "0006"
down_revision = "0005"

# Beside the one of 0005, which processes of the release before may still call during an upgrade.
#
# Counters are locked by page id, and pages not at all: whatever deletes a page locks its counter first
# (`analytics/ingest/pages.py`, `delete`), so a page whose counter is locked cannot be deleted. Everything else is
# locked in the same order as before: event ids, buckets. Plans are generic: planning each call was a third of its cost.
RECORD_EVENTS = """
CREATE FUNCTION record_events(
    _tenant text,
    _names text[],         -- the pages named, each once
    _items int[],          -- for each event the place of its page in _names
    _hours int[],          -- and the hour it happened, since 1970
    _keys uuid[],          -- and its id, or NULL
    _views boolean[],      -- and whether it is a view
    _clients text[],       -- the tokens shown
    _jtis text[],
    _now timestamptz,
    _reasons text[],       -- why events were rejected before this call
    _refused bigint[],     -- and how many
    OUT dead text[],       -- the tokens that are no longer valid; if there are any, nothing was written
    OUT ids bigint[],      -- for each name the page's id, or NULL
    OUT accepted int[]     -- the places of the events that are neither duplicates nor of an unknown page
) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    _held bigint[];
    _unknown bigint;
BEGIN
    SELECT array_agg(t.jti) INTO dead FROM unnest(_clients, _jtis) AS t(client_id, jti)
    WHERE NOT EXISTS (SELECT FROM oauth_clients c
                      WHERE c.tenant_id = _tenant AND c.id = t.client_id AND c.revoked_at IS NULL)
       OR NOT EXISTS (SELECT FROM tenants o WHERE o.id = _tenant AND o.deleted_at IS NULL)
       OR EXISTS (SELECT FROM revoked_tokens r WHERE r.tenant_id = _tenant AND r.jti = t.jti);
    IF dead IS NOT NULL THEN
        RETURN;
    END IF;

    SELECT array_agg((SELECT p.id FROM pages p WHERE p.tenant_id = _tenant AND p.external_id = n.name) ORDER BY n.place)
    INTO ids FROM unnest(_names) WITH ORDINALITY AS n(name, place);
    SELECT array_agg(h.page_id) INTO _held
    FROM (SELECT page_id FROM page_counters WHERE tenant_id = _tenant AND page_id = ANY(ids)
          ORDER BY page_id FOR UPDATE) h;
    IF COALESCE(cardinality(_held), 0) < cardinality(array_remove(ids, NULL)) THEN  -- some were deleted just now
        SELECT array_agg(CASE WHEN i.id = ANY(_held) THEN i.id END ORDER BY i.place)
        INTO ids FROM unnest(ids) WITH ORDINALITY AS i(id, place);
    END IF;

    WITH item AS MATERIALIZED (
        SELECT i.place, ids[i.item] AS page_id, to_timestamp(i.hour * 3600.0) AS bucket_hour, i.key, i.is_view
        FROM unnest(_items, _hours, _keys, _views) WITH ORDINALITY AS i(item, hour, key, is_view, place)
        WHERE ids[i.item] IS NOT NULL
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
        SELECT _tenant, page_id, bucket_hour, count(*) FROM new WHERE is_view
        GROUP BY page_id, bucket_hour ORDER BY page_id, bucket_hour
        ON CONFLICT (tenant_id, page_id, bucket_hour) DO UPDATE SET views = b.views + EXCLUDED.views
    ), marked AS (
        INSERT INTO outbox (tenant_id, kind, member)
        SELECT DISTINCT _tenant, 'page', page_id::text FROM new WHERE is_view
    ), summed AS (
        UPDATE page_counters c SET views = c.views + n.views
        FROM (SELECT page_id, count(*) AS views FROM new WHERE is_view GROUP BY page_id) n
        WHERE c.tenant_id = _tenant AND c.page_id = n.page_id
    )
    SELECT array_agg(place) INTO accepted FROM new;

    IF array_position(ids, NULL) IS NOT NULL THEN
        SELECT count(*) INTO _unknown FROM unnest(_items) AS i(item) WHERE ids[i.item] IS NULL;
        _reasons := _reasons || 'unknown_page'::text;
        _refused := _refused || _unknown;
    END IF;
    IF cardinality(_reasons) > 0 THEN
        INSERT INTO ingest_rejections_hour AS r (tenant_id, bucket_hour, reason, rejected)
        SELECT _tenant, date_trunc('hour', _now, 'UTC'), w.reason, sum(w.rejected)
        FROM unnest(_reasons, _refused) AS w(reason, rejected) GROUP BY w.reason ORDER BY w.reason
        ON CONFLICT (tenant_id, bucket_hour, reason) DO UPDATE SET rejected = r.rejected + EXCLUDED.rejected;
    END IF;
END $$
"""
SIGNATURE = (
    "record_events(text, text[], int[], int[], uuid[], boolean[], text[], text[], timestamptz, text[], bigint[])"
)


def upgrade() -> None:
    op.execute(RECORD_EVENTS)
    op.execute(f"REVOKE EXECUTE ON FUNCTION {SIGNATURE} FROM PUBLIC")
    op.execute(f"GRANT EXECUTE ON FUNCTION {SIGNATURE} TO {SERVICE_ROLE}")
