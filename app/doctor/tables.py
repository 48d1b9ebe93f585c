"""The tables: dead rows, statistics, the age of transactions."""

from collections.abc import Iterable

from sqlalchemy import text

from app.doctor.findings import Finding, duration, ok, problem, warn
from app.doctor.installation import Installation
from migrations.distribution import is_distributed
from tenants.queue import CRON_LEADER

ABOUT = "Tables"
# Autovacuum removes dead rows well before: see migrations, storage of hot tables.
MIN_DEAD_ROWS, MAX_DEAD_SHARE = 20_000, 0.3
MIN_ROWS_TO_ANALYSE = 10_000
MAX_OPEN_TRANSACTION_S = 600.0
# PostgreSQL refuses to write when two thousand million transactions are not frozen.
HIGH_AGE, DANGEROUS_AGE = 500_000_000, 1_500_000_000


def dead_rows(installation: Installation) -> Iterable[Finding]:
    with installation.reading() as connection:
        rows = connection.execute(_ON_ALL_NODES if is_distributed(connection) else text(_ROWS)).all()
    bloated = [row for row in rows if row.dead > MIN_DEAD_ROWS and row.dead > MAX_DEAD_SHARE * (row.live + row.dead)]
    for row in bloated:
        when = f"vacuumed {duration(row.vacuumed_s)} ago" if row.vacuumed_s is not None else "never vacuumed"
        yield warn(
            ABOUT,
            f"{row.relname} has {row.dead:,} dead rows beside {row.live:,} live ones; {when}",
            why="every statement reads past them, and the table grows",
            advice=f"VACUUM (ANALYZE) {row.relname}; if they come back, look for a transaction that is open for long",
        )
    for row in rows:
        if row.unknown > MIN_ROWS_TO_ANALYSE:
            yield warn(
                ABOUT,
                f"{row.relname} was never analysed",
                why="the planner knows nothing of its rows and may read all of them",
                advice=f"ANALYZE {row.relname}; then see whether autovacuum runs",
            )
    if not bloated:
        most = f"; most in {rows[0].relname}, {rows[0].dead:,}" if rows and rows[0].dead else ""
        yield ok(ABOUT, f"Few dead rows{most}")


def open_transactions(installation: Installation) -> Iterable[Finding]:
    """The oldest that this login can see (a superuser's may be hidden from it), without that of cron's leader.

    That one is open for as long as cron runs, and has no snapshot that would keep a row.
    """
    with installation.reading() as connection:
        oldest = connection.execute(
            text("""
                SELECT pid, usename, coalesce(extract(epoch FROM clock_timestamp() - xact_start), 0) AS open_s
                FROM pg_stat_activity WHERE xact_start IS NOT NULL AND backend_type = 'client backend'
                  AND application_name <> :leader
                ORDER BY xact_start LIMIT 1
            """),
            {"leader": CRON_LEADER},
        ).first()
    if oldest is not None and oldest.open_s > MAX_OPEN_TRANSACTION_S:
        yield warn(
            ABOUT,
            f"A transaction of {oldest.usename} is open for {duration(float(oldest.open_s))} (process {oldest.pid})",
            why="as long as it is open, no dead row of any table can be removed",
            advice=f"end it: SELECT pg_terminate_backend({oldest.pid})",
        )
    else:
        yield ok(ABOUT, "No transaction is open for long")


def transaction_age(installation: Installation) -> Iterable[Finding]:
    with installation.reading() as connection:
        age = int(connection.scalar(_AGE_ON_ALL_NODES if is_distributed(connection) else text(_AGE)) or 0)
    if age > HIGH_AGE:
        finding = problem if age > DANGEROUS_AGE else warn
        yield finding(
            ABOUT,
            f"The oldest row that is not frozen is {age:,} transactions old",
            why="at 2,000 million PostgreSQL stops writing, to protect the data",
            advice="VACUUM (FREEZE), as the owner; see why autovacuum does not get to it",
        )
    else:
        yield ok(ABOUT, f"Transaction ids: {age:,} of 2,000 million in use")


_ROWS = """
    SELECT relname, n_live_tup AS live, n_dead_tup AS dead,
           CASE WHEN greatest(last_autoanalyze, last_analyze) IS NULL THEN n_live_tup ELSE 0 END AS unknown,
           CAST(extract(epoch FROM now() - greatest(last_autovacuum, last_vacuum)) AS float8) AS vacuumed_s
    FROM pg_stat_user_tables WHERE schemaname = 'public' ORDER BY n_dead_tup DESC
"""
_AGE = "SELECT age(datfrozenxid) FROM pg_database WHERE datname = current_database()"
# On a Citus a table's rows are in its shards, whose names end with their numbers; a node that is lost is left out.
_ON_ALL_NODES = text(f"""
    SELECT COALESCE(CAST(s.logicalrelid AS text), r.relname) AS relname, CAST(sum(r.live) AS bigint) AS live,
           CAST(sum(r.dead) AS bigint) AS dead, sum(r.unknown) AS unknown, max(r.vacuumed_s) AS vacuumed_s
    FROM run_command_on_all_nodes($node$ SELECT json_agg(r) FROM ({_ROWS}) r $node$) n
    CROSS JOIN json_to_recordset(CASE WHEN n.success THEN CAST(n.result AS json) END)
        AS r(relname text, live bigint, dead bigint, unknown bigint, vacuumed_s float8)
    LEFT JOIN pg_dist_shard s ON s.shardid = CAST(substring(r.relname FROM '_([0-9]+)$') AS bigint)
    GROUP BY 1 ORDER BY dead DESC
""")  # noqa: S608  ours
_AGE_ON_ALL_NODES = text(f"""
    SELECT max(CAST(result AS bigint)) FROM run_command_on_all_nodes($node$ {_AGE} $node$) WHERE success
""")  # noqa: S608  ours
