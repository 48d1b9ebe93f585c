"""`plaudit check`: every number and board against a recomputation with no query or formula of the projection.

Pages and users are compared in chunks (`analytics.comparing`), their boards with them. Stale pages and users are left
out: they are late, not wrong.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal
from math import log
from typing import TYPE_CHECKING, Any

from sqlalchemy import text

from analytics.boards import user_checking
from analytics.boards.names import ALL_TENANTS
from analytics.boards.redis_checking import NOT_COMPLETE, key_of, on_global, surplus, values_of
from analytics.boards.user_checking import DAYS, WINDOWS
from analytics.comparing import PAGES, USERS, Chunk, Compared, Found, Walk
from analytics.metrics import SCORE, Computed, Counted, Metric, counted_metrics, page_metrics
from analytics.scoring import Weights
from tenants import redis
from tenants.db import Tx

if TYPE_CHECKING:
    from redis import Redis

LATE_AFTER = timedelta(minutes=10)
MAX_LOOKS = 4
LOOK_AGAIN_AFTER_S = 2.0


@dataclass(frozen=True)
class Difference:
    """A value that differs from the expected one."""

    tenant_id: str
    where: str
    member: str
    found: Any
    expected: Any

    def __str__(self) -> str:
        found, expected = (_shown(value) for value in (self.found, self.expected))
        return f"{self.tenant_id}  {self.where}  {self.member}: found {found}, expected {expected}"


@dataclass(frozen=True)
class Expected:
    """The numbers that a page should have, and the scopes it should be in."""

    external_id: str
    numbers: dict[str, float]
    scopes: tuple[str, ...]
    is_shared: bool

    def on_global(self, window: str, metric: str) -> float | None:
        """The page's value on a global board; None if it is not on it."""
        return (self.is_shared and self.numbers[f"{metric}_{window}"]) or None


@dataclass
class Report:
    pages: int = 0
    boards: int = 0
    due: int = 0
    differences: list[Difference] = field(default_factory=list)

    def add(self, tenant_id: str, compared: Compared) -> None:
        self.boards += len(compared.members)
        self.due += compared.due
        self.differences += [Difference(tenant_id, *found) for found in dict.fromkeys(compared.found)]


def check(tenant_id: str, *, now: datetime) -> Report:
    """Compare what boards are made of, and the boards: of pages and of users."""
    report, walk = Report(), Walk(tenant_id, now)
    check_pages(walk, report)
    check_users(walk, report)
    return report


def check_pages(walk: Walk, report: Report) -> None:
    """Compare every page's numbers with its counts, and page boards with these."""
    report.add(walk.tenant_id, walk.once("pages", lambda tx: _late_windows(tx, walk.now)))
    of_pages = walk.over("pages", PAGES, _compare, with_boards=True)
    report.pages += of_pages.compared
    report.add(walk.tenant_id, of_pages)
    report.add(walk.tenant_id, surplus(walk, "pages", of_pages.members, of_pages.lost, of_users=False))


def check_users(walk: Walk, report: Report) -> None:
    """Compare every user's totals with the ledger, and user boards with it."""
    of_users = walk.over("users", USERS, user_checking.compare, with_boards=True)
    report.add(walk.tenant_id, of_users)
    report.add(walk.tenant_id, surplus(walk, "users", of_users.members, of_users.lost, of_users=True))


def check_global(walks: Sequence[Walk], report: Report) -> None:
    """Find pages of no tenant on the global boards. (The pages of a tenant are compared with its others.)

    No lock covers all tenants: a difference is real if it is found again a moment later.
    """
    found = _strangers(walks)
    for _ in range(MAX_LOOKS - 1):
        if not found:
            break
        time.sleep(LOOK_AGAIN_AFTER_S)
        found &= _strangers(walks)
    report.differences += [Difference(ALL_TENANTS, *one) for one in sorted(found)]


def _strangers(walks: Sequence[Walk]) -> set[Found]:
    shared: set[int] = set()

    def gather(tx: Tx, chunk: Chunk) -> Compared:
        shared.update(tx.scalars(_SHARED, chunk.parameters))
        return Compared()

    for walk in walks:
        walk.over("global", PAGES, gather)
    return set(on_global(replace(walks[0], tenant_id=ALL_TENANTS), shared)) if walks else set()


def _late_windows(tx: Tx, now: datetime) -> Iterator[Found]:
    hour = hour_of(tx)
    if hour is not None and now - hour > timedelta(hours=1) + LATE_AFTER:
        yield "projections", "windows", f"slid to {hour:%F %H:%M}", f"{now:%F %H:00}"


