"""The versions of boards: raised with every change and kept in PostgreSQL, so that they never go back.

A version is PostgreSQL's clock in microseconds, or one more than the version before if that is later. It is raised
under the board lock, in the transaction of the numbers that it belongs to, before Redis is touched. If that transaction
is lost, with its process or its server, the next one has a later clock: no version is published twice.
"""

from collections.abc import Collection
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, text
from sqlalchemy.orm import Mapped, mapped_column

from analytics.boards.names import GLOBAL, Board, Version
from tenants.db import Base, DeletedWithTenant, Query, Tx


class BoardRow(DeletedWithTenant, Base):
    __tablename__ = "boards"

    scope: Mapped[str] = mapped_column(primary_key=True)
    time_window: Mapped[str] = mapped_column(primary_key=True)
    metric: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[int] = mapped_column(BigInteger, server_default="0")
    # The same as `version`: the release before raises this one, and then takes it over.
    reserved: Mapped[int] = mapped_column(BigInteger)
    changed_at: Mapped[datetime]


class GlobalBoardRow(Base):
    __tablename__ = "global_boards"

    time_window: Mapped[str] = mapped_column(primary_key=True)
    metric: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[int] = mapped_column(BigInteger, server_default="0")
    reserved: Mapped[int] = mapped_column(BigInteger, server_default="0")
    changed_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    # On which they were last written in Redis, all of them together: see `analytics.boards.timeline`.
    server: Mapped[str | None]


def advance(tx: Tx, changing: Collection[Board], *, now: datetime, by: int = 1) -> dict[Board, Version]:
    """Raise the versions of these boards; under their locks. Returns the new ones.

    `by`: how many numbers each may be published under, of which the returned one is the last.
    """
    own, global_ones = _by_owner(changing)
    if not changing:
        return {}
    numbered = {"by": by, "now": now}
    queries: list[Query] = []
    if own:
        queries.append((_ADVANCE, {"tenant": tx.tenant, **_columns(own), **numbered}))
    if global_ones:
        queries.append((_ADVANCE_GLOBAL, {**_columns(global_ones), **numbered}))
    rows = [row for answer in tx.run_in_one_trip(*queries) for row in answer]
    numbers = {(row.scope, row.time_window, row.metric): row.version for row in rows}
    return {board: Version(numbers[_name(board)], now) for board in changing}


def read(tx: Tx, wanted: Collection[Board], *, now: datetime) -> dict[Board, Version]:
    """The versions of these boards as of this transaction; 0 where a board never changed."""
    own, global_ones = _by_owner(wanted)
    rows: list[Any] = []
    if own:
        scopes = sorted({board.scope for board in own})
        rows += tx.run(_READ, {"tenant": tx.tenant, "scopes": scopes})
    if global_ones:
        rows += tx.run(_READ_GLOBAL, {})
    known = {(row.scope, row.time_window, row.metric): Version(row.version, row.changed_at) for row in rows}
    return {board: known.get(_name(board), Version(0, now)) for board in wanted}


def _by_owner(boards: Collection[Board]) -> tuple[list[Board], list[Board]]:
    """A tenant's own boards and the global ones, each in the order in which rows are locked."""
    ordered = sorted(boards, key=_name)
    return [board for board in ordered if not board.is_global], [board for board in ordered if board.is_global]


def _name(board: Board) -> tuple[str, str, str]:
    return board.scope, board.window.value, board.metric.name


def _columns(boards: Collection[Board]) -> dict[str, list[str]]:
    scopes, windows, metrics = zip(*map(_name, boards), strict=True)
    return {"scopes": list(scopes), "windows": list(windows), "metrics": list(metrics)}


_NAMED = """unnest(CAST(:scopes AS text[]), CAST(:windows AS text[]), CAST(:metrics AS text[]))
         AS w(scope, time_window, metric)"""
# When the server received the statement, which was sent after the locks were taken. (Not clock_timestamp(), which is
# volatile: on Citus no UPDATE may call it.)
_CLOCK = "(extract(epoch FROM statement_timestamp()) * 1000000)::bigint + :by"

_ADVANCE = text(f"""
    INSERT INTO boards AS b (tenant_id, scope, time_window, metric, version, reserved, changed_at)
    SELECT t.id, w.scope, w.time_window, w.metric, {_CLOCK}, {_CLOCK}, CAST(:now AS timestamptz)
    FROM tenants t CROSS JOIN {_NAMED} WHERE t.id = :tenant
    ON CONFLICT (tenant_id, scope, time_window, metric) DO UPDATE SET
        version = GREATEST(b.reserved + :by, EXCLUDED.version), reserved = GREATEST(b.reserved + :by, EXCLUDED.version),
        changed_at = EXCLUDED.changed_at
    RETURNING scope, time_window, metric, version
""")  # noqa: S608  constants

_ADVANCE_GLOBAL = text(f"""
    UPDATE global_boards b SET
        version = GREATEST(b.reserved + :by, {_CLOCK}), reserved = GREATEST(b.reserved + :by, {_CLOCK}),
        changed_at = :now
    FROM {_NAMED} WHERE b.time_window = w.time_window AND b.metric = w.metric
    RETURNING '{GLOBAL}' AS scope, b.time_window, b.metric, b.version
""")  # noqa: S608  constants

_READ = text("""
    SELECT scope, time_window, metric, version, changed_at FROM boards
    WHERE tenant_id = :tenant AND scope = ANY(CAST(:scopes AS text[]))
""")

_READ_GLOBAL = text(f"SELECT '{GLOBAL}' AS scope, time_window, metric, version, changed_at FROM global_boards")  # noqa: S608
