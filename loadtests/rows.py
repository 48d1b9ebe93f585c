"""The SQL of the benchmarks: the rows of a data set, and the rows that one request writes, without a service.

All statements that name columns of the service's tables are here, so that a migration changes one file. Pages are named
`p000000` and users `u000000`, by popularity: the first page has the most views, likes and requests.
"""

# Of all pages, those that are viewed in every hour; the others by Zipf's law with an exponent of 0.8. Over 30 days that
# makes 33 buckets a page, or some 10 million for 300,000 pages.
BUSY_SHARE = 0.0042
EXPONENT = 0.8
# Coprime to every number of pages that we use: popular pages and their rows are spread over the tables, as anywhere.
SHUFFLE = 7_919
SPACES = 10
ACTION = "read"
POINTS = 5
ENTRIES_PER_USER = 5
# The most popular page is liked by this many users; the others by Zipf's law.
MAX_LIKES = 500

PAGES = """
    INSERT INTO pages (tenant_id, external_id, space_key, title, url, created_at, updated_at)
    SELECT %(tenant)s, 'p' || lpad(n::text, 6, '0'), 's' || n %% %(spaces)s, 'Page ' || n, '/' || n,
           %(hour)s - interval '40 days', %(hour)s - interval '40 days'
    FROM generate_series(0, %(pages)s - 1) n ORDER BY n * %(shuffle)s::bigint %% %(pages)s
"""

# `busy`: how many pages are viewed in every hour. A page's hours are at equal distances, with an offset of its own.
VIEWS = """
    INSERT INTO page_views_hour (tenant_id, page_id, bucket_hour, views)
    SELECT %(tenant)s, p.id, %(hour)s - floor((k + p.rank * 0.618034 %% 1) * %(hours)s / p.buckets) * interval '1 hour',
           1 + floor(p.weight) + (p.rank + k) %% 3
    FROM (
        SELECT id, rank, weight, ceil(least(1, weight) * %(hours)s)::int AS buckets
        FROM (SELECT id, rank, power(%(busy)s::float8 / (rank + 1), %(exponent)s) AS weight
              FROM (SELECT id, substr(external_id, 2)::int AS rank FROM pages WHERE tenant_id = %(tenant)s
                    AND id BETWEEN %(first)s AND %(last)s) ranked) weighed
        ORDER BY id
    ) p CROSS JOIN LATERAL generate_series(0, p.buckets - 1) k
"""

USERS = """
    INSERT INTO users (tenant_id, id, external_id, created_at, updated_at)
    SELECT %(tenant)s, md5(%(tenant)s || n)::uuid, 'u' || lpad(n::text, 6, '0'),
           %(hour)s - interval '40 days', %(hour)s - interval '40 days'
    FROM generate_series(0, %(users)s - 1) n
"""

LIKES = """
    INSERT INTO page_likes (tenant_id, page_id, user_id, liked_at, decided_at)
    SELECT %(tenant)s, page_id, user_id, at, at FROM (
        SELECT p.id AS page_id, md5(%(tenant)s || (p.rank * %(shuffle)s::bigint + k) %% %(users)s)::uuid AS user_id,
               %(hour)s - ((p.rank + k * 37) %% (%(hours)s * 60)) * interval '1 minute' AS at
        FROM (SELECT id, substr(external_id, 2)::int AS rank FROM pages WHERE tenant_id = %(tenant)s) p
        CROSS JOIN LATERAL generate_series(
            0, least(%(users)s, floor(%(max_likes)s * power(p.rank + 1, -%(exponent)s)))::int - 1) k) l
"""

COUNTERS = """
    INSERT INTO page_counters (tenant_id, page_id, views, likes)
    SELECT p.tenant_id, p.id, COALESCE(v.views, 0), COALESCE(l.likes, 0)
    FROM pages p
    LEFT JOIN (SELECT page_id, sum(views) AS views FROM page_views_hour WHERE tenant_id = %(tenant)s GROUP BY page_id) v
        ON v.page_id = p.id
    LEFT JOIN (SELECT page_id, count(*) AS likes FROM page_likes WHERE tenant_id = %(tenant)s GROUP BY page_id) l
        ON l.page_id = p.id
    WHERE p.tenant_id = %(tenant)s ORDER BY p.id
"""

