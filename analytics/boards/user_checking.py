"""The users' part of `plaudit check`: ledgers and boards against what the entries of the ledger add up to."""

from collections.abc import Container, Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import text

from analytics.metrics import Ledger, user_metrics
from analytics.windows import Window
from tenants.db import Tx

if TYPE_CHECKING:
    from redis import Redis

DAYS = {window.value: window.length.days for window in Window if window.length is not None}
WINDOWS = tuple(window.value for window in Window)

# Where, who, found and expected.
Found = tuple[str, str, Any, Any]
# Topic → users and their values in order of rank.
Boards = dict[str, list[tuple[str, int]]]


def wrong_ledgers(tx: Tx) -> Iterator[Found]:
    """Every user's entries of each account add up to the total, and each continues from the one before."""
    for source in user_metrics().values():
        yield from _wrong_ledger(tx, source)


def _wrong_ledger(tx: Tx, source: Ledger) -> Iterator[Found]:
    rows = tx.execute(
        text(f"""
            SELECT u.id, u.{source.total} AS found, COALESCE(l.total, 0) AS expected, COALESCE(l.breaks, 0) AS breaks
            FROM users u LEFT JOIN (
                SELECT user_id, sum(delta) AS total, count(*) FILTER (WHERE previous <> before) AS breaks
                FROM (SELECT user_id, delta, previous,
                             COALESCE(lag(score) OVER (PARTITION BY user_id ORDER BY id), 0) AS before
                      FROM score_ledger WHERE tenant_id = :tenant AND account = :account) e
                GROUP BY user_id) l ON l.user_id = u.id
            WHERE u.tenant_id = :tenant AND (u.{source.total} <> COALESCE(l.total, 0) OR COALESCE(l.breaks, 0) > 0)
        """),  # noqa: S608  names from the table of metrics
        {"tenant": tx.tenant, "account": source.account},
    )
    for row in rows:
        if row.found != row.expected:
            yield (f"users.{source.total}", f"user {row.id}", row.found, int(row.expected))
        if row.breaks:
            yield ("score_ledger", f"user {row.id}", f"{row.breaks} breaks", "one chain")


def late_users(tx: Tx) -> set[str]:
    rows = tx.scalars(
        text("""
            SELECT member FROM outbox WHERE tenant_id = :tenant AND kind = 'user'
            UNION SELECT member FROM projecting WHERE tenant_id = :tenant AND kind = 'user'
        """),
        {"tenant": tx.tenant},
    )
    return set(rows)


def expected_boards(tx: Tx, hour: datetime, late: Container[str]) -> Boards:
    """The boards of all metrics, without the users who are late: computed from the entries of the ledger."""
    boards: Boards = {}
    for metric, source in user_metrics().items():
        boards |= _boards_of(tx, metric.name, source, hour, late)
    return boards


def _boards_of(tx: Tx, metric: str, source: Ledger, hour: datetime, late: Container[str]) -> Boards:
    sums = ", ".join(
        f"sum(delta) FILTER (WHERE dated >= :after - interval '{d} days' AND dated < :after) AS sum_{w},"
        f" max(at) FILTER (WHERE dated >= :after - interval '{d} days' AND dated < :after) AS at_{w}"
        for w, d in DAYS.items()
    )
    # Materialized: without statistics PostgreSQL expects one user, and would add the ledger up again for each.
    rows = tx.execute(
        text(f"""
            WITH l AS MATERIALIZED (
                SELECT user_id, {sums}, sum(delta) AS sum_all, max(at) AS at_all
                FROM (SELECT e.user_id, e.delta, e.at, COALESCE(o.at, e.at) AS dated FROM score_ledger e
                      LEFT JOIN score_ledger o ON o.tenant_id = e.tenant_id AND o.id = e.reverses
                      WHERE e.tenant_id = :tenant AND e.account = :account) entries GROUP BY user_id
            )
            SELECT u.id::text AS id, u.segment, u.segments[2:] AS others, l.* FROM users u JOIN l ON l.user_id = u.id
            WHERE u.tenant_id = :tenant AND u.suspended_at IS NULL AND u.erased_at IS NULL
        """),  # noqa: S608  numbers of ours
        {"tenant": tx.tenant, "account": source.account, "after": hour + timedelta(hours=1)},
    ).all()
    boards: Boards = {}
    for window in WINDOWS:
        placed = [row for row in rows if (getattr(row, f"sum_{window}") or 0) > 0 and row.id not in late]
        placed.sort(key=lambda row: (-getattr(row, f"sum_{window}"), getattr(row, f"at_{window}"), row.id))
        for row in placed:
            for scope in ("users", *(f"users:{one}" for one in ({row.segment, *row.others} if row.segment else ()))):
                boards.setdefault(f"{scope}:{window}:{metric}", []).append((row.id, int(getattr(row, f"sum_{window}"))))
    return boards


def wrong_boards(client: "Redis", tenant_id: str, expected: Boards, late: Container[str]) -> Iterator[Found]:
    prefix = f"lb:{tenant_id}:"
    kept = {key.decode().removeprefix(prefix) for key in client.scan_iter(f"{prefix}users:*")}
    for topic in sorted(kept | expected.keys()):
        key = prefix + topic
        if client.get(f"lbv:{{{key}}}") is None:
            if expected.get(topic):
                yield (key, "the board", "not complete", "complete: is a worker running?")
            continue
        rows: Any = client.zrange(key, 0, -1, desc=True, withscores=True)
        members = [(member.decode().rpartition(":")[2], int(value)) for member, value in rows]
        found, right = [row for row in members if row[0] not in late], expected.get(topic, [])
        values, wanted = dict(found), dict(right)
        for user in sorted({*values, *wanted}):
            if values.get(user) != wanted.get(user):
                yield (key, f"user {user}", values.get(user), wanted.get(user))
        if values == wanted and found != right:
            place = next(n for n, (one, other) in enumerate(zip(found, right, strict=True), 1) if one != other)
            yield (key, f"rank {place}", found[place - 1][0], right[place - 1][0])
