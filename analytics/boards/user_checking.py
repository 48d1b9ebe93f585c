"""The users' part of `plaudit check`: ledgers and boards against what the entries of the ledger add up to."""

from collections.abc import Container, Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import text

from analytics.boards.redis_checking import key_of, members_of_users, values_of
from analytics.comparing import Chunk, Compared, Found
from analytics.metrics import Ledger, user_metrics
from analytics.windows import Window
from tenants import redis
from tenants.db import Tx

if TYPE_CHECKING:
    from redis import Redis

DAYS = {window.value: window.length.days for window in Window if window.length is not None}
WINDOWS = tuple(window.value for window in Window)

# Topic → user → value and when it was reached.
Boards = dict[str, dict[str, tuple[int, datetime]]]


def compare(tx: Tx, chunk: Chunk) -> Compared:
    """Compare these users' totals with their entries in the ledger, and user boards with these."""
    late = _late_users(tx) & {str(user_id) for user_id in chunk.ids}
    compared = Compared(list(_wrong_ledgers(tx, chunk)), compared=len(chunk.ids), due=len(late))
    boards = _expected_boards(tx, chunk, late)
    compared.members.update({topic: len(users) for topic, users in boards.items()})
    with redis.boards().client() as client:
        _compare_boards(client, tx.tenant, boards, compared)
    return compared


def _compare_boards(client: "Redis", tenant_id: str, boards: Boards, compared: Compared) -> None:
    """Whether these users have their values, and members that sort by when they reached them, and then by id."""
    asked = {key_of(tenant_id, topic): [*users] for topic, users in boards.items()}
    members = members_of_users(client, asked)
    values = values_of(client, members)
    for topic, users in boards.items():
        key = key_of(tenant_id, topic)
        found = values[key]
        if found is None:
            compared.lost.add(topic)
            continue
        for (user, (value, reached_at)), member in zip(users.items(), members[key], strict=True):
            if found[member] != value:
                compared.found.append((key, f"user {user}", found[member], value))
            elif _place_of(member) != (right := (_ms(reached_at), user)):
                compared.found.append((key, f"user {user}", f"ranked as {_place_of(member)}", f"ranked as {right}"))


def _place_of(member: str) -> tuple[int, str]:
    """The time in ms and the user: they rank a member among those of the same value."""
    return 9_999_999_999_999 - int(member[:13]), member.rpartition(":")[2]


def _ms(at: datetime) -> int:
    return int(at.timestamp() * 1000 + 0.5)


def _wrong_ledgers(tx: Tx, chunk: Chunk) -> Iterator[Found]:
    """Every user's entries of each account add up to the total, and each continues from the one before."""
    for source in user_metrics().values():
        yield from _wrong_ledger(tx, source, chunk)


def _wrong_ledger(tx: Tx, source: Ledger, chunk: Chunk) -> Iterator[Found]:
    rows = tx.execute(
        text(f"""
            SELECT u.id, u.{source.total} AS found, COALESCE(l.total, 0) AS expected, COALESCE(l.breaks, 0) AS breaks
            FROM users u LEFT JOIN (
                SELECT user_id, sum(delta) AS total, count(*) FILTER (WHERE previous <> before) AS breaks
                FROM (SELECT user_id, delta, previous,
                             COALESCE(lag(score) OVER (PARTITION BY user_id ORDER BY id), 0) AS before
                      FROM score_ledger WHERE tenant_id = :tenant AND account = :account
                      AND user_id > :after AND user_id <= :last) e
                GROUP BY user_id) l ON l.user_id = u.id
            WHERE u.tenant_id = :tenant AND u.id > :after AND u.id <= :last
              AND (u.{source.total} <> COALESCE(l.total, 0) OR COALESCE(l.breaks, 0) > 0)
        """),  # noqa: S608  names from the table of metrics
        {**chunk.parameters, "account": source.account},
    )
    for row in rows:
        if row.found != row.expected:
            yield (f"users.{source.total}", f"user {row.id}", row.found, int(row.expected))
        if row.breaks:
            yield ("score_ledger", f"user {row.id}", f"{row.breaks} breaks", "one chain")


def _late_users(tx: Tx) -> set[str]:
    rows = tx.scalars(
        text("""
            SELECT member FROM outbox WHERE tenant_id = :tenant AND kind = 'user'
            UNION SELECT member FROM projecting WHERE tenant_id = :tenant AND kind = 'user'
        """),
        {"tenant": tx.tenant},
    )
    return set(rows)


def _expected_boards(tx: Tx, chunk: Chunk, late: Container[str]) -> Boards:
    """The boards of all metrics, without the users who are late: computed from the entries of the ledger."""
    hour = tx.scalar(text("SELECT slid_to FROM projections WHERE tenant_id = :tenant"), {"tenant": tx.tenant})
    end = (hour or chunk.now) + timedelta(hours=1)
    boards: Boards = {}
    for metric, source in user_metrics().items():
        _add_boards(boards, tx, metric.name, {**chunk.parameters, "account": source.account, "end": end}, late)
    return boards


def _add_boards(boards: Boards, tx: Tx, metric: str, parameters: dict[str, Any], late: Container[str]) -> None:
    sums = ", ".join(
        f"sum(delta) FILTER (WHERE dated >= :end - interval '{d} days' AND dated < :end) AS sum_{w},"
        f" max(at) FILTER (WHERE dated >= :end - interval '{d} days' AND dated < :end) AS at_{w}"
        for w, d in DAYS.items()
    )
    # Materialized: without statistics PostgreSQL expects one user, and would add the ledger up again for each.
    rows = tx.execute(
        text(f"""
            WITH l AS MATERIALIZED (
                SELECT user_id, {sums}, sum(delta) AS sum_all, max(at) AS at_all
                FROM (SELECT e.user_id, e.delta, e.at, COALESCE(o.at, e.at) AS dated FROM score_ledger e
                      LEFT JOIN score_ledger o ON o.tenant_id = e.tenant_id AND o.id = e.reverses
                      WHERE e.tenant_id = :tenant AND e.account = :account
                        AND e.user_id > :after AND e.user_id <= :last) entries GROUP BY user_id
            )
            SELECT u.id::text AS id, u.segment, u.segments[2:] AS others, l.* FROM users u JOIN l ON l.user_id = u.id
            WHERE u.tenant_id = :tenant AND u.id > :after AND u.id <= :last
              AND u.suspended_at IS NULL AND u.erased_at IS NULL
        """),  # noqa: S608  numbers of ours
        parameters,
    ).all()
    for window in WINDOWS:
        for row in rows:
            value = getattr(row, f"sum_{window}") or 0
            if value <= 0 or row.id in late:
                continue
            for scope in ("users", *(f"users:{one}" for one in ({row.segment, *row.others} if row.segment else ()))):
                board = boards.setdefault(f"{scope}:{window}:{metric}", {})
                board[row.id] = (int(value), getattr(row, f"at_{window}"))
