"""`plaudit check`: every number and board against a recomputation with no query or formula of the projection.

For a tenant it takes the projection's lock and reads everything in one snapshot of the database, so nothing changes
while it compares. Stale pages and users are left out: they are late, not wrong.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal
from math import log
from typing import TYPE_CHECKING, Any

from sqlalchemy import text

from analytics.boards import user_checking
from analytics.boards.user_checking import DAYS, WINDOWS
from analytics.locks import Busy, lock_boards, try_lock_boards
from analytics.metrics import (
    SCORE,
    Computed,
    Counted,
    Metric,
    counted_metrics,
    page_metrics,
)
from analytics.scoring import Weights
from tenants import redis
from tenants.db import Tx, tenant_tx

if TYPE_CHECKING:
    from redis import Redis

# How often it waits for a projection that has the lock.
MAX_WAITS = 20
MAX_MEMBERS_PER_COMMAND = 5_000
LATE_AFTER = timedelta(minutes=10)


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
    pages: int
    boards: int
    due: int
    differences: list[Difference]


def check(tenant_id: str, *, now: datetime) -> Report:
    """Compare everything of one tenant: numbers, ledgers, and boards of pages and users."""
    report = _compare_when_free(tenant_id, now=now)
    if report.differences:
        # The snapshot is a moment older than the lock: what was committed between is no difference at a second look.
        places = {(found.where, found.member) for found in report.differences}
        report = _compare_when_free(tenant_id, now=now)
        report.differences = [found for found in report.differences if (found.where, found.member) in places]
    return report


def _compare_when_free(tenant_id: str, *, now: datetime) -> Report:
    for _ in range(MAX_WAITS):
        with suppress(Busy):
            return _compare(tenant_id, now=now)
        with tenant_tx(tenant_id) as tx:
            lock_boards(tx, tenant_id)  # wait for its holder
    return _compare(tenant_id, now=now)


def _compare(tenant_id: str, *, now: datetime) -> Report:
    with tenant_tx(tenant_id) as tx:
        tx.execute(
            text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        )  # from its first query, which takes the lock
        try_lock_boards(tx, tenant_id)
        tx.set_statement_timeout(0)
        tx.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
        due, hour = _due(tx), _hour(tx)
        differences: list[Difference] = []
        if hour is not None and now - hour > timedelta(hours=1) + LATE_AFTER:
            differences.append(
                Difference(tenant_id, "projections", "windows", f"slid to {hour:%F %H:%M}", f"{now:%F %H:00}")
            )
        expected = {page_id: page for page_id, page in _expected(tx, hour or now) if page_id not in due}
        differences += _wrong_stats(tx, expected, due)
        of_users = list(user_checking.wrong_ledgers(tx))
        late_users = user_checking.late_users(tx)
        user_boards = user_checking.expected_boards(tx, hour or now, late_users)
        with redis.boards().client() as client:
            boards = _boards(expected)
            differences += _wrong_boards(client, tenant_id, boards, expected, due)
            differences += _wrong_on_global(client, tenant_id, expected)
            of_users += user_checking.wrong_boards(client, tenant_id, user_boards, late_users)
    differences += [Difference(tenant_id, *found) for found in of_users]
    return Report(len(expected), len(boards) + len(user_boards), len(due) + len(late_users), differences)


def check_global(expected: dict[int, Expected]) -> list[Difference]:
    """Compare the global boards with the pages that all tenants share."""
    boards = {
        f"global:{window}:{metric}": {
            str(page_id): value
            for page_id, page in expected.items()
            if (value := page.on_global(window, metric)) is not None
        }
        for metric in _page_metric_names()
        for window in WINDOWS
    }
    with redis.boards().client() as client:
        return list(_wrong_boards(client, "_all", boards, expected, set()))


def shared_pages(tenant_id: str, *, now: datetime) -> dict[int, Expected]:
    with tenant_tx(tenant_id) as tx:
        hour = _hour(tx) or now
        return {page_id: page for page_id, page in _expected(tx, hour) if page.is_shared}


def _due(tx: Tx) -> set[int]:
    """The stale pages: marked one by one, or because the tenant began or stopped sharing."""
    rows = tx.scalars(
        text("""
            SELECT member FROM outbox WHERE tenant_id = :tenant AND kind IN ('page', 'views')
            UNION SELECT member FROM projecting WHERE tenant_id = :tenant AND kind = 'page'
            UNION SELECT page_id::text FROM page_stats WHERE tenant_id = :tenant AND is_public AND is_shared <> :shared
                AND EXISTS (SELECT FROM outbox WHERE tenant_id = :tenant AND kind = 'sharing')
        """),
        {"tenant": tx.tenant, "shared": _is_shared(tx)},
    )
    return {int(member) for member in rows}


def _is_shared(tx: Tx) -> bool:
    """Whether the tenant shares its public pages with the global boards."""
    query = text("SELECT (overrides->>'share_public_pages')::boolean FROM tenant_settings WHERE tenant_id = :tenant")
    return bool(tx.scalar(query, {"tenant": tx.tenant}))


def _hour(tx: Tx) -> datetime | None:
    """The hour with which every window ends; None if nothing was projected yet."""
    hour: datetime | None = tx.scalar(
        text("SELECT slid_to FROM projections WHERE tenant_id = :tenant"), {"tenant": tx.tenant}
    )
    return hour


def _expected(tx: Tx, hour: datetime) -> Iterator[tuple[int, Expected]]:
    """Every page's expected numbers, from the counted rows of each metric."""
    shared, weights = _is_shared(tx), _weights(tx)
    counted = {metric.name: source for metric, source in counted_metrics().items()}
    rows = tx.execute(
        text(f"""
            SELECT p.id, p.external_id, p.space_key, p.visibility, {", ".join(f"{name}.*" for name in counted)}
            FROM pages p JOIN page_counters c ON c.tenant_id = p.tenant_id AND c.page_id = p.id
            {"".join(_recounted(name, source) for name, source in counted.items())}
            WHERE p.tenant_id = :tenant
        """),  # noqa: S608  names from the table of metrics
        {"tenant": tx.tenant, "after": hour + timedelta(hours=1)},
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
    """One metric's counts of every page, in one pass over its rows."""
    in_windows = ", ".join(
        f"{source.aggregate} FILTER (WHERE {source.time} >= :after - interval '{days} days' AND {source.time} < :after)"
        f" AS {name}_{window}"
        for window, days in DAYS.items()
    )
    purged = f"c.{source.purged}" if source.purged else "0"
    return f"""
        LEFT JOIN (SELECT page_id AS {name}_page, {in_windows}, {source.aggregate} AS {name}_kept
                   FROM {source.table} WHERE tenant_id = :tenant GROUP BY page_id) {name}_rows ON {name}_page = p.id
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


def _wrong_stats(tx: Tx, expected: dict[int, Expected], due: set[int]) -> Iterator[Difference]:
    columns = [f"{metric}_{window}" for metric in _page_metric_names() for window in WINDOWS]
    kept = {
        row.page_id: {name: getattr(row, name) for name in (*columns, "is_shared")}
        for row in tx.execute(text("SELECT * FROM page_stats WHERE tenant_id = :tenant"), {"tenant": tx.tenant})
        if row.page_id not in due
    }
    all_zero = dict.fromkeys(columns, 0)
    for page_id in sorted({*expected, *kept}):
        right = expected[page_id].numbers if page_id in expected else all_zero
        found = kept.get(page_id, all_zero)
        for name in columns:
            if found[name] != right[name]:
                yield Difference(
                    tx.tenant, f"page_stats.{name}", _name(str(page_id), expected), found[name], right[name]
                )
        if page_id in kept and page_id in expected and found["is_shared"] != expected[page_id].is_shared:
            where, name = "page_stats.is_shared", _name(str(page_id), expected)
            yield Difference(tx.tenant, where, name, bool(found["is_shared"]), expected[page_id].is_shared)


def _wrong_on_global(client: "Redis", tenant_id: str, expected: Mapping[int, Expected]) -> Iterator[Difference]:
    """This tenant's pages on the global boards: those that it shares, and no others."""
    pages = sorted(expected)
    for metric in _page_metric_names():
        for window in WINDOWS:
            key = f"lb:_all:global:{window}:{metric}"
            if not client.exists(f"lbv:{{{key}}}"):
                if any(page.on_global(window, metric) for page in expected.values()):
                    yield Difference(tenant_id, key, "the board", "not complete", "complete: is a worker running?")
                continue
            for start in range(0, len(pages), MAX_MEMBERS_PER_COMMAND):
                chunk = pages[start : start + MAX_MEMBERS_PER_COMMAND]
                values: Any = client.zmscore(key, [str(page_id) for page_id in chunk])
                for page_id, value in zip(chunk, values, strict=True):
                    right = expected[page_id].on_global(window, metric)
                    if value != right:
                        yield Difference(tenant_id, key, _name(str(page_id), expected), value, right)


def _name(member: str, pages: Mapping[int, Expected]) -> str:
    known = pages.get(int(member)) if member.isdecimal() else None
    return f"page {known.external_id}" if known is not None else f"page number {member}"


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _boards(expected: dict[int, Expected]) -> dict[str, dict[str, float]]:
    """Topic → member → expected value."""
    boards: dict[str, dict[str, float]] = {}
    for page_id, page in expected.items():
        for scope in page.scopes:
            for metric in _page_metric_names():
                for window in WINDOWS:
                    board = boards.setdefault(f"{scope}:{window}:{metric}", {})
                    value = page.numbers[f"{metric}_{window}"]
                    if value:
                        board[str(page_id)] = value
    return boards


def _wrong_boards(
    client: "Redis",
    tenant_id: str,
    expected: dict[str, dict[str, float]],
    pages: Mapping[int, Expected],
    due: Iterable[int],
) -> Iterator[Difference]:
    late = {str(page_id) for page_id in due}
    prefix = f"lb:{tenant_id}:"
    kept = {key.decode().removeprefix(prefix) for key in client.scan_iter(f"{prefix}*")}
    topics = sorted({topic for topic in kept if not topic.startswith("users:")} | expected.keys())
    lost = {topic for topic in topics if not client.exists(f"lbv:{{{prefix}{topic}}}")}
    missing = [topic for topic in topics if topic in lost and expected.get(topic)]
    if missing and len(missing) == sum(bool(values) for values in expected.values()):
        how = f"{len(missing)} of them: a running worker fills them, or plaudit rebuild"
        yield Difference(tenant_id, "Redis", "the boards", "none (it was emptied, or restarted)", how)
        return
    for topic in topics:
        key = prefix + topic
        if topic in lost:
            if topic in missing:
                yield Difference(tenant_id, key, "the board", "not complete", "complete: is a worker running?")
            continue
        found = {member.decode(): value for member, value in client.zscan_iter(key, count=MAX_MEMBERS_PER_COMMAND)}
        right = expected.get(topic, {})
        for member in sorted({*found, *right} - late):
            if found.get(member) != right.get(member):
                yield Difference(tenant_id, key, _name(member, pages), found.get(member), right.get(member))
