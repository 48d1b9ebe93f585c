"""The settings of the local PostgreSQL, for many short transactions on a machine that it shares. All of it is durable.

They are given on the server's command line, so an existing data folder has them from its next start. docs/operating.md
advises the same for one's own server, and `plaudit doctor` compares.
"""

import shutil
from pathlib import Path

MB, GB = 2**20, 2**30
STATEMENTS = "pg_stat_statements"


def for_postgres(*, memory: int, free_disk: int, counts_statements: bool) -> dict[str, str]:
    """For a machine with this memory and a disk with this much free space, in bytes."""
    settings = {
        "max_connections": "200",
        # A quarter of the memory, as PostgreSQL's own manual advises: what boards are computed from should be in it.
        "shared_buffers": _megabytes(memory // 4, at_least=128 * MB, at_most=4 * GB),
        "effective_cache_size": _megabytes(memory * 3 // 4, at_least=512 * MB, at_most=64 * GB),
        # Indexes are vacuumed in one pass, even of large tables.
        "maintenance_work_mem": _megabytes(memory // 32, at_least=64 * MB, at_most=512 * MB),
        # After a checkpoint each page that changes is logged whole once more, so checkpoints are rare. The log takes
        # disk space for it: a tenth of what is free at most.
        "checkpoint_timeout": "15min",
        "max_wal_size": _megabytes(free_disk // 10, at_least=1 * GB, at_most=8 * GB),
        # Kept for reuse when the load is low: creating log files costs writers time.
        "min_wal_size": "256MB",
        "random_page_cost": "1.1",
        # Compiling takes longer than our statements.
        "jit": "off",
        # Hot tables have thousands of dead rows a second: look often, in short turns that finish. Which tables are
        # vacuumed when is in the schema (migrations, storage of hot tables).
        "autovacuum_naptime": "15s",
        "autovacuum_vacuum_cost_limit": "1000",
        "timezone": "UTC",
        "log_timezone": "UTC",
        "log_line_prefix": "",
        "log_min_messages": "warning",
        "log_checkpoints": "off",
    }
    if counts_statements:
        # Without BEGIN, COMMIT and SET, which every transaction of ours has.
        settings |= {"shared_preload_libraries": STATEMENTS, f"{STATEMENTS}.track_utility": "off"}
    return settings


def free_disk(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def has_statements(postgres: Path) -> bool:
    """Whether the extension comes with this server."""
    library = postgres.parents[1] / "lib"
    return any((folder / f"{STATEMENTS}.so").exists() for folder in (library, library / "postgresql"))


def _megabytes(wanted: int, *, at_least: int, at_most: int) -> str:
    return f"{max(at_least, min(wanted, at_most)) // MB}MB"