# Entries five days apart, so that each user's are one chain in the order of their ids.
LEDGER = """
    INSERT INTO score_ledger (tenant_id, user_id, source, account, action_type, delta, previous, score, at,
                              payload_hash)
    SELECT %(tenant)s, md5(%(tenant)s || n)::uuid, 'history:' || n || ':' || k, 'points', %(action)s,
           %(points)s, %(points)s * (k - 1), %(points)s * k,
           %(hour)s - interval '30 days' + k * interval '5 days' + n %% 7200 * interval '1 minute', '\\x00'
    FROM generate_series(0, %(paid_users)s - 1) n, generate_series(1, %(entries)s) k ORDER BY n, k
"""
POINTS_HOUR = """
    INSERT INTO user_points_hour (tenant_id, user_id, account, bucket_hour, points, last_at)
    SELECT tenant_id, user_id, account, date_trunc('hour', at, 'UTC'), sum(delta), max(at)
    FROM score_ledger WHERE tenant_id = %(tenant)s GROUP BY tenant_id, user_id, account, date_trunc('hour', at, 'UTC')
"""
SCORES = """
    UPDATE users u SET current_score = l.score, total_actions = l.entries, score_reached_at = l.at
    FROM (SELECT user_id, sum(delta) AS score, count(*) AS entries, max(at) AS at
          FROM score_ledger WHERE tenant_id = %(tenant)s GROUP BY user_id) l
    WHERE u.tenant_id = %(tenant)s AND u.id = l.user_id
"""

# The boards that follow are those of this hour; a projection that comes later slides them.
PROJECTION = "INSERT INTO projections (tenant_id, slid_to) VALUES (%(tenant)s, %(hour)s)"

PAID_USERS = "SELECT id::text FROM users WHERE tenant_id = :tenant AND current_score > 0"
PAGE_IDS = "SELECT min(id), max(id) FROM pages WHERE tenant_id = %(tenant)s"
IS_IDLE = "SELECT NOT EXISTS (SELECT 1 FROM outbox) AND NOT EXISTS (SELECT 1 FROM projecting)"

# A backlog of stale pages: one view more of each, and rows of the outbox in an order in which a page comes again late.
VIEW_EVERY_PAGE = """
    INSERT INTO page_views_hour AS b (tenant_id, page_id, bucket_hour, views)
    SELECT tenant_id, id, date_trunc('hour', now(), 'UTC'), 1 FROM pages WHERE tenant_id = %(tenant)s ORDER BY id
    ON CONFLICT (tenant_id, page_id, bucket_hour) DO UPDATE SET views = b.views + 1
"""
COUNT_EVERY_PAGE = "UPDATE page_counters SET views = views + 1 WHERE tenant_id = %(tenant)s"
BACKLOG = """
    INSERT INTO outbox (tenant_id, kind, member)
    SELECT %(tenant)s, 'page', (p.first + n * %(shuffle)s::bigint %% p.pages)::text
    FROM (SELECT min(id) AS first, count(*) AS pages FROM pages WHERE tenant_id = %(tenant)s) p
    CROSS JOIN generate_series(1, %(size)s) n
"""

