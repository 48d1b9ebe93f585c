"""The data sets that `make bench` measures on: filled once by SQL, kept outside the repository, copied for each run.

A data set is a data folder of `plaudit up`. Its numbers are consistent (`plaudit check` finds no difference): counts
and ledgers are inserted as sets, and what is computed from them is computed by the service's own functions.
"""

import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from sqlalchemy import text

from analytics.boards import page_numbers, user_numbers
from analytics.scores import catalog
from analytics.scores.catalog import Terms
from analytics.scoring import Weights
from analytics.windows import hour_of
from app.cli.common import migrated_database
from app.run import server_user
from app.run.data_folder import read_secrets
from app.run.server_roles import DATABASE, SUPERUSER_LOGIN
from loadtests import rows
from migrations.head import head_revision
from tenants import credentials, registry
from tenants import settings as tenant_settings
from tenants.credentials import Scope
from tenants.db import owner_tx, tenant_tx, utcnow

# Older data is filled again: most of its hours have left the short windows.
MAX_AGE_S = 2 * 24 * 3600
MAX_PAGES_PER_STEP = 5_000
MAX_PAGES_PER_INSERT = 20_000
# High enough that no limit against abuse refuses a measured request.
UNLIMITED = {
    "limits": {"score_updates_per_minute": 10_000, "score_spike_per_minute": 100_000_000},
    "integrity": {"points_per_hour": 2**53 - 1},
}
COMPLETE = "bench-complete"

Connection = psycopg.Connection[Any]
# Called with how much of the work is done, in pages.
Advance = Callable[[float], None]


@dataclass(frozen=True)
class TenantSize:
    id: str
    pages: int
    users: int
    entries: int = 0
    days: int = 30


@dataclass(frozen=True)
class DataSet:
    name: str
    tenants: Sequence[TenantSize]

    @property
    def pages(self) -> int:
        return sum(tenant.pages for tenant in self.tenants)


USERS = 100_000
FULL = DataSet(
    "full",
    [
        TenantSize("bench-1", 100_000, USERS, entries=100_000),
        TenantSize("bench-2", 100_000, USERS),
        TenantSize("bench-3", 100_000, USERS),
    ],
)
QUICK = DataSet("quick", [TenantSize("bench-1", 10_000, USERS, entries=10_000)])
# For growth charts. Fewer days, so that a million pages are filled in minutes.
PAGES_OF = {"pages-1k": 1_000, "pages-10k": 10_000, "pages-100k": 100_000, "pages-1m": 1_000_000}
BY_PAGES = DataSet("pages", [TenantSize(name, pages, USERS, 1_000, days=10) for name, pages in PAGES_OF.items()])
BY_TENANTS = DataSet("tenants", [TenantSize(f"tenant-{number:04d}", 20, 20, days=2) for number in range(1_000)])


