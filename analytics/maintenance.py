"""Hourly maintenance by the database's owner: partitions of the audit, and rows older than each tenant's retention."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta

import structlog
from sqlalchemy import TextClause, text
from sqlalchemy.exc import DBAPIError, OperationalError

from analytics.ingest.visitors import BROWSER_DAYS, NAMED_DAYS
from analytics.windows import LONGEST
from tenants import across
from tenants import settings as tenant_settings
from tenants.db import Tx, owner_tx, tenant_tx

MONTHS_AHEAD = 2
MAX_ROWS_PER_CHUNK = 2_000

log = structlog.get_logger()


def keep_months(*, now: datetime) -> None:
    """Create the audit's partitions of this month and the next ones; drop those past every tenant's retention.

    Safe to run at once: `make_month_of_actions` locks until the commit, so the second finds what the first has done.
    On a Citus a partition has rows on every node: while one is lost, both are left to a later run.
    """
    try:
        oldest = (now - timedelta(days=_longest_retention_days())).date()
        with owner_tx() as tx:
            for ahead in range(MONTHS_AHEAD + 1):
                tx.execute(text("SELECT make_month_of_actions(:month)"), {"month": month_ahead(now.date(), ahead)})
            for name, month in _months(tx):
                if month_ahead(month, 1) <= oldest:
                    tx.execute(text(f"DROP TABLE {name}"))
    except DBAPIError as error:
        if not across.is_node_lost(error):
            raise
        log.warning("the audit's months wait for a lost node", action="partitions.late")


def _longest_retention_days() -> int:
    """Of all tenants: without those of a lost node, rows would be dropped that one of them keeps."""
    longest = tenant_settings.Retention().action_events_days
    for tenant_id in across.every_live_tenant():
        with tenant_tx(tenant_id) as tx:
            longest = max(longest, tenant_settings.read(tx)[0].retention.action_events_days)
    return longest


@dataclass(frozen=True)
class Purged:
    """How many rows of each table were deleted, and after which tenant the next run continues; None: all are done."""

    rows: dict[str, int]
    continue_after: str | None


def purge_history(*, now: datetime, is_over: Callable[[], bool], after: str = "") -> Purged:
    """Delete each tenant's rows past their retention, a chunk and a commit at a time, until `is_over`.

    The tenants are purged in the order of their ids, beginning after `after`.
    """
    purged: Counter[str] = Counter()
    for tenant_id in (tenant_id for tenant_id in across.live_tenants() if tenant_id > after):
        try:
            for table, deleted in _purge_tenant(tenant_id, now=now):
                purged[table] += deleted
                if deleted and is_over():
                    return Purged(dict(purged), after)
        except OperationalError as error:  # a row that is locked for long delays no other tenant's purge
            data = {"error": type(error.orig).__name__}
            log.warning("a tenant's purge failed", action="retention.late", tenantId=tenant_id, data=data)
        after = tenant_id
        if is_over():
            return Purged(dict(purged), after)
    return Purged(dict(purged), None)


def _purge_tenant(tenant_id: str, *, now: datetime) -> Iterator[tuple[str, int]]:
    with tenant_tx(tenant_id) as tx:
        retention = tenant_settings.read(tx)[0].retention
    bucket_days = max(retention.hourly_buckets_days, LONGEST.days + 1)  # what a window still counts stays
    days = {
        "seen_events": retention.event_ids_days,
        "action_events": retention.action_events_days,
        "page_views_hour": bucket_days,
        "user_points_hour": bucket_days,
        "page_likes": bucket_days,
        "page_visitors": BROWSER_DAYS,
        "named_visitors": NAMED_DAYS,
        "page_visitor_networks": BROWSER_DAYS,
    }
    for table, statement in _PURGES.items():
        before = now - timedelta(days=days[table])
        deleted = MAX_ROWS_PER_CHUNK
        while deleted == MAX_ROWS_PER_CHUNK:
            with owner_tx() as tx:
                parameters = {"tenant": tenant_id, "before": before, "limit": MAX_ROWS_PER_CHUNK}
                deleted = int(tx.scalar(statement, parameters) or 0)
            yield table, deleted


def partition_of(month: date) -> str:
    """The name of the audit's partition of a month (the SQL function `make_month_of_actions` creates it)."""
    return f"action_events_{month:%Y_%m}"


def _months(tx: Tx) -> list[tuple[str, date]]:
    """The existing partitions, and the first day of each."""
    names = tx.scalars(
        text(
            "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
            " WHERE i.inhparent = 'action_events'::regclass ORDER BY 1"
        )
    )
    return [(name, date(int(name[-7:-3]), int(name[-2:]), 1)) for name in names]


