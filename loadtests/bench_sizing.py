"""The model of sizes compared with the service at three sizes: bytes of PostgreSQL and Redis, and processor time."""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import psycopg
import requests
from rich.console import Console
from rich.table import Table

from analytics.boards import snapshots
from analytics.windows import Window
from loadtests import generator, operations, rows, sizing
from loadtests.dataset import DataSet, TenantSize
from loadtests.floors import BATCH
from loadtests.pools import Pool
from loadtests.service import wait_until
from loadtests.sizing import HOURS, PROCESSES, Load, Popularity, Sizes, readable
from loadtests.target import Target, running_target
from tenants import db, redis

PAGES = (1_000, 10_000, 100_000)
DATA_SETS = [
    DataSet(f"size-{pages}", [TenantSize(f"size-{number}", pages, pages, entries=pages) for number in range(3)])
    for pages in PAGES
]
# Sent as fast as they are answered, since a busy service shares its commits; with the number of events in a request.
KINDS: dict[str, tuple[Callable[[Target], Pool], int]] = {
    "view": (operations.views, 1),
    "batched view": (partial(operations.view_batches, with_ids=True), BATCH),
    "like": (operations.likes, 1),
    "action": (operations.actions, 1),
}
SLIDE_WITHIN_S = 300


@dataclass
class Measured:
    data: DataSet
    rows: dict[str, int]
    disk_bytes: dict[str, int]
    redis_bytes: int
    redis_entries: int
    # Microseconds of processor time for an event of a kind, by process.
    microseconds: dict[str, dict[str, float]] = field(default_factory=dict)
    # Of what only events leave: bytes on disk.
    bytes_per_row: dict[str, float] = field(default_factory=dict)


def sizing_costs(seconds: float) -> None:
    console = Console()
    measured = []
    for data in DATA_SETS:
        with running_target(data) as target:
            measured.append(measure(target, seconds))
        show(measured[-1], predicted(data), console)
    show_costs(measured, console)


def measure(target: Target, seconds: float) -> Measured:
    with target.owner() as owner:
        owner.execute("VACUUM ANALYZE")
        found = owner.execute(_TABLES).fetchall()
        sizes = Measured(
            target.data,
            {name: _count(owner, name) for name, _ in found},
            {name: int(in_bytes) for name, in_bytes in found},
            *_of_redis(target),
        )
    for kind, (make, events) in KINDS.items():
        target.measurement += 1
        pool, used = make(target), Used(target)
        sample = generator.measure(target.port, pool, seconds=seconds)
        target.wait_until_idle()
        sizes.microseconds[kind] = used.since(round(sample.per_second * seconds) * events)
    used = Used(target)
    sizes.microseconds["slid page"] = used.since(_slide(target))
    sizes.bytes_per_row = _of_events(target)
    return sizes


def _of_events(target: Target) -> dict[str, float]:
    """Bytes for each row of what events left, and for each row of a snapshot."""
    addresses = target.addresses
    db.configure(service_url=addresses["service_database_url"], owner_url=addresses["database_url"], pool_size=2)
    redis.configure(boards_url=addresses["redis_url"], queue_url=addresses["redis_url"])
    try:
        snapshots.refresh_all(now=db.utcnow())
    finally:
        db.dispose()
    with target.owner() as owner:
        found = {name: int(in_bytes) for name, in_bytes in owner.execute(_TABLES).fetchall()}
        per_row = {name: found[name] / max(1, _count(owner, name)) for name in ("seen_events", "action_events")}
        listed = owner.execute("SELECT sum(cardinality(members)) FROM leaderboard_snapshots").fetchone()
    per_row["leaderboard_snapshots"] = found["leaderboard_snapshots"] / max(1, (listed or [0])[0] or 0)
    return per_row


def predicted(data: DataSet) -> Sizes:
    """What the model says about a data set, whose tenants are alike."""
    return sizing.size(replace(load_of(data.tenants[0]), tenants=len(data.tenants)))


