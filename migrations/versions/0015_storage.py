"""Fill factors and autovacuum of the tables that change with every commit.

By default a table is vacuumed when a fifth of its rows are dead. On a large table with a small hot part (the hours of
today among those of 400 days) that is millions of rows, of which every statement on the hot part meets most. None of
this rewrites a table or blocks its writers (SHARE UPDATE EXCLUSIVE); a fill factor applies to pages that are written
from now on.
"""

from alembic import op

revision = "0015"
down_revision = "0014"

# Rows that are updated again and again, in columns that no index has: with room on its page an update touches no index
# (HOT), and most dead versions are removed without a vacuum. page_counters (50), boards (50), page_views_hour,
# page_stats, user_points_hour and user_stats (70) had theirs from the start.
FILL_FACTORS = {
    "users": 80,  # their score with every payment; the rows are wide, and most users get none at a time
    "projections": 50,  # one narrow row for each tenant
    "global_boards": 50,
}

# Dead rows and new rows until the next vacuum, as a share of the table: a twentieth, so that it runs often and briefly.
UPDATED = {
    "autovacuum_vacuum_scale_factor": "0.05",
    "autovacuum_vacuum_threshold": "500",
    # The planner's idea of "this hour" must not be of yesterday.
    "autovacuum_analyze_scale_factor": "0.05",
}
# Every value of a payment is in an index here (`ix_user_stats_all`), so no update is HOT: vacuum earlier still.
INDEXED = {**UPDATED, "autovacuum_vacuum_scale_factor": "0.02"}
# Filled and emptied all the time, and small: their size says nothing about how many dead rows are too many. The vacuum
# is not slowed down, and does not give the end of the table back: that needs an exclusive lock, and it grows again at
# once.
QUEUE = {
    "autovacuum_vacuum_scale_factor": "0",
    "autovacuum_vacuum_threshold": "2000",
    "autovacuum_vacuum_insert_scale_factor": "0",
    "autovacuum_vacuum_insert_threshold": "20000",
    "autovacuum_vacuum_cost_delay": "0",
    "autovacuum_analyze_scale_factor": "0",
    "autovacuum_analyze_threshold": "20000",
    "vacuum_truncate": "off",
}
# Inserted at one end and deleted at the other. Inserted rows are vacuumed too, so that most pages are known to be
# visible and frozen before the table is large.
EXPIRING = {
    "autovacuum_vacuum_scale_factor": "0.02",
    "autovacuum_vacuum_insert_scale_factor": "0.05",
    "autovacuum_analyze_scale_factor": "0.05",
}

STORAGE = {
    "page_views_hour": UPDATED,
    "page_counters": UPDATED,
    "page_stats": UPDATED,
    "users": UPDATED,
    "user_points_hour": UPDATED,
    "boards": UPDATED,
    "projections": UPDATED,
    "user_stats": INDEXED,
    "outbox": QUEUE,
    "projecting": QUEUE,
    "seen_events": EXPIRING,
    # Kept answers are in its TOAST table, which has a vacuum of its own.
    "idempotency_keys": {**EXPIRING, "toast.autovacuum_vacuum_scale_factor": "0.02"},
}


def upgrade() -> None:
    for table, factor in FILL_FACTORS.items():
        op.execute(f"ALTER TABLE {table} SET (fillfactor = {factor})")
    for table, parameters in STORAGE.items():
        listed = ", ".join(f"{name} = {value}" for name, value in parameters.items())
        op.execute(f"ALTER TABLE {table} SET ({listed})")
