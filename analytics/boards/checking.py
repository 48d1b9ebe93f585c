"""`plaudit check`: every number and every board against a recomputation that shares nothing with the projection.

For a tenant it holds the projection's lock and looks at everything in one snapshot of the database, so what it compares
stands still. Pages whose projection is still due are left out: they are late, not wrong.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal
from math import log
from typing import TYPE_CHECKING, Any

from sqlalchemy import text

from analytics.locks import hold
from tenants import redis
from tenants.db import Tx, tenant_tx

if TYPE_CHECKING:
    from redis import Redis

METRICS = ("likes", "views", "score")
DAYS = {"1d": 1, "7d": 7, "30d": 30}
WINDOWS = (*DAYS, "all")
CHUNK = 5_000
LATE_AFTER = timedelta(minutes=10)


@dataclass(frozen=True)
class Difference:
    """Something that is not as it should be."""

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
    """What a page ought to have, and the boards it ought to be on."""

    external_id: str
    numbers: dict[str, float]
    scopes: tuple[str, ...]
    is_shared: bool

    def on_global(self, window: str, metric: str) -> float | None:
        """Its value on a global board; None: it is not on it."""
        return (self.is_shared and self.numbers[f"{metric}_{window}"]) or None


@dataclass
class Report:
    pages: int
    boards: int
    due: int
    differences: list[Difference]


def check(tenant_id: str, *, now: datetime) -> Report:
    """Compare everything of one tenant: numbers, ledgers, and boards of pages and users."""
    with tenant_tx(tenant_id, separate=True) as holding, tenant_tx(tenant_id) as tx:
        hold(holding, tenant_id)
        tx.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))  # from its first look, which is below
        for one in (holding, tx):
            one.execute(text("SET LOCAL statement_timeout = 0"))
            one.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
        due, hour = _due(tx), _hour(tx)
        found: list[Difference] = []
        if hour is not None and now - hour > timedelta(hours=1) + LATE_AFTER:
            found.append(Difference(tenant_id, "projections", "windows", f"slid to {hour:%F %H:%M}", f"{now:%F %H:00}"))
        expected = {page_id: page for page_id, page in _expected(tx, hour or now) if page_id not in due}
        found += _wrong_stats(tx, expected, due)
        found += _wrong_ledgers(tx)
        late_users = _late_users(tx)
        standings = _user_boards(tx, hour or now, late_users)
        with redis.boards().client() as client:
            boards = _boards(expected)
            found += _wrong_boards(client, tenant_id, boards, expected, due)
            found += _wrong_on_global(client, tenant_id, expected)
            found += _wrong_user_boards(client, tenant_id, standings, late_users)
    return Report(len(expected), len(boards) + len(standings), len(due) + len(late_users), found)


def _wrong_ledgers(tx: Tx) -> Iterator[Difference]:
    """Every user's entries add up to their score, and each goes on from the one before."""
    rows = tx.execute(
        text("""
            SELECT u.id, u.current_score AS found, COALESCE(l.total, 0) AS expected, COALESCE(l.breaks, 0) AS breaks
            FROM users u LEFT JOIN (
                SELECT user_id, sum(delta) AS total, count(*) FILTER (WHERE previous <> before) AS breaks
                FROM (SELECT user_id, delta, previous,
                             COALESCE(lag(score) OVER (PARTITION BY user_id ORDER BY id), 0) AS before
                      FROM score_ledger WHERE tenant_id = :tenant AND metric = 'points') e
                GROUP BY user_id) l ON l.user_id = u.id
            WHERE u.tenant_id = :tenant AND (u.current_score <> COALESCE(l.total, 0) OR COALESCE(l.breaks, 0) > 0)
        """),
        {"tenant": tx.tenant},
    )
    for row in rows:
        if row.found != row.expected:
            yield Difference(tx.tenant, "users.current_score", f"user {row.id}", row.found, int(row.expected))
        if row.breaks:
            yield Difference(tx.tenant, "score_ledger", f"user {row.id}", f"{row.breaks} breaks", "one chain")


def _late_users(tx: Tx) -> set[str]:
    rows = tx.scalars(
        text("""
            SELECT member FROM outbox WHERE tenant_id = :tenant AND kind = 'user'
            UNION SELECT member FROM projecting WHERE tenant_id = :tenant AND kind = 'user'
        """),
        {"tenant": tx.tenant},
    )
    return set(rows)


