"""What tenants, pages and events need: a small model of PostgreSQL's disk, Redis's memory and processor time.

    python -m loadtests.sizing --tenants 10000 --pages 100000 --views-per-day 20000

Pages are viewed by Zipf's law. From a page's views in an hour follow the rows that are kept of it, the boards that have
it, and how often a worker computes it. The costs of a row, an entry and an event are measured; `make bench ARGS=sizing`
measures them again at three sizes, and compares the model with each.
"""

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from rich.console import Console
from rich.table import Table

from analytics.boards.snapshots import MAX_ROWS as MAX_SNAPSHOT_ROWS
from analytics.metrics import page_metrics
from analytics.windows import WINDOWS, Window
from tenants.settings import Retention

HOURS = {Window.DAY: 24, Window.WEEK: 7 * 24, Window.MONTH: 30 * 24}
# Pages are viewed by Zipf's law with this exponent, as in the data sets.
EXPONENT = 0.8
# Popularities that are summed as one: a model of 1,000,000 pages takes no longer than one of 1,000.
STEPS = 400

# Bytes on disk, indexes included.
BYTES_PER_ROW = {
    "pages": 590.0,
    "page_counters": 205.0,
    "page_stats": 330.0,
    "page_views_hour": 220.0,
    "page_likes": 340.0,
    "users": 435.0,
    "user_stats": 680.0,
    "score_ledger": 495.0,
    "user_points_hour": 255.0,
    "action_events": 455.0,
    "seen_events": 124.0,
    "page_visitors": 150.0,
}
BYTES_PER_SNAPSHOT, BYTES_PER_SNAPSHOT_ROW = 300.0, 18.0
# Bytes in Redis.
BYTES_PER_PAGE_ENTRY = 55.0
BYTES_PER_USER_ENTRY = 200.0
BYTES_PER_SUMMARY = 380.0
BYTES_PER_BOARD = 500.0
# Microseconds of processor time, of each process, for an event with its projection, in a busy tenant of 100,000 pages.
MICROSECONDS: dict[str, dict[str, float]] = {
    "view": {"web": 100.0, "worker": 45.0, "postgres": 145.0, "redis": 30.0},
    "batched view": {"web": 20.0, "worker": 33.0, "postgres": 105.0, "redis": 14.0},
    "like": {"web": 95.0, "worker": 18.0, "postgres": 170.0, "redis": 8.0},
    "action": {"web": 315.0, "worker": 65.0, "postgres": 290.0, "redis": 33.0},
    # A page whose hours have left a window is counted again.
    "slid page": {"web": 0.0, "worker": 42.0, "postgres": 300.0, "redis": 3.0},
}
PROCESSES = ("web", "worker", "postgres", "redis")
BYTES_PER_SOCKET = 53 * 1024


@dataclass(frozen=True)
class Popularity:
    """How a tenant's pages are viewed: hours with a view for each page and day, and the pages that a window has."""

    hours_per_day: float
    viewed: Mapping[Window, float]

    @classmethod
    def of_views(cls, pages: int, views_per_day: float) -> "Popularity":
        """By Zipf's law; the views of a page come at random times."""
        rates = [(share, views_per_day / 24 * weight) for share, weight in _zipf(pages)]
        hours = sum(share * 24 * (1 - math.exp(-per_hour)) for share, per_hour in rates)
        viewed = {
            window: sum(share * (1 - math.exp(-per_hour * hours)) for share, per_hour in rates)
            for window, hours in HOURS.items()
        }
        return cls(hours, {**viewed, Window.ALL: 1.0})


@dataclass(frozen=True)
class Load:
    """What is kept and what happens. Everything but `tenants` is of one tenant."""

    tenants: int
    pages: int
    users: int
    popularity: Popularity
    spaces: int = 10
    likes: float = 0.0
    # The share of pages with a like, by window.
    liked: Mapping[Window, float] = field(default_factory=dict)
    public_share: float = 0.0
    paid_users: float = 0.0
    entries: float = 0.0
    views_per_day: float = 0.0
    batched_views_per_day: float = 0.0
    likes_per_day: float = 0.0
    actions_per_day: float = 0.0
    visitors_per_day: float = 0.0
    has_visitors: bool = False
    sealed_days: int = Retention().snapshots_days
    bucket_days: int = Retention().hourly_buckets_days
    event_id_days: int = Retention().event_ids_days
    action_event_days: int = Retention().action_events_days

    @property
    def page_scopes(self) -> float:
        """The scopes that a page is in, on average."""
        return 2 * (1 + self.public_share)

    @property
    def boards(self) -> float:
        scopes = (1 + self.spaces) * (2 if self.public_share else 1)
        return scopes * len(page_metrics()) * len(WINDOWS) + (len(WINDOWS) if self.paid_users else 0)