def load_of(tenant: TenantSize) -> Load:
    """A tenant as `loadtests.rows` fills it."""
    hours, busy = tenant.days * 24, max(1, round(tenant.pages * rows.BUSY_SHARE))
    buckets = [math.ceil(min(1.0, (busy / (rank + 1)) ** rows.EXPONENT) * hours) for rank in range(tenant.pages)]
    likes = [
        min(tenant.users, math.floor(rows.MAX_LIKES * (rank + 1) ** -rows.EXPONENT)) for rank in range(tenant.pages)
    ]
    return Load(
        tenants=1,
        pages=tenant.pages,
        users=tenant.users,
        spaces=rows.SPACES,
        popularity=Popularity(sum(buckets) / tenant.pages / tenant.days, _shares(buckets, hours)),
        likes=sum(likes),
        liked=_shares(likes, hours),
        paid_users=min(tenant.users, tenant.entries // rows.ENTRIES_PER_USER),
        entries=tenant.entries,
        bucket_days=tenant.days,
        sealed_days=-1,  # boards that have not changed have no snapshot
    )


def _shares(counts: Sequence[int], hours: int) -> dict[Window, float]:
    """The share of pages that a window has, of pages that had something this often, at equal distances."""
    shares = {window: sum(min(1.0, count * long / hours) for count in counts) for window, long in HOURS.items()}
    shares[Window.ALL] = sum(count > 0 for count in counts)
    return {window: share / len(counts) for window, share in shares.items()}


class Used:
    """Processor time of the service's processes since a moment."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._before = self._now()

    def since(self, events: int) -> dict[str, float]:
        """Microseconds for each of so many events, by process."""
        now = self._now()
        return {process: (now[process] - self._before[process]) * 1e6 / max(1, events) for process in PROCESSES}

    def _now(self) -> dict[str, float]:
        used: defaultdict[str, float] = defaultdict(float)
        for child in self._target.service.processes():
            name = _kind(child)
            for process in [child, *child.children(recursive=True)]:
                try:
                    times = process.cpu_times()
                except psutil.NoSuchProcess:
                    continue
                used[name] += times.user + times.system
            used[name] += child.cpu_times().children_user + child.cpu_times().children_system
        return used


def _kind(process: psutil.Process) -> str:
    program = Path(process.cmdline()[0]).name
    for name, mark in (("postgres", "postgres"), ("redis", "valkey")):
        if mark in program:
            return name
    return process.name().removeprefix("plaudit-")


def _slide(target: Target) -> int:
    """Have the windows slide by an hour once more; returns how many pages were computed for it."""
    before = _projected(target)
    with target.owner() as owner:
        owner.execute("UPDATE projections SET slid_to = slid_to - interval '1 hour'")
        wait_until(
            lambda: (
                owner.execute("SELECT bool_and(slid_to >= date_trunc('hour', now())) FROM projections").fetchone()
                == (True,)
            ),
            within_s=SLIDE_WITHIN_S,
        )
    target.wait_until_idle(within_s=SLIDE_WITHIN_S)
    return _projected(target) - before


def _projected(target: Target) -> int:
    lines = requests.get(f"{target.service.url}/metrics", timeout=10).text.splitlines()
    return sum(
        int(float(line.rsplit(" ", 1)[1])) for line in lines if line.startswith("plaudit_projected_members_total{")
    )


def _count(owner: psycopg.Connection[Any], table: str) -> int:
    found = owner.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608  a name of ours
    return int(found[0]) if found else 0


def _of_redis(target: Target) -> tuple[int, int]:
    with target.redis() as client:
        memory = client.info("memory")
        entries = sum(client.zcard(key) for key in client.scan_iter("lb:*", count=1000))
    return int(memory["used_memory"]) - int(memory["used_memory_startup"]), int(entries)


_TABLES = """
    SELECT COALESCE(parent.relname, c.relname), sum(pg_total_relation_size(c.oid))
    FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid LEFT JOIN pg_class parent ON parent.oid = i.inhparent
    WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' GROUP BY 1 ORDER BY 2 DESC
"""


def show(measured: Measured, model: Sizes, console: Console) -> None:
    pages = measured.data.pages
    table = Table(f"{pages:,} pages", "rows", "bytes/row", "measured", "model", "ratio")
    for name, in_bytes in measured.disk_bytes.items():
        said = model.disk_bytes.get(name)
        if said or in_bytes > 200_000:
            count = measured.rows[name]
            table.add_row(
                name,
                f"{count:,}",
                f"{in_bytes / max(1, count):,.0f}",
                readable(in_bytes),
                readable(said or 0),
                f"{(said or 0) / in_bytes:.2f}",
            )
    for name, real, said in (
        ("PostgreSQL", sum(measured.disk_bytes.values()), model.postgres_bytes),
        ("Redis", measured.redis_bytes, model.redis_bytes),
    ):
        table.add_row(name, "", "", readable(real), readable(said), f"{said / real:.2f}", style="bold")
    table.add_row(
        "entries of boards",
        f"{measured.redis_entries:,}",
        f"{measured.redis_bytes / max(1, measured.redis_entries):,.0f}",
        "",
        f"{model.redis_entries:,.0f}",
        f"{model.redis_entries / measured.redis_entries:.2f}",
    )
    console.print(table)


def show_costs(measured: Sequence[Measured], console: Console) -> None:
    table = Table("µs of processor time", *(f"{each.data.pages:,} pages" for each in measured), "model")
    for kind, costs in sizing.MICROSECONDS.items():
        for process in PROCESSES:
            if costs[process]:
                found = [f"{each.microseconds[kind][process]:.0f}" for each in measured]
                table.add_row(f"{kind}: {process}", *found, f"{costs[process]:.0f}")
    for name in measured[0].bytes_per_row:
        said = {**sizing.BYTES_PER_ROW, "leaderboard_snapshots": sizing.BYTES_PER_SNAPSHOT_ROW}[name]
        table.add_row(f"{name}, bytes/row", *(f"{each.bytes_per_row[name]:.0f}" for each in measured), f"{said:.0f}")
    console.print(table)