def cache_folder() -> Path:
    """Where data sets are kept. Root's own cache is closed to the user that PostgreSQL runs as."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "plaudit-bench"
    if os.geteuid() == 0 and not server_user.can_reach(folder, server_user.choose()):
        folder = Path("/var/cache/plaudit-bench")
    return folder / head_revision()


@contextmanager
def copy_of(data: DataSet) -> Iterator[Path]:
    """A data folder with this data, deleted at the end: every run starts from the same. Fills the cache if need be."""
    original = ensure(data)
    copy = original.with_name(f"{data.name}-{os.getpid()}")
    try:
        # With owners and modes: started by root, the servers run as another user.
        subprocess.run(["cp", "--archive", "--reflink=auto", str(original), str(copy)], check=True)  # noqa: S607
        yield copy
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def ensure(data: DataSet) -> Path:
    """The cached data folder, filled if there is none or an old one."""
    folder = cache_folder() / data.name
    if not is_fresh(folder, data, now_s=time.time()):
        unfinished = folder.with_name(f"{data.name}.new")
        for old in (folder, unfinished):
            shutil.rmtree(old, ignore_errors=True)
        unfinished.mkdir(parents=True)
        for made in (unfinished, unfinished.parent, unfinished.parent.parent):
            made.chmod(0o711)
        with _progress(f"Filling {data.name}: {data.pages:,} pages", data.pages) as advance:
            fill_folder(unfinished, data, advance)
        (unfinished / COMPLETE).write_text(fingerprint(data))
        unfinished.rename(folder)
    return folder


def is_fresh(folder: Path, data: DataSet, *, now_s: float) -> bool:
    """Whether the folder was filled lately, to the end, and with what this code would fill it with."""
    complete = folder / COMPLETE
    if not complete.exists() or complete.read_text() != fingerprint(data):
        return False
    return now_s - complete.stat().st_mtime < MAX_AGE_S


def fingerprint(data: DataSet) -> str:
    """Changes with the sizes and the statements of a data set."""
    return hashlib.sha256(repr(data).encode() + Path(rows.__file__).read_bytes()).hexdigest()


def fill_folder(data_dir: Path, data: DataSet, advance: Advance) -> None:
    with migrated_database(data_dir, create=True) as settings:
        password = read_secrets(data_dir)["superuser_password"]
        with psycopg.connect(
            str(settings.database_url), autocommit=True, user=SUPERUSER_LOGIN, password=password
        ) as connection:
            connection.execute("SET session_replication_role = replica")  # no foreign key checks
            # Until everything is filled, a commit need not wait for the disk: also not those of new connections.
            connection.execute("SET synchronous_commit = off")
            connection.execute(f"ALTER DATABASE {DATABASE} SET synchronous_commit = off")
            for tenant in data.tenants:
                fill(connection, tenant, now=utcnow(), advance=advance)
            connection.execute(f"ALTER DATABASE {DATABASE} RESET synchronous_commit")
            connection.execute("VACUUM ANALYZE")
            connection.execute("CHECKPOINT")


def fill(connection: Connection, tenant: TenantSize, *, now: datetime, advance: Advance) -> None:
    """Create one tenant with its history, and compute its numbers. This process is connected to the same database."""
    _create_tenant(tenant, now=now)
    hour = hour_of(now)
    execute = _Inserts(connection, tenant, hour)
    for statement in (rows.PAGES, rows.USERS, rows.LIKES):
        execute(statement)
    is_small = tenant.pages <= 1_000  # then the planner knows enough
    if not is_small:
        execute("ANALYZE pages")
    first, last = execute(rows.PAGE_IDS)[0]
    for start in range(first, last + 1, MAX_PAGES_PER_INSERT):
        end = min(start + MAX_PAGES_PER_INSERT - 1, last)
        execute(rows.VIEWS, first=start, last=end)
        advance((end + 1 - start) / 2)
    for statement in (rows.COUNTERS, rows.LEDGER, rows.POINTS_HOUR, rows.SCORES, rows.PROJECTION):
        execute(statement)
    if not is_small:
        for table in ("page_views_hour", "page_likes", "page_counters", "user_points_hour", "users"):
            execute(f"ANALYZE {table}")
    _compute(tenant, range(first, last + 1), now=now, advance=advance)


class _Inserts:
    """Executes statements of `rows` with the parameters of one tenant."""

    def __init__(self, connection: Connection, tenant: TenantSize, hour: datetime) -> None:
        self._cursor = psycopg.ClientCursor(connection)  # literals, whose types PostgreSQL derives
        self._parameters = {
            "tenant": tenant.id,
            "hour": hour,
            "hours": tenant.days * 24,
            "pages": tenant.pages,
            "busy": max(1, round(tenant.pages * rows.BUSY_SHARE)),
            "users": tenant.users,
            "paid_users": min(tenant.users, tenant.entries // rows.ENTRIES_PER_USER),
            "entries": rows.ENTRIES_PER_USER,
            "spaces": rows.SPACES,
            "shuffle": rows.SHUFFLE,
            "exponent": rows.EXPONENT,
            "max_likes": rows.MAX_LIKES,
            "action": rows.ACTION,
            "points": rows.POINTS,
        }

    def __call__(self, statement: str, **more: int) -> list[Any]:
        self._cursor.execute(statement, {**self._parameters, **more})
        return self._cursor.fetchall() if self._cursor.description else []


def _create_tenant(tenant: TenantSize, *, now: datetime) -> None:
    with owner_tx() as tx:
        registry.ensure(tx, tenant.id, name=f"{tenant.pages:,} pages", now=now)
    with tenant_tx(tenant.id) as tx:
        tenant_settings.change(tx, UNLIMITED, now=now)
        catalog.put(tx, rows.ACTION, Terms(rows.POINTS), now=now)
        credentials.create_client(tx, name="Bench", scopes=[scope.value for scope in Scope], now=now)


def _compute(tenant: TenantSize, page_ids: range, *, now: datetime, advance: Advance) -> None:
    """What a projection would have saved, without Redis: the boards are rebuilt from it when the service starts."""
    for start in range(page_ids.start, page_ids.stop, MAX_PAGES_PER_STEP):
        chunk = range(start, min(start + MAX_PAGES_PER_STEP, page_ids.stop))
        with tenant_tx(tenant.id) as tx:
            tx.execute(text("SET LOCAL statement_timeout = 0"))
            changes = page_numbers.compute(tx, chunk, now=now, weights=Weights(), shared=False)
            page_numbers.save(tx, changes, now=now)
        advance(len(chunk) / 2)
    with tenant_tx(tenant.id) as tx:
        tx.execute(text("SET LOCAL statement_timeout = 0"))
        user_ids = tx.scalars(text(rows.PAID_USERS), {"tenant": tenant.id}).all()
        user_numbers.save(tx, user_numbers.compute(tx, user_ids, now=now), now=now)


@contextmanager
def _progress(what: str, total: int) -> Iterator[Advance]:
    columns = (TextColumn(what), BarColumn(), TextColumn("{task.percentage:3.0f} %"), TimeElapsedColumn())
    with Progress(*columns) as progress:
        task = progress.add_task(what, total=total)
        yield lambda pages: progress.update(task, advance=pages)