@dataclass(frozen=True)
class Sizes:
    """Of all tenants together."""

    rows: Mapping[str, float]
    disk_bytes: Mapping[str, float]
    redis_entries: float
    redis_bytes: float
    # Processors that are busy on average, by process.
    cores: Mapping[str, float]

    @property
    def postgres_bytes(self) -> float:
        return sum(self.disk_bytes.values())


def size(load: Load) -> Sizes:
    rows = {name: load.tenants * count for name, count in _rows(load).items()}
    disk = {name: count * BYTES_PER_ROW[name] for name, count in rows.items()}
    snapshots, snapshot_rows = _snapshots(load)
    disk["leaderboard_snapshots"] = load.tenants * (
        snapshots * BYTES_PER_SNAPSHOT + snapshot_rows * BYTES_PER_SNAPSHOT_ROW
    )
    entries = _page_entries(load)
    user_entries = load.paid_users * len(WINDOWS)
    redis = (
        entries * BYTES_PER_PAGE_ENTRY
        + user_entries * BYTES_PER_USER_ENTRY
        + load.pages * BYTES_PER_SUMMARY
        + load.boards * BYTES_PER_BOARD
    )
    return Sizes(
        rows={**rows, "leaderboard_snapshots": load.tenants * snapshots},
        disk_bytes=disk,
        redis_entries=load.tenants * (entries + user_entries),
        redis_bytes=load.tenants * redis,
        cores=_cores(load),
    )


def _rows(load: Load) -> dict[str, float]:
    ids = load.views_per_day + load.batched_views_per_day
    return {
        "pages": load.pages,
        "page_counters": load.pages,
        "page_stats": load.pages,
        "page_views_hour": load.pages * load.popularity.hours_per_day * load.bucket_days,
        "page_likes": load.likes,
        "users": load.users,
        "user_stats": load.paid_users,
        "score_ledger": load.entries,
        "user_points_hour": load.entries,
        "action_events": load.actions_per_day * load.action_event_days,
        "seen_events": ids * load.event_id_days,
        "page_visitors": load.visitors_per_day * 2,
    }


def _page_entries(load: Load) -> float:
    """Entries of boards: a page is on the boards of views and of the score if it was viewed, and so on."""
    entries = 0.0
    for window in Window:
        viewed = load.popularity.viewed[window]
        liked = load.liked.get(window, 0.0)
        either = 1 - (1 - viewed) * (1 - liked)
        entries += viewed * (2 if load.has_visitors else 1) + liked + either
    return load.pages * load.page_scopes * entries


def _snapshots(load: Load) -> tuple[float, float]:
    """Snapshots, and the rows in them: each board changes every day, and has the present one besides."""
    days = load.sealed_days + 1
    per_board = _page_entries(load) / max(1.0, load.boards)
    return load.boards * days, load.boards * days * min(per_board, MAX_SNAPSHOT_ROWS)


def _cores(load: Load) -> dict[str, float]:
    slid = load.pages * load.popularity.hours_per_day * len(HOURS)
    per_day = {
        "view": load.views_per_day,
        "batched view": load.batched_views_per_day,
        "like": load.likes_per_day,
        "action": load.actions_per_day,
        "slid page": slid,
    }
    return {
        process: load.tenants
        * sum(count * MICROSECONDS[kind][process] for kind, count in per_day.items())
        / (24 * 3600 * 1e6)
        for process in PROCESSES
    }


def _zipf(pages: int) -> list[tuple[float, float]]:
    """Shares of the pages, and of the views that each page of a share gets: in steps that grow with the rank."""
    edges = sorted({round(pages ** (step / STEPS)) for step in range(STEPS + 1)} | {0, pages})
    total, groups = 0.0, []
    for first, last in pairwise(edges):
        weight = (
            sum(rank**-EXPONENT for rank in range(first + 1, last + 1)) if last - first < 64 else _area(first, last)
        )
        total += weight
        groups.append(((last - first) / pages, weight / (last - first)))
    return [(share, weight / total) for share, weight in groups]


