"""Windows, scores and leaderboards."""

import sqlalchemy as sa
from alembic import op

from tenants import rls
from tenants.db import PLATFORM_ROLE, SERVICE_ROLE

revision = "0005"
down_revision = "0004"

TIME = sa.DateTime(timezone=True)
METRICS = {"likes": sa.BigInteger, "views": sa.BigInteger, "score": sa.Double}
WINDOWS = ("1d", "7d", "30d", "all")

# As in 0004, and a page's views are also added to its counter: their total of all time then needs no sum over all
# buckets. The counters are locked first, by page id, since likes change them later in the same transaction.
RECORD_EVENTS = """
CREATE OR REPLACE FUNCTION record_events(
    _tenant text, _names text[], _items int[], _hours int[], _keys uuid[], _views boolean[],
    _clients text[], _jtis text[], _today date,
    OUT dead text[], OUT ids bigint[], OUT accepted int[]
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
    PERFORM FROM page_counters WHERE tenant_id = _tenant AND page_id = ANY(ids) ORDER BY page_id FOR UPDATE;

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
    ), summed AS (
        UPDATE page_counters c SET views = c.views + n.views
        FROM (SELECT page_id, count(*) AS views FROM new WHERE is_view GROUP BY page_id) n
        WHERE c.tenant_id = _tenant AND c.page_id = n.page_id
    )
    SELECT array_agg(place) INTO accepted FROM new;
END $$
"""


def key(table: str, *columns: str) -> sa.PrimaryKeyConstraint:
    return sa.PrimaryKeyConstraint(*columns, name=f"pk_{table}")


def of_tenant(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], ondelete="CASCADE", name=f"fk_{table}_tenant_id")


def tenant_id() -> sa.Column[str]:
    return sa.Column("tenant_id", sa.Text, nullable=False)


def upgrade() -> None:
    total_views()
    what_leaves_a_window()
    stats()
    boards()
    snapshots()


def total_views() -> None:
    # No views are counted while they are summed. (A commit that waits for this lock and then uses the old function
    # leaves a wrong total, which `plaudit check` finds and `plaudit rebuild` repairs.)
    op.execute("LOCK TABLE page_counters, page_views_hour IN SHARE ROW EXCLUSIVE MODE")
    for name in ("views", "views_purged"):
        op.add_column("page_counters", sa.Column(name, sa.BigInteger, nullable=False, server_default="0"))
    op.execute("""
        UPDATE page_counters c SET views = b.views
        FROM (SELECT tenant_id, page_id, sum(views) AS views FROM page_views_hour GROUP BY tenant_id, page_id) b
        WHERE b.tenant_id = c.tenant_id AND b.page_id = c.page_id
    """)
    op.execute(RECORD_EVENTS)


def what_leaves_a_window() -> None:
    # On an expression that only sliding and purging use (`analytics/boards/progress.py`, `analytics/maintenance.py`):
    # for one page's hours the planner can never prefer these to the primary key, however little it knows of a tenant.
    hour, time = (sa.text(f"({column} AT TIME ZONE 'UTC')") for column in ("bucket_hour", "created_at"))
    op.create_index("ix_page_views_hour_hour", "page_views_hour", ["tenant_id", hour, "page_id"])
    op.create_index("ix_page_likes_time", "page_likes", ["tenant_id", time, "page_id"])
    op.create_index("ix_page_likes_page_time", "page_likes", ["tenant_id", "page_id", "created_at"])


