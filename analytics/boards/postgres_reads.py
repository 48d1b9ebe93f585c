"""Reading boards from PostgreSQL: slower than Redis, and always there.

The version is read before the rows, which may so be newer than it says, and never older.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import text

from analytics.boards import versions
from analytics.boards.board_sql import BoardRows, rows_of
from analytics.boards.names import Board, Version
from analytics.boards.ranks import Entry, RankQuestion
from analytics.boards.rows import Listing, Position, Row, Source, row_of
from tenants.db import Tx, array

# PostgreSQL counts rows one by one, so it counts no further for the rank of a payment: some milliseconds.
MAX_COUNTED_ROWS = 10_000


def read_top(tx: Tx, board: Board, *, limit: int, after: Position | None, now: datetime) -> Listing:
    """The first rows, or those after a position."""
    version, of = versions.read(tx, [board], now=now)[board], rows_of(board)
    position = {} if after is None else {"value": after.value, "member": after.member}
    below = "true" if after is None else f"({of.value} < :value OR ({of.value} = :value AND {of.member} < :member))"
    parameters = {**of.parameters, **position, "limit": limit}
    totals = tx.execute(
        text(f"""
            SELECT count(*) AS total, count(*) FILTER (WHERE NOT {below}) AS above FROM {of.table} s WHERE {of.where}
        """),  # noqa: S608  names from the table of metrics
        parameters,
    ).one()
    rows = tx.execute(
        text(f"""
            SELECT {of.member} AS member, {of.value} AS value FROM {of.table} s WHERE {of.where} AND {below}
            ORDER BY {of.value} DESC, {of.member} DESC LIMIT :limit
        """),  # noqa: S608  names from the table of metrics
        parameters,
    ).all()
    listed = [row_of(board, rank, row.member, row.value) for rank, row in enumerate(rows, totals.above + 1)]
    return _listing(listed, totals.total, version)


def read_subjects(tx: Tx, board: Board, subjects: Sequence[str], *, now: datetime) -> Listing:
    """The rows of these pages or users."""
    version, of = versions.read(tx, [board], now=now)[board], rows_of(board)
    found = tx.execute(
        text(f"""
            SELECT {of.member} AS member, {of.value} AS value FROM {of.table} s
            WHERE {of.where} AND {of.subject}::text = ANY(CAST(:subjects AS text[]))
            ORDER BY {of.value} DESC, {of.member} DESC
        """),  # noqa: S608  names from the table of metrics
        {**of.parameters, "subjects": list(subjects)},
    ).all()
    ranks = _ranks_of(tx, of, found)
    listed = [row_of(board, rank, row.member, row.value) for rank, row in zip(ranks, found, strict=True)]
    return _listing(listed, _total(tx, of), version)


def _ranks_of(tx: Tx, of: BoardRows, rows: Sequence[Any]) -> list[int]:
    """For rows that the board has, from the highest to the lowest: how many are above each, counted in one pass."""
    if not rows:
        return []
    above = ", ".join(
        f"""count(*) FILTER (
            WHERE {of.value} > :value_{place} OR ({of.value} = :value_{place} AND {of.member} > :member_{place})
        ) AS above_{place}"""
        for place in range(len(rows))
    )
    values = {f"value_{place}": row.value for place, row in enumerate(rows)}
    members = {f"member_{place}": row.member for place, row in enumerate(rows)}
    counted = tx.execute(
        text(f"SELECT {above} FROM {of.table} s WHERE {of.where} AND {of.value} >= :value_{len(rows) - 1}"),  # noqa: S608  names from the table of metrics
        {**of.parameters, **values, **members},
    ).one()
    return [1 + getattr(counted, f"above_{place}") for place in range(len(rows))]


def read_around(tx: Tx, board: Board, subject: str, n: int, *, now: datetime) -> Listing:
    """The row of a page or user, with the n above and below it."""
    version, of = versions.read(tx, [board], now=now)[board], rows_of(board)
    rows = tx.execute(
        text(f"""
            WITH ranked AS (
                SELECT {of.subject}::text AS subject, {of.member} AS member, {of.value} AS value,
                       row_number() OVER (ORDER BY {of.value} DESC, {of.member} DESC) AS rank
                FROM {of.table} s WHERE {of.where}
            ), own AS (SELECT rank FROM ranked WHERE subject = :subject)
            SELECT r.* FROM ranked r, own WHERE r.rank BETWEEN own.rank - :n AND own.rank + :n ORDER BY r.rank
        """),  # noqa: S608  names from the table of metrics
        {**of.parameters, "subject": subject, "n": n},
    ).all()
    return _listing(_ranked(board, rows), _total(tx, of), version)


def ranks_for(tx: Tx, question: RankQuestion) -> list[int | None]:
    """The ranks that entries have on a board of users; None for those below the first rows: they are not counted."""
    of = rows_of(question.board)
    above = text(f"""
        SELECT CASE WHEN r.counted <= :max_rows THEN r.above END AS above
        FROM unnest(CAST(:values AS bigint[]), CAST(:members AS text[])) WITH ORDINALITY AS a(value, member, place)
        CROSS JOIN LATERAL (
            SELECT count(*) AS counted,
                   count(*) FILTER (WHERE c.value > a.value OR c.member >= a.member COLLATE "C") AS above
            FROM (SELECT {of.value} AS value, {of.member} AS member FROM {of.table} s
                  WHERE {of.where} AND {of.value} >= a.value ORDER BY {of.value} DESC LIMIT :max_rows + 1) c) r
        ORDER BY a.place
    """)  # noqa: S608  names from the table of metrics
    outdated = text(f"""
        SELECT {of.value} AS value, {of.member} AS member FROM {of.table} s
        WHERE {of.where} AND {of.subject} = ANY(CAST(:users AS uuid[]))
    """)  # noqa: S608  names from the table of metrics
    asked = {"values": array(entry.value for entry in question.asked), "members": [e.member for e in question.asked]}
    counts, rows = tx.run_in_one_trip(
        (above, {**of.parameters, **asked, "max_rows": MAX_COUNTED_ROWS}),
        (outdated, {**of.parameters, "users": array(question.current)}),
    )
    return question.ranks([row.above for row in counts], [Entry(row.value, row.member) for row in rows])


def count_leaving(tx: Tx, board: Board, *, above: Sequence[Position]) -> list[int]:
    """For each position how many users above it were erased, and leave the board with the next projection."""
    of = rows_of(board)
    counts = ", ".join(
        f"""count(*) FILTER (
            WHERE {of.value} > :value_{place} OR ({of.value} = :value_{place} AND {of.member} > :member_{place}))"""
        for place in range(len(above))
    )
    # Arrays, so that it begins with the few who wait for a projection: of them usually nobody was erased.
    leaving = text(f"""
        SELECT {counts} FROM {of.table} s WHERE {of.where} AND {of.subject} = ANY(ARRAY(
            SELECT u.id FROM users u WHERE u.tenant_id = :tenant AND u.erased_at IS NOT NULL AND u.id = ANY(ARRAY(
                SELECT CAST(member AS uuid) FROM outbox WHERE tenant_id = :tenant AND kind = 'user'
                UNION SELECT CAST(member AS uuid) FROM projecting WHERE tenant_id = :tenant AND kind = 'user'))))
    """)  # noqa: S608  names from the table of metrics
    values = {f"value_{place}": position.value for place, position in enumerate(above)}
    members = {f"member_{place}": position.member for place, position in enumerate(above)}
    return [*tx.execute(leaving, {**of.parameters, **values, **members}).one()]


def _total(tx: Tx, of: BoardRows) -> int:
    return int(tx.scalar(text(f"SELECT count(*) FROM {of.table} s WHERE {of.where}"), of.parameters) or 0)  # noqa: S608


def _ranked(board: Board, rows: Sequence[Any]) -> list[Row]:
    return [row_of(board, row.rank, row.member, row.value) for row in rows]


def _listing(rows: Sequence[Row], total: int, version: Version) -> Listing:
    return Listing(rows, total, version, Source.POSTGRES, version.changed_at)