def _area(first: int, last: int) -> float:
    """The sum of rank ** -EXPONENT for many ranks, as an integral."""
    power = 1 - EXPONENT
    return float((last + 0.5) ** power - (first + 0.5) ** power) / power


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.sizing",
        description=__doc__.split("\n", 1)[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    some, any_number = _between(1), _between(0)
    per_day = _between(0, kind=float)
    days = Retention().snapshots_days
    parser.add_argument("--tenants", type=some, default=10_000, help="how many")
    of_a_tenant = parser.add_argument_group("of each tenant")
    of_a_tenant.add_argument("--pages", type=some, default=100_000, help="how many")
    of_a_tenant.add_argument("--spaces", type=any_number, default=10, help="how many")
    of_a_tenant.add_argument("--users", type=any_number, default=1_000, help="how many")
    of_a_tenant.add_argument("--views-per-day", type=per_day, default=20_000, help="half of them in batches")
    of_a_tenant.add_argument("--likes-per-day", type=per_day, default=200, help="of all pages")
    of_a_tenant.add_argument("--actions-per-day", type=per_day, default=1_000, help="of all users")
    of_a_tenant.add_argument(
        "--public-share", type=_between(0, 1, kind=float), default=0.0, help="of the pages, 0 to 1"
    )
    of_a_tenant.add_argument("--snapshots-days", type=any_number, default=days, help="for which boards are kept")
    parser.add_argument("--sockets", type=any_number, default=0, help="open at once, of all tenants")
    return parser.parse_args(arguments)


def _between(least: int, most: float = 1e12, *, kind: type[int] | type[float] = int) -> Callable[[str], float]:
    """What reads an option: whole numbers unless `kind` says otherwise."""

    def number(given: str) -> float:
        value = kind(given)
        if not least <= value <= most:  # also of what is no number
            raise argparse.ArgumentTypeError(f"{given} is not between {least:,} and {most:,.0f}")
        return value

    return number


def load_of(options: argparse.Namespace) -> Load:
    """A year of this."""
    popularity = Popularity.of_views(options.pages, options.views_per_day)
    likes = options.likes_per_day * 365
    return Load(
        tenants=options.tenants,
        pages=options.pages,
        users=options.users,
        spaces=options.spaces,
        popularity=popularity,
        likes=likes,
        liked={
            **Popularity.of_views(options.pages, options.likes_per_day).viewed,
            Window.ALL: min(1.0, likes / options.pages),
        },
        public_share=options.public_share,
        paid_users=options.users,
        entries=options.actions_per_day * 365,
        views_per_day=options.views_per_day / 2,
        batched_views_per_day=options.views_per_day / 2,
        likes_per_day=options.likes_per_day,
        actions_per_day=options.actions_per_day,
        visitors_per_day=options.views_per_day / 2,
        has_visitors=True,
        sealed_days=options.snapshots_days,
    )


def show(options: argparse.Namespace, sizes: Sizes, console: Console) -> None:
    console.print(
        f"{options.tenants:,} tenants with {options.pages:,} pages each, {options.views_per_day:,.0f} views,"
        f" {options.likes_per_day:,.0f} likes and {options.actions_per_day:,.0f} actions a day each, after a year"
    )
    table = Table("PostgreSQL", "rows", "on disk", title_justify="left")
    for name, in_bytes in sorted(sizes.disk_bytes.items(), key=lambda item: -item[1]):
        if in_bytes:
            table.add_row(name, f"{sizes.rows[name]:,.0f}", readable(in_bytes))
    table.add_row("all", "", readable(sizes.postgres_bytes), style="bold")
    console.print(table)
    console.print(f"Redis: {sizes.redis_entries:,.0f} entries of boards, {readable(sizes.redis_bytes)}")
    cores = ", ".join(f"{process} {busy:,.2g}" for process, busy in sizes.cores.items())
    console.print(f"Processors, busy on average: {cores}. Plan for the peak: three to five times as many.")
    if options.sockets:
        console.print(f"Sockets: {readable(options.sockets * BYTES_PER_SOCKET)} in the live processes")


def readable(in_bytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if in_bytes < 1024:
            return f"{in_bytes:,.1f} {unit}" if unit != "B" else f"{in_bytes:,.0f} B"
        in_bytes /= 1024
    return f"{in_bytes:,.1f} TB"


def main() -> None:
    options = parse()
    show(options, size(load_of(options)), Console())


if __name__ == "__main__":
    main()