# What follows is run by pgbench: the rows that a batch of 100 events writes, as raw SQL in one transaction. Views are
# counted in their hour and in the page's total, and mark the page as stale, so that the data stays right and the
# workers have as much to do as after a request. `{pages}` picks a page as the requests do.
_RAW_VIEWS = """
BEGIN;
{ids}
WITH page AS MATERIALIZED (
    SELECT p.id, n.views FROM (
        SELECT 'p' || lpad(floor({pages} * power(random(), 5))::text, 6, '0') AS name, count(*) AS views
        FROM generate_series(1, 100) GROUP BY 1) n
    JOIN pages p ON p.tenant_id = '{tenant}' AND p.external_id = n.name
), locked AS MATERIALIZED (
    SELECT c.page_id FROM page_counters c WHERE c.tenant_id = '{tenant}' AND c.page_id IN (SELECT id FROM page)
    ORDER BY c.page_id FOR UPDATE
), counted AS (
    INSERT INTO page_views_hour AS b (tenant_id, page_id, bucket_hour, views)
    SELECT '{tenant}', l.page_id, date_trunc('hour', now(), 'UTC'), p.views
    FROM locked l JOIN page p ON p.id = l.page_id ORDER BY l.page_id
    ON CONFLICT (tenant_id, page_id, bucket_hour) DO UPDATE SET views = b.views + EXCLUDED.views
), marked AS (
    INSERT INTO outbox (tenant_id, kind, member) SELECT '{tenant}', 'page', page_id::text FROM locked
)
UPDATE page_counters c SET views = c.views + p.views FROM locked l JOIN page p ON p.id = l.page_id
WHERE c.tenant_id = '{tenant}' AND c.page_id = l.page_id;
COMMIT;
"""
_RAW_IDS = """
INSERT INTO seen_events (tenant_id, event_key, seen_on)
SELECT '{tenant}', k, current_date FROM (SELECT gen_random_uuid() AS k FROM generate_series(1, 100)) i ORDER BY k
ON CONFLICT DO NOTHING;
"""

# An action of each of 100 users: entry, audit, hour, balance, mark.
_RAW_ACTIONS = """
BEGIN;
WITH payee AS MATERIALIZED (
    SELECT u.id, u.current_score + {points} AS score, gen_random_uuid() AS event_id FROM users u
    WHERE u.tenant_id = '{tenant}' AND u.id IN (
        SELECT md5('{tenant}' || floor({users} * random())::int)::uuid FROM generate_series(1, 100))
    ORDER BY u.id FOR NO KEY UPDATE
), entry AS (
    INSERT INTO score_ledger (tenant_id, user_id, source, account, action_type, delta, previous, score, at, event_id,
                              payload_hash)
    SELECT '{tenant}', id, 'raw:' || event_id, 'points', '{action}', {points}, score - {points}, score,
           date_trunc('milliseconds', now()), event_id, '\\x00' FROM payee
), hour AS (
    INSERT INTO user_points_hour AS h (tenant_id, user_id, account, bucket_hour, points, last_at)
    SELECT '{tenant}', id, 'points', date_trunc('hour', now(), 'UTC'), {points}, date_trunc('milliseconds', now())
    FROM payee ORDER BY id
    ON CONFLICT (tenant_id, user_id, account, bucket_hour)
    DO UPDATE SET points = h.points + EXCLUDED.points, last_at = GREATEST(h.last_at, EXCLUDED.last_at)
), audited AS (
    INSERT INTO action_events (tenant_id, received_at, id, user_id, action_type, source, payload_hash, verification,
                               points)
    SELECT '{tenant}', now(), event_id, id, '{action}', 'raw:' || event_id, '\\x00', 'client', {points} FROM payee
), marked AS (
    INSERT INTO outbox (tenant_id, kind, member) SELECT '{tenant}', 'user', id::text FROM payee
)
UPDATE users u SET current_score = p.score, total_actions = total_actions + 1,
    score_reached_at = date_trunc('milliseconds', now())
FROM payee p WHERE u.tenant_id = '{tenant}' AND u.id = p.id;
COMMIT;
"""


def raw_views(tenant: str, pages: int, *, with_ids: bool) -> str:
    """A script for pgbench: one batch of 100 views."""
    ids = _RAW_IDS.format(tenant=tenant) if with_ids else ""
    return _RAW_VIEWS.format(tenant=tenant, pages=pages, ids=ids)


def raw_actions(tenant: str, users: int) -> str:
    """A script for pgbench: one batch of 100 actions."""
    return _RAW_ACTIONS.format(tenant=tenant, users=users, action=ACTION, points=POINTS)