def stats() -> None:
    op.create_table(
        "page_stats",
        tenant_id(),
        sa.Column("page_id", sa.BigInteger, nullable=False),
        sa.Column("space_key", sa.Text, nullable=False),
        sa.Column("is_public", sa.Boolean, nullable=False),
        sa.Column("is_shared", sa.Boolean, nullable=False),
        *(
            sa.Column(f"{metric}_{window}", kind, nullable=False)
            for metric, kind in METRICS.items()
            for window in WINDOWS
        ),
        sa.Column("page_updated_at", TIME, nullable=False),
        sa.Column("computed_at", TIME, nullable=False),
        key("page_stats", "tenant_id", "page_id"),
        of_tenant("page_stats"),
    )
    op.execute("ALTER TABLE page_stats SET (fillfactor = 70)")
    op.create_index("ix_page_stats_space", "page_stats", ["tenant_id", "space_key"])
    op.create_table(
        "projections",
        tenant_id(),
        sa.Column("slid_to", TIME, nullable=False),
        sa.Column("weights_version", sa.Integer, nullable=False, server_default="0"),
        sa.Column("reweighed_to", sa.BigInteger),
        key("projections", "tenant_id"),
        of_tenant("projections"),
    )
    op.create_table(
        "projecting",
        tenant_id(),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("member", sa.Text, nullable=False),
        sa.Column("scopes", sa.ARRAY(sa.Text), nullable=False),
        key("projecting", "tenant_id", "kind", "member"),
    )
    op.create_table(
        "score_weights",
        tenant_id(),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("likes", sa.Double, nullable=False),
        sa.Column("views", sa.Double, nullable=False),
        sa.Column("effective_from", TIME, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("created_by", sa.Text, nullable=False),
        key("score_weights", "tenant_id", "version"),
        of_tenant("score_weights"),
    )
    for statement in (
        *rls.isolate("page_stats", platform=("SELECT",)),
        *rls.isolate("projections", platform=("SELECT",)),
        *rls.isolate("projecting", platform=("SELECT",)),
        *rls.isolate("score_weights", service=("SELECT", "INSERT"), platform=("SELECT",)),
        # What a row of the global board shows.
        f"CREATE POLICY platform_select ON pages FOR SELECT TO {PLATFORM_ROLE} USING (true)",
        f"GRANT SELECT ON pages TO {PLATFORM_ROLE}",
    ):
        op.execute(statement)


def boards() -> None:
    op.create_table(
        "boards",
        tenant_id(),
        sa.Column("scope", sa.Text, nullable=False),
        sa.Column("time_window", sa.Text, nullable=False),
        sa.Column("metric", sa.Text, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("reserved", sa.BigInteger, nullable=False),
        sa.Column("changed_at", TIME, nullable=False),
        key("boards", "tenant_id", "scope", "time_window", "metric"),
        of_tenant("boards"),
    )
    op.execute("ALTER TABLE boards SET (fillfactor = 50)")
    op.create_table(
        "global_boards",
        sa.Column("time_window", sa.Text, nullable=False),
        sa.Column("metric", sa.Text, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("reserved", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("changed_at", TIME, nullable=False, server_default=sa.func.now()),
        key("global_boards", "time_window", "metric"),
    )
    for metric in METRICS:
        for window in WINDOWS:
            op.execute(f"INSERT INTO global_boards (time_window, metric) VALUES ('{window}', '{metric}')")
    op.execute(f"GRANT SELECT, UPDATE ON global_boards TO {SERVICE_ROLE}, {PLATFORM_ROLE}")
    for statement in rls.isolate("boards", platform=("SELECT",)):
        op.execute(statement)


def snapshots() -> None:
    op.create_table(
        "leaderboard_snapshots",
        tenant_id(),
        sa.Column("scope", sa.Text, nullable=False),
        sa.Column("time_window", sa.Text, nullable=False),
        sa.Column("metric", sa.Text, nullable=False),
        sa.Column("sealed_on", sa.Date, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("taken_at", TIME, nullable=False),
        sa.Column("total", sa.BigInteger, nullable=False),
        sa.Column("is_sealed", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("members", sa.ARRAY(sa.Text), nullable=False),
        sa.Column("values", sa.ARRAY(sa.Double), nullable=False),
        key("leaderboard_snapshots", "tenant_id", "scope", "time_window", "metric", "sealed_on"),
    )
    op.create_index("ix_leaderboard_snapshots_sealed_on", "leaderboard_snapshots", ["tenant_id", "sealed_on"])
    for statement in rls.isolate("leaderboard_snapshots", platform=("SELECT", "INSERT", "UPDATE", "DELETE")):
        op.execute(statement)