def _user_boards(tx: Tx, hour: datetime, late: set[str]) -> dict[str, list[tuple[str, int]]]:
    """Topic → users and their points in the right order, from the ledger entry by entry."""
    sums = ", ".join(
        f"sum(delta) FILTER (WHERE counts >= :after - interval '{d} days' AND counts < :after) AS sum_{w},"
        f" max(at) FILTER (WHERE counts >= :after - interval '{d} days' AND counts < :after) AS at_{w}"
        for w, d in DAYS.items()
    )
    rows = tx.execute(
        text(f"""
            SELECT u.id::text AS id, u.segment, l.* FROM users u JOIN (
                SELECT user_id, {sums}, sum(delta) AS sum_all, max(at) AS at_all
                FROM (SELECT e.user_id, e.delta, e.at, COALESCE(o.at, e.at) AS counts FROM score_ledger e
                      LEFT JOIN score_ledger o ON o.tenant_id = e.tenant_id AND o.id = e.reverses
                      WHERE e.tenant_id = :tenant AND e.metric = 'points') counted GROUP BY user_id
            ) l ON l.user_id = u.id
            WHERE u.tenant_id = :tenant AND u.suspended_at IS NULL AND u.erased_at IS NULL
        """),  # noqa: S608  numbers of ours
        {"tenant": tx.tenant, "after": hour + timedelta(hours=1)},
    ).all()
    boards: dict[str, list[tuple[str, int]]] = {}
    for window in WINDOWS:
        placed = [row for row in rows if (getattr(row, f"sum_{window}") or 0) > 0 and row.id not in late]
        placed.sort(key=lambda row: (-getattr(row, f"sum_{window}"), getattr(row, f"at_{window}"), row.id))
        for row in placed:
            for scope in ("users", *([f"users:{row.segment}"] if row.segment else [])):
                boards.setdefault(f"{scope}:{window}:points", []).append((row.id, int(getattr(row, f"sum_{window}"))))
    return boards


def _wrong_user_boards(
    client: "Redis", tenant_id: str, expected: dict[str, list[tuple[str, int]]], late: set[str]
) -> Iterator[Difference]:
    prefix = f"lb:{tenant_id}:"
    kept = {key.decode().removeprefix(prefix) for key in client.scan_iter(f"{prefix}users:*")}
    for topic in sorted(kept | expected.keys()):
        key = prefix + topic
        if client.get(f"lbv:{{{key}}}") is None:
            if expected.get(topic):
                yield Difference(tenant_id, key, "the board", "not complete", "complete: is a worker running?")
            continue
        rows: Any = client.zrange(key, 0, -1, desc=True, withscores=True)
        members = [(member.decode().rpartition(":")[2], int(value)) for member, value in rows]
        found, right = [row for row in members if row[0] not in late], expected.get(topic, [])
        values, wanted = dict(found), dict(right)
        for user in sorted({*values, *wanted}):
            if values.get(user) != wanted.get(user):
                yield Difference(tenant_id, key, f"user {user}", values.get(user), wanted.get(user))
        if values == wanted and found != right:
            place = next(n for n, (one, other) in enumerate(zip(found, right, strict=True), 1) if one != other)
            yield Difference(tenant_id, key, f"rank {place}", found[place - 1][0], right[place - 1][0])


def check_global(expected: dict[int, Expected]) -> list[Difference]:
    """The global boards against what every tenant shares."""
    boards = {
        f"global:{window}:{metric}": {
            str(page_id): value
            for page_id, page in expected.items()
            if (value := page.on_global(window, metric)) is not None
        }
        for metric in METRICS
        for window in WINDOWS
    }
    with redis.boards().client() as client:
        return list(_wrong_boards(client, "_all", boards, expected, set()))


def shared_pages(tenant_id: str, *, now: datetime) -> dict[int, Expected]:
    with tenant_tx(tenant_id) as tx:
        hour = _hour(tx) or now
        return {page_id: page for page_id, page in _expected(tx, hour) if page.is_shared}


def _due(tx: Tx) -> set[int]:
    """The pages that are still to be projected: each for itself, or because sharing has begun or stopped."""
    rows = tx.scalars(
        text("""
            SELECT member FROM outbox WHERE tenant_id = :tenant AND kind = 'page'
            UNION SELECT member FROM projecting WHERE tenant_id = :tenant AND kind = 'page'
            UNION SELECT page_id::text FROM page_stats WHERE tenant_id = :tenant AND is_public AND is_shared <> :shared
                AND EXISTS (SELECT FROM outbox WHERE tenant_id = :tenant AND kind = 'sharing')
        """),
        {"tenant": tx.tenant, "shared": _is_shared(tx)},
    )
    return {int(member) for member in rows}


def _is_shared(tx: Tx) -> bool:
    """Whether the tenant shares its public pages with the global boards."""
    said = text("SELECT (overrides->>'share_public_pages')::boolean FROM tenant_settings WHERE tenant_id = :tenant")
    return bool(tx.scalar(said, {"tenant": tx.tenant}))


def _hour(tx: Tx) -> datetime | None:
    """The hour that every window ends with. A page computed since then was computed for a later one."""
    hour: datetime | None = tx.scalar(
        text("SELECT slid_to FROM projections WHERE tenant_id = :tenant"), {"tenant": tx.tenant}
    )
    return hour


