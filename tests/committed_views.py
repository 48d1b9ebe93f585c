"""All views that PostgreSQL has."""

# For the FROM of a query: counted ones, and those that wait to be counted. In one statement, so that none is in both.
COMMITTED_VIEWS = """(
    SELECT tenant_id, page_id, views FROM page_views_hour
    UNION ALL SELECT tenant_id, CAST(member AS bigint), views FROM outbox WHERE kind = 'views'
)"""