def month_ahead(day: date, ahead: int) -> date:
    """The first day of the month that is this many months after the day's."""
    months = day.year * 12 + day.month - 1 + ahead
    return date(months // 12, months % 12 + 1, 1)


def _purge_visitors(table: str, who: str, condition: str = "true") -> TextClause:
    """Of the days before; nothing counts these rows any more."""
    return text(f"""
        WITH old AS MATERIALIZED (
            SELECT page_id, day, {who} FROM {table}
            WHERE tenant_id = :tenant AND {condition} AND day <= CAST(:before AS date)
            LIMIT :limit FOR UPDATE SKIP LOCKED
        ), deleted AS (
            DELETE FROM {table} v USING old
            WHERE v.tenant_id = :tenant AND v.page_id = old.page_id AND v.day = old.day AND v.{who} = old.{who}
            RETURNING 1
        )
        SELECT count(*) FROM tenants t CROSS JOIN deleted WHERE t.id = :tenant
    """)  # noqa: S608  names from the table below


# Rows are named by their keys, not by ctid: a distributed table has no ctid of its own.
_PURGES = {
    "seen_events": text("""
        WITH deleted AS (DELETE FROM seen_events WHERE tenant_id = :tenant AND event_key IN (
            SELECT event_key FROM seen_events WHERE tenant_id = :tenant AND seen_on < CAST(:before AS date)
            LIMIT :limit FOR UPDATE SKIP LOCKED) RETURNING 1)
        SELECT count(*) FROM tenants t CROSS JOIN deleted WHERE t.id = :tenant
    """),
    "action_events": text("""
        WITH deleted AS (DELETE FROM action_events WHERE tenant_id = :tenant AND (received_at, id) IN (
            SELECT received_at, id FROM action_events
            WHERE tenant_id = :tenant AND received_at < :before LIMIT :limit FOR UPDATE SKIP LOCKED) RETURNING 1)
        SELECT count(*) FROM tenants t CROSS JOIN deleted WHERE t.id = :tenant
    """),
    # Their views and visitors stay in the page's totals of all time.
    "page_views_hour": text("""
        WITH old AS MATERIALIZED (
            SELECT page_id, bucket_hour FROM page_views_hour
            WHERE tenant_id = :tenant
              AND bucket_hour AT TIME ZONE 'UTC' < CAST(:before AS timestamptz) AT TIME ZONE 'UTC'
            LIMIT :limit
        ), locked AS MATERIALIZED (
            SELECT page_id FROM page_counters
            WHERE tenant_id = :tenant AND page_id IN (SELECT page_id FROM old) ORDER BY page_id FOR UPDATE
        ), deleted AS (
            DELETE FROM page_views_hour b USING old
            WHERE b.tenant_id = :tenant AND b.page_id = old.page_id AND b.bucket_hour = old.bucket_hour
              AND b.page_id IN (SELECT page_id FROM locked) RETURNING b.page_id, b.views, b.visitors
        ), summed AS (
            UPDATE page_counters c
            SET views_purged = c.views_purged + g.views, visitors_purged = c.visitors_purged + g.visitors
            FROM (SELECT page_id, sum(views) AS views, sum(visitors) AS visitors FROM deleted GROUP BY page_id) g
            WHERE c.tenant_id = :tenant AND c.page_id = g.page_id
        )
        SELECT count(*) FROM tenants t CROSS JOIN deleted WHERE t.id = :tenant
    """),
    "user_points_hour": text("""
        WITH old AS MATERIALIZED (
            SELECT user_id, account, bucket_hour FROM user_points_hour
            WHERE tenant_id = :tenant
              AND bucket_hour AT TIME ZONE 'UTC' < CAST(:before AS timestamptz) AT TIME ZONE 'UTC'
            LIMIT :limit FOR UPDATE SKIP LOCKED
        ), deleted AS (
            DELETE FROM user_points_hour b USING old
            WHERE b.tenant_id = :tenant AND b.user_id = old.user_id AND b.account = old.account
              AND b.bucket_hour = old.bucket_hour RETURNING 1
        )
        SELECT count(*) FROM tenants t CROSS JOIN deleted WHERE t.id = :tenant
    """),
    # Likes that were taken back: an event older than that is not accepted any more.
    "page_likes": text("""
        WITH old AS MATERIALIZED (
            SELECT page_id, user_id FROM page_likes
            WHERE tenant_id = :tenant AND liked_at IS NULL AND decided_at < :before LIMIT :limit FOR UPDATE SKIP LOCKED
        ), deleted AS (
            DELETE FROM page_likes l USING old
            WHERE l.tenant_id = :tenant AND l.page_id = old.page_id AND l.user_id = old.user_id RETURNING 1
        )
        SELECT count(*) FROM tenants t CROSS JOIN deleted WHERE t.id = :tenant
    """),
    "page_visitors": _purge_visitors("page_visitors", "visitor", "NOT is_named"),
    "named_visitors": _purge_visitors("page_visitors", "visitor", "is_named"),
    "page_visitor_networks": _purge_visitors("page_visitor_networks", "network"),
}