def _expected(tx: Tx, hour: datetime) -> Iterator[tuple[int, Expected]]:
    """Every page's numbers, from its likes and buckets one by one."""
    shared = _is_shared(tx)
    likes_weight, views_weight = _weights(tx)
    views = ", ".join(f"sum(views) FILTER (WHERE bucket_hour > :hour - interval '{d} days')" for d in DAYS.values())
    likes = ", ".join(f"count(*) FILTER (WHERE created_at >= :after - interval '{d} days')" for d in DAYS.values())
    rows = tx.execute(
        text(f"""
            WITH v AS (SELECT page_id, ARRAY[{views}]::bigint[] AS recent
                       FROM page_views_hour WHERE tenant_id = :tenant AND bucket_hour <= :hour GROUP BY page_id),
                 t AS (SELECT page_id, sum(views)::bigint AS total
                       FROM page_views_hour WHERE tenant_id = :tenant GROUP BY page_id),
                 l AS (SELECT page_id, ARRAY[{likes}]::bigint[] AS recent
                       FROM page_likes WHERE tenant_id = :tenant AND created_at < :after GROUP BY page_id),
                 m AS (SELECT page_id, count(*) AS total FROM page_likes WHERE tenant_id = :tenant GROUP BY page_id)
            SELECT p.id, p.external_id, p.space_key, p.visibility, v.recent AS views, l.recent AS likes,
                   COALESCE(t.total, 0) + c.views_purged AS all_views, COALESCE(m.total, 0) AS all_likes
            FROM pages p JOIN page_counters c ON c.tenant_id = p.tenant_id AND c.page_id = p.id
            LEFT JOIN v ON v.page_id = p.id LEFT JOIN t ON t.page_id = p.id
            LEFT JOIN l ON l.page_id = p.id LEFT JOIN m ON m.page_id = p.id
            WHERE p.tenant_id = :tenant
        """),  # noqa: S608  numbers of ours
        {"tenant": tx.tenant, "hour": hour, "after": hour + timedelta(hours=1)},
    )
    for row in rows:
        numbers: dict[str, float] = {}
        all_views = [*(n or 0 for n in row.views or [0, 0, 0]), row.all_views]
        all_likes = [*(row.likes or [0, 0, 0]), row.all_likes]
        for window, n_likes, n_views in zip(WINDOWS, all_likes, all_views, strict=True):
            numbers[f"likes_{window}"] = n_likes
            numbers[f"views_{window}"] = n_views
            numbers[f"score_{window}"] = _score(likes_weight * n_likes + views_weight * log(1 + n_views))
        public = row.visibility == "public"
        kinds = ("space", "public") if public else ("space",)
        scopes = ("tenant", *(["public"] if public else []), *(f"{kind}:{row.space_key}" for kind in kinds))
        yield row.id, Expected(row.external_id, numbers, scopes, is_shared=public and shared)


def _weights(tx: Tx) -> tuple[float, float]:
    """The weights that the projection has come to."""
    row = tx.execute(
        text("""
            SELECT w.likes, w.views FROM score_weights w JOIN projections p ON p.tenant_id = w.tenant_id
            WHERE w.tenant_id = :tenant AND w.version = p.weights_version
        """),
        {"tenant": tx.tenant},
    ).one_or_none()
    return (row.likes, row.views) if row is not None else (3.0, 1.0)


def _score(exact: float) -> float:
    return float(Decimal(exact).quantize(Decimal("0.000001"), rounding=ROUND_HALF_EVEN))


def _wrong_stats(tx: Tx, expected: dict[int, Expected], due: set[int]) -> Iterator[Difference]:
    columns = [f"{metric}_{window}" for metric in METRICS for window in WINDOWS]
    kept = {
        row.page_id: {name: getattr(row, name) for name in (*columns, "is_shared")}
        for row in tx.execute(text("SELECT * FROM page_stats WHERE tenant_id = :tenant"), {"tenant": tx.tenant})
        if row.page_id not in due
    }
    nothing = dict.fromkeys(columns, 0)
    for page_id in sorted({*expected, *kept}):
        right = expected[page_id].numbers if page_id in expected else nothing
        found = kept.get(page_id, nothing)
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
    for metric in METRICS:
        for window in WINDOWS:
            key = f"lb:_all:global:{window}:{metric}"
            if not client.exists(f"lbv:{{{key}}}"):
                if any(page.on_global(window, metric) for page in expected.values()):
                    yield Difference(tenant_id, key, "the board", "not complete", "complete: is a worker running?")
                continue
            for start in range(0, len(pages), CHUNK):
                chunk = pages[start : start + CHUNK]
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
    """Topic → what ought to be on it."""
    boards: dict[str, dict[str, float]] = {}
    for page_id, page in expected.items():
        for scope in page.scopes:
            for metric in METRICS:
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
        told = f"{len(missing)} of them: a running worker fills them, or plaudit rebuild"
        yield Difference(tenant_id, "Redis", "the boards", "none (it was emptied, or restarted)", told)
        return
    for topic in topics:
        key = prefix + topic
        if topic in lost:
            if topic in missing:
                yield Difference(tenant_id, key, "the board", "not complete", "complete: is a worker running?")
            continue
        found = {member.decode(): value for member, value in client.zscan_iter(key, count=CHUNK)}
        right = expected.get(topic, {})
        for member in sorted({*found, *right} - late):
            if found.get(member) != right.get(member):
                yield Difference(tenant_id, key, _name(member, pages), found.get(member), right.get(member))