def _compare(tx: Tx, chunk: Chunk) -> Compared:
    due = _due(tx, chunk)
    expected = {page_id: page for page_id, page in _expected(tx, chunk) if page_id not in due}
    compared = Compared(list(_wrong_stats(tx, expected, due, chunk)), compared=len(expected), due=len(due))
    with redis.boards().client() as client:
        _compare_boards(client, tx.tenant, expected, compared)
        compared.found += _wrong_on_global(client, expected)
    return compared


def _due(tx: Tx, chunk: Chunk) -> set[int]:
    """The stale pages: marked one by one, or because the tenant began or stopped sharing."""
    rows = tx.scalars(
        text("""
            WITH marked AS (
                SELECT CAST(member AS bigint) AS id FROM outbox
                WHERE tenant_id = :tenant AND kind IN ('page', 'views')
                UNION SELECT CAST(member AS bigint) FROM projecting WHERE tenant_id = :tenant AND kind = 'page')
            SELECT id FROM marked WHERE id > :after AND id <= :last
            UNION SELECT page_id FROM page_stats
                WHERE tenant_id = :tenant AND page_id > :after AND page_id <= :last
                AND is_public AND is_shared <> :shared
                AND EXISTS (SELECT FROM outbox WHERE tenant_id = :tenant AND kind = 'sharing')
        """),
        {**chunk.parameters, "shared": _is_shared(tx)},
    )
    return set(rows)


def _is_shared(tx: Tx) -> bool:
    """Whether the tenant shares its public pages with the global boards."""
    query = text("SELECT (overrides->>'share_public_pages')::boolean FROM tenant_settings WHERE tenant_id = :tenant")
    return bool(tx.scalar(query, {"tenant": tx.tenant}))


def hour_of(tx: Tx) -> datetime | None:
    """The hour with which every window ends; None if nothing was projected yet."""
    hour: datetime | None = tx.scalar(
        text("SELECT slid_to FROM projections WHERE tenant_id = :tenant"), {"tenant": tx.tenant}
    )
    return hour


def _expected(tx: Tx, chunk: Chunk) -> Iterator[tuple[int, Expected]]:
    """The expected numbers of these pages, from the counted rows of each metric."""
    hour, shared, weights = hour_of(tx) or chunk.now, _is_shared(tx), _weights(tx)
    counted = {metric.name: source for metric, source in counted_metrics().items()}
    rows = tx.execute(
        text(f"""
            SELECT p.id, p.external_id, p.space_key, p.visibility, {", ".join(f"{name}.*" for name in counted)}
            FROM pages p JOIN page_counters c ON c.tenant_id = p.tenant_id AND c.page_id = p.id
            {"".join(_recounted(name, source) for name, source in counted.items())}
            WHERE p.tenant_id = :tenant AND p.id > :after AND p.id <= :last
        """),  # noqa: S608  names from the table of metrics
        {**chunk.parameters, "end": hour + timedelta(hours=1)},
    )
    for row in rows:
        numbers: dict[str, float] = {}
        for window in WINDOWS:
            counts = {name: int(getattr(row, f"{name}_{window}") or 0) for name in counted}
            for metric in page_metrics():
                numbers[f"{metric}_{window}"] = _value(metric, weights, counts)
        public = row.visibility == "public"
        kinds = ("space", "public") if public else ("space",)
        scopes = ("tenant", *(["public"] if public else []), *(f"{kind}:{row.space_key}" for kind in kinds))
        yield row.id, Expected(row.external_id, numbers, scopes, is_shared=public and shared)


def _value(metric: Metric, weights: Weights, counts: Mapping[str, int]) -> float:
    """The score by a formula of our own, so that a mistake in the projection's is found."""
    if metric is SCORE:
        exact = weights.likes * counts["likes"] + weights.views * log(1 + counts["views"])
        return float(Decimal(exact).quantize(Decimal("0.000001"), rounding=ROUND_HALF_EVEN))
    return metric.source.value(weights, counts) if isinstance(metric.source, Computed) else counts[metric.name]


def _recounted(name: str, source: Counted) -> str:
    """One metric's counts of these pages, in one pass over its rows."""
    in_windows = ", ".join(
        f"{source.aggregate} FILTER (WHERE {source.time} >= :end - interval '{days} days' AND {source.time} < :end)"
        f" AS {name}_{window}"
        for window, days in DAYS.items()
    )
    purged = f"c.{source.purged}" if source.purged else "0"
    return f"""
        LEFT JOIN (SELECT page_id AS {name}_page, {in_windows}, {source.aggregate} AS {name}_kept
                   FROM {source.table} WHERE tenant_id = :tenant AND page_id > :after AND page_id <= :last
                   GROUP BY page_id) {name}_rows ON {name}_page = p.id
        CROSS JOIN LATERAL (SELECT {name}_rows.*, COALESCE({name}_kept, 0) + {purged} AS {name}_all) {name}
    """  # noqa: S608  names from the table of metrics


def _weights(tx: Tx) -> Weights:
    """The weights that the projection uses."""
    row = tx.execute(
        text("""
            SELECT w.likes, w.views FROM score_weights w JOIN projections p ON p.tenant_id = w.tenant_id
            WHERE w.tenant_id = :tenant AND w.version = p.weights_version
        """),
        {"tenant": tx.tenant},
    ).one_or_none()
    return Weights(row.likes, row.views) if row is not None else Weights()


def _page_metric_names() -> list[str]:
    return [metric.name for metric in page_metrics()]


def _wrong_stats(tx: Tx, expected: dict[int, Expected], due: set[int], chunk: Chunk) -> Iterator[Found]:
    columns = [f"{metric}_{window}" for metric in _page_metric_names() for window in WINDOWS]
    kept = {
        row.page_id: {name: getattr(row, name) for name in (*columns, "is_shared")}
        for row in tx.execute(_STATS, chunk.parameters)
        if row.page_id not in due
    }
    all_zero = dict.fromkeys(columns, 0)
    for page_id in sorted({*expected, *kept}):
        right = expected[page_id].numbers if page_id in expected else all_zero
        found = kept.get(page_id, all_zero)
        for name in columns:
            if found[name] != right[name]:
                yield f"page_stats.{name}", _name(page_id, expected), found[name], right[name]
        if page_id in kept and page_id in expected and found["is_shared"] != expected[page_id].is_shared:
            is_shared = bool(found["is_shared"])
            yield "page_stats.is_shared", _name(page_id, expected), is_shared, expected[page_id].is_shared


def _compare_boards(client: "Redis", tenant_id: str, expected: Mapping[int, Expected], compared: Compared) -> None:
    """The values that these pages have on the tenant's boards. Members beyond those are found by their number."""
    boards = _boards(expected)
    compared.members.update({topic: len(right) for topic, right in boards.items()})
    asked = {key_of(tenant_id, topic): [*map(str, right)] for topic, right in boards.items()}
    values = values_of(client, asked)
    for topic, right in boards.items():
        key = key_of(tenant_id, topic)
        found = values[key]
        if found is None:
            compared.lost.add(topic)
            continue
        for page_id, value in right.items():
            if found[str(page_id)] != value:
                compared.found.append((key, _name(page_id, expected), found[str(page_id)], value))


def _wrong_on_global(client: "Redis", expected: Mapping[int, Expected]) -> Iterator[Found]:
    """These pages on the global boards: those that the tenant shares, and no others."""
    members = [str(page_id) for page_id in expected]
    names = [(window, metric) for metric in _page_metric_names() for window in WINDOWS]
    values = values_of(client, {key_of("_all", f"global:{window}:{metric}"): members for window, metric in names})
    for window, metric in names:
        key = key_of("_all", f"global:{window}:{metric}")
        found = values[key]
        if found is None:
            if any(page.on_global(window, metric) for page in expected.values()):
                yield key, *NOT_COMPLETE
            continue
        for page_id, page in expected.items():
            right = page.on_global(window, metric)
            if found[str(page_id)] != right:
                yield key, _name(page_id, expected), found[str(page_id)], right


def _name(page_id: int, pages: Mapping[int, Expected]) -> str:
    known = pages.get(page_id)
    return f"page {known.external_id}" if known is not None else f"page number {page_id}"


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _boards(expected: Mapping[int, Expected]) -> dict[str, dict[int, float]]:
    """Topic → page → expected value, where it is not 0."""
    boards: dict[str, dict[int, float]] = {}
    for page_id, page in expected.items():
        for scope in page.scopes:
            for metric in _page_metric_names():
                for window in WINDOWS:
                    board = boards.setdefault(f"{scope}:{window}:{metric}", {})
                    value = page.numbers[f"{metric}_{window}"]
                    if value:
                        board[page_id] = value
    return boards


_SHARED = text("""
    SELECT page_id FROM page_stats
    WHERE tenant_id = :tenant AND is_public AND is_shared AND page_id > :after AND page_id <= :last
    UNION SELECT CAST(member AS bigint) FROM projecting
    WHERE tenant_id = :tenant AND kind = 'page' AND 'global' = ANY(scopes)
""")
_STATS = text("SELECT * FROM page_stats WHERE tenant_id = :tenant AND page_id > :after AND page_id <= :last")
